//! Error messages for wrong options: they name the options.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Place(tempfile::TempDir);

impl Place {
    fn with_pictures() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let made = place.run(&[
            "synth",
            "imagenet",
            &place.data(),
            "--samples",
            "24",
            "--classes",
            "3",
            "--width",
            "96",
        ]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn data(&self) -> String {
        self.path("images").to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedstock"));
        command.env("FEEDSTOCK_CACHE", self.path("cache")).stdin(Stdio::null());
        command.args(arguments).output().unwrap()
    }

    /// Returns standard error of a run that must fail with `code`.
    fn complaint(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
        complaint
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Terms of the libraries that parse and plan, which users must not see.
const LIBRARIES: [&str; 10] = [
    "serde",
    "unknown variant",
    "unknown field",
    "missing field",
    "expected f",
    "ParserError",
    "DataFusion",
    "Schema error",
    "Error during planning",
    "Utf8",
];

#[track_caller]
fn says(complaint: &str, expected: &[&str]) {
    for words in expected {
        assert!(complaint.contains(words), "{complaint}\nmust contain: {words}");
    }
    for word in LIBRARIES {
        assert!(!complaint.contains(word), "{complaint}\nmust not contain: {word}");
    }
}

#[test]
fn wrong_ops_are_explained_and_the_ops_are_listed() {
    let place = Place::with_pictures();
    let bench = |ops: &str| place.complaint(2, &["bench", &place.data(), "--quiet", "--ops", ops]);
    says(&bench("decode_imge"), &["`decode_imge` is not an op (did you mean decode_image?)"]);
    let parameter = bench("decode_image,random_resized_crop:224:scales=0.2..1");
    says(&parameter, &["op 1 (random_resized_crop): `scales` is not a parameter (did you mean scale?)"]);
    says(&bench("decode_image,horizontal_flip:often"), &["`probability` must be a number; got often"]);

    let listed = place.run(&["ops", "--json"]);
    let ops: Vec<Value> =
        text(&listed.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let crop = ops.iter().find(|op| op["op"] == "random_resized_crop").unwrap();
    assert_eq!((&crop["parameters"][0], &crop["unnamed"][0]), (&"size".into(), &"size".into()));
    let page = text(&place.run(&["ops"]).stdout);
    assert!(page.contains("random_resized_crop: Cut out a random area"), "{page}");
    assert!(page.contains("    [size], scale, "), "{page}");
}

#[test]
fn wrong_filters_are_explained() {
    let place = Place::with_pictures();
    let inspect =
        |filter: &str| place.complaint(2, &["inspect", &place.data(), "--quiet", "--filter", filter]);
    says(&inspect("lable < 3"), &["there is no column `lable`", "the columns are: ", "label"]);
    says(&inspect("label <"), &["it is not an SQL expression"]);
    says(&inspect("nofunction(label) < 3"), &["nofunction"]);
}

#[test]
fn unreachable_workers_end_bench_with_an_error() {
    let place = Place::with_pictures();
    // A local port on which no process listens any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let began = Instant::now();
    let remote = ["--workers", &free, "--connect-timeout", "4", "--batch-size", "4", "--no-ceiling"];
    let complaint = place.complaint(6, &[&["bench", &place.data()][..], &remote].concat());
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    says(&complaint, &["no batch after 2 s: waiting for workers", &free]);
    says(&complaint, &["no worker answered within 4 s (--connect-timeout; 1 tried)", "--local fallback"]);
}

#[test]
fn options_are_named_as_flags() {
    let place = Place::with_pictures();
    let to = place.path("to").to_str().unwrap().to_owned();
    let shard = place.complaint(2, &["shard", &place.data(), &to, "--quiet", "--shard-bytes", "12"]);
    says(&shard, &["--shard-bytes 12 must be at least 4096, --group-bytes "]);
    let synth = place.complaint(2, &["synth", "imagenet", &place.data(), "--quiet"]);
    says(&synth, &["replace earlier sample data with --force"]);
    let ops = "decode_image:max_pixels=10,resize:8x8";
    let bench = ["bench", &place.data(), "--batch-size", "1", "--quiet", "--no-ceiling", "--ops", ops];
    says(&place.complaint(5, &bench), &["over max_pixels (10); raise the limit or set --skip-bad"]);
}
