//! Error messages for wrong options: they name the options.

use crate::sandbox::{Sandbox, text};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A folder with sample images.
fn with_images() -> Sandbox {
    let place = Sandbox::new();
    let options = ["--samples", "24", "--classes", "3", "--width", "96"];
    place.json(&[&["synth", "imagenet", &data(&place)][..], &options].concat());
    place
}

fn data(place: &Sandbox) -> String {
    place.named("images")
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
    let place = with_images();
    let bench = |ops: &str| place.complaint(2, &["bench", &data(&place), "--quiet", "--ops", ops]);
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
    let place = with_images();
    let inspect =
        |filter: &str| place.complaint(2, &["inspect", &data(&place), "--quiet", "--filter", filter]);
    says(&inspect("lable < 3"), &["there is no column `lable`", "the columns are: ", "label"]);
    says(&inspect("label <"), &["it is not an SQL expression"]);
    says(&inspect("nofunction(label) < 3"), &["nofunction"]);
}

#[test]
fn unreachable_workers_end_bench_with_an_error() {
    let place = with_images();
    // A local port on which no process listens any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let began = Instant::now();
    let remote = ["--workers", &free, "--connect-timeout", "4", "--batch-size", "4", "--no-ceiling"];
    let complaint = place.failure(6, &[&["bench", &data(&place)][..], &remote].concat());
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    says(&complaint, &["no batch after 2 s: waiting for workers", &free]);
    says(&complaint, &["no worker answered within 4 s (--connect-timeout; 1 tried)", "--local fallback"]);
}

#[test]
fn options_are_named_as_flags() {
    let place = with_images();
    let to = place.named("to");
    let shard = place.complaint(2, &["shard", &data(&place), &to, "--quiet", "--shard-bytes", "12"]);
    says(&shard, &["--shard-bytes 12 must be at least 4096, --group-bytes "]);
    let synth = place.complaint(2, &["synth", "imagenet", &data(&place), "--quiet"]);
    says(&synth, &["replace earlier sample data with --force"]);
    let ops = "decode_image:max_pixels=10,resize:8x8";
    let bench = ["bench", &data(&place), "--batch-size", "1", "--quiet", "--no-ceiling", "--ops", ops];
    says(&place.complaint(5, &bench), &["over max_pixels (10); raise the limit or set --skip-bad"]);
}
