//! `feedstock shard` as users and scripts see it.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

struct Place(tempfile::TempDir);

impl Place {
    fn with_pictures(layout: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let from = place.path("from");
        let size = ["--samples", "53", "--classes", "5", "--width", "96", "--height", "80", "--exact-size"];
        place.json(&[&["synth", "imagenet", &from, "--layout", layout][..], &size].concat());
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedstock"));
        command.env("FEEDSTOCK_CACHE", self.path("cache")).stdin(Stdio::null());
        command.args(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        serde_json::from_str(text(&output.stdout).trim()).unwrap()
    }

    /// Returns the single sentence of a run that must fail with `code`.
    fn complaint(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(&[arguments, &["--quiet"]].concat());
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        complaint
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_folder_becomes_filtered_shards_and_the_same_command_resumes() {
    let place = Place::with_pictures("folder");
    let (from, to) = (place.path("from"), place.path("to"));
    let cut = ["--shard-bytes", "60000", "--group-bytes", "20000", "--filter", "label < 4"];
    let shard = [&["shard", &from, &to][..], &cut].concat();
    let first = place.json(&shard);
    let selected = place.json(&["inspect", &from, "--filter", "label < 4"])["selected"].clone();
    assert_eq!((&first["samples"], &first["resumed_shards"]), (&selected, &Value::from(0)));
    assert_eq!(first["verified"], true);
    let shards = first["shards"].as_u64().unwrap();
    assert!(shards > 2);
    let facts = place.json(&["inspect", &to]);
    assert_eq!((&facts["layout"], &facts["samples"]), (&Value::from("parquet"), &selected));
    let last = format!("train-{:05}-of-{shards:05}.parquet", shards - 1);
    std::fs::remove_file(PathBuf::from(&to).join(last)).unwrap();
    let again = place.json(&shard);
    assert_eq!(again["resumed_shards"], shards - 1);
    assert_eq!(again["ids_digest"], first["ids_digest"]);
    let people = text(&place.run(&shard).stdout);
    assert!(people.contains("verified") && people.contains("existed already"), "{people}");
}

#[test]
fn images_are_shrunk_and_written_as_ipc() {
    let place = Place::with_pictures("webdataset");
    let to = place.path("to");
    let shrink = ["--format", "ipc", "--max-side", "48", "--quality", "80", "--shuffle-seed", "7"];
    let report = place.json(&[&["shard", &place.path("from"), &to][..], &shrink].concat());
    assert_eq!((&report["samples"], &report["shrunk"]), (&Value::from(53), &Value::from(53)));
    assert_eq!(place.json(&["inspect", &to])["layout"], "ipc");
}

#[test]
fn restart_markers_are_counted() {
    let place = Place::with_pictures("folder");
    let to = place.path("to");
    let shard = ["shard", &place.path("from"), &to, "--restart-interval", "4"];
    assert_eq!(place.json(&shard)["restarted"], 53);
    assert!(text(&place.run(&shard).stdout).contains("with new restart markers"));
    let again = ["shard", &to, &place.path("again"), "--restart-interval", "4"];
    assert_eq!(place.json(&again)["unmarked"], serde_json::json!({ "has_markers": 53 }));
    assert!(text(&place.run(&again).stdout).contains("53 unchanged: they have as many already"));
    let none = ["shard", &to, &place.path("none"), "--restart-interval", "0"];
    assert!(place.complaint(2, &none).contains("--restart-interval is 0"));
}

#[test]
fn mistakes_are_reported_in_one_sentence() {
    let place = Place::with_pictures("parquet");
    let (from, to) = (place.path("from"), place.path("to"));
    assert!(place.complaint(2, &["shard", &from, &from]).contains("the data set itself"));
    assert!(place.complaint(2, &["shard", &from, &place.path("")]).contains("not empty"));
    assert!(place.complaint(2, &["shard", &from, &to, "--max-side", "0"]).contains("--max-side is 0"));
    assert!(place.complaint(2, &["shard", &from, &to, "--columns", "pixels"]).contains("pixels"));
    place.json(&["shard", &from, &to]);
    assert!(place.complaint(2, &["shard", &from, &to, "--shuffle-seed", "3"]).contains("another rewrite"));
}
