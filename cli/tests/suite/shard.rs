//! `feedstock shard` as users and scripts see it.

use crate::sandbox::{Sandbox, text};
use serde_json::Value;
use std::path::PathBuf;

/// A folder with sample images in `from`.
fn with_images(layout: &str) -> Sandbox {
    let place = Sandbox::new();
    let size = ["--samples", "53", "--classes", "5", "--width", "96", "--height", "80", "--exact-size"];
    place.json(&[&["synth", "imagenet", &place.named("from"), "--layout", layout][..], &size].concat());
    place
}

/// Returns the report of a run that must succeed.
fn reported(place: &Sandbox, arguments: &[&str]) -> Value {
    let [report] = place.json(arguments).try_into().unwrap();
    report
}

#[test]
fn a_folder_becomes_filtered_shards_and_the_same_command_resumes() {
    let place = with_images("folder");
    let (from, to) = (place.named("from"), place.named("to"));
    let cut = ["--shard-bytes", "60000", "--group-bytes", "20000", "--filter", "label < 4"];
    let shard = [&["shard", &from, &to][..], &cut].concat();
    let first = reported(&place, &shard);
    let selected = reported(&place, &["inspect", &from, "--filter", "label < 4"])["selected"].clone();
    assert_eq!((&first["samples"], &first["resumed_shards"]), (&selected, &Value::from(0)));
    assert_eq!(first["verified"], true);
    let shards = first["shards"].as_u64().unwrap();
    assert!(shards > 2);
    let facts = reported(&place, &["inspect", &to]);
    assert_eq!((&facts["layout"], &facts["samples"]), (&Value::from("parquet"), &selected));
    let last = format!("train-{:05}-of-{shards:05}.parquet", shards - 1);
    std::fs::remove_file(PathBuf::from(&to).join(last)).unwrap();
    let output = place.run(&[&shard[..], &["--json"]].concat());
    let warning = text(&output.stderr);
    assert!(warning.contains("WARN") && warning.contains("is gone or has another size"), "{warning}");
    let again: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(again["resumed_shards"], shards - 1);
    assert_eq!(again["ids_digest"], first["ids_digest"]);
    let people = text(&place.run(&shard).stdout);
    assert!(people.contains("verified") && people.contains("existed already"), "{people}");
}

#[test]
fn pages_of_a_few_samples_are_shuffled_by_pages() {
    let place = with_images("folder");
    let from = place.named("from");
    let shuffle_of = |to: &str| reported(&place, &["inspect", to])["shuffle_quality"].clone();
    let (large, small) = (place.named("large"), place.named("small"));
    reported(&place, &["shard", &from, &large]);
    let quality = shuffle_of(&large);
    assert!(quality["order"]["shuffle"].as_str().unwrap().contains("in blocks"), "{quality}");
    assert!(
        quality["why_blocks"].as_str().unwrap().contains("feedstock shard --page-samples 2"),
        "{quality}"
    );
    let people = text(&place.run(&["inspect", &large]).stdout);
    assert!(people.contains("why blocks") && people.contains("--page-samples"), "{people}");
    reported(&place, &["shard", &from, &small, "--page-samples", "2"]);
    let quality = shuffle_of(&small);
    assert!(quality["order"]["shuffle"].as_str().unwrap().contains("in pieces of 2"), "{quality}");
    assert_eq!(quality["why_blocks"], Value::Null);
    let large = reported(&place, &["shard", &from, &place.named("pages"), "--page-samples", "1000"]);
    let note = large["pages_note"].as_str().unwrap();
    assert!(note.contains("over 524 kB: write with --page-samples 2"), "{note}");
    let refused = place.complaint(
        2,
        &["shard", &from, &place.named("ipc"), "--quiet", "--format", "ipc", "--page-samples", "2"],
    );
    assert!(refused.contains("--page-samples requires the format Parquet"), "{refused}");
}

#[test]
fn images_are_shrunk_and_written_as_ipc() {
    let place = with_images("webdataset");
    let to = place.named("to");
    let shrink = ["--format", "ipc", "--max-side", "48", "--quality", "80", "--shuffle-seed", "7"];
    let report = reported(&place, &[&["shard", &place.named("from"), &to][..], &shrink].concat());
    assert_eq!((&report["samples"], &report["shrunk"]), (&Value::from(53), &Value::from(53)));
    assert_eq!(reported(&place, &["inspect", &to])["layout"], "ipc");
}

#[test]
fn restart_markers_are_counted() {
    let place = with_images("folder");
    let to = place.named("to");
    let shard = ["shard", &place.named("from"), &to, "--restart-interval", "4"];
    assert_eq!(reported(&place, &shard)["restarted"], 53);
    assert!(text(&place.run(&shard).stdout).contains("with new restart markers"));
    let again = ["shard", &to, &place.named("again"), "--restart-interval", "4"];
    assert_eq!(reported(&place, &again)["unmarked"], serde_json::json!({ "has_markers": 53 }));
    assert!(text(&place.run(&again).stdout).contains("53 unchanged: they have as many already"));
    let none = ["shard", &to, &place.named("none"), "--restart-interval", "0"];
    assert!(place.complaint(2, &none).contains("--restart-interval must be 1 … 65535 MCUs; got 0"));
}

#[test]
fn mistakes_are_reported_in_one_sentence() {
    let place = with_images("parquet");
    let (from, to) = (place.named("from"), place.named("to"));
    assert!(place.complaint(2, &["shard", &from, &from]).contains("the data set itself"));
    assert!(place.complaint(2, &["shard", &from, &place.named("")]).contains("not empty"));
    assert!(
        place.complaint(2, &["shard", &from, &to, "--max-side", "0"]).contains("--max-side must be 1 … ")
    );
    assert!(place.complaint(2, &["shard", &from, &to, "--columns", "pixels"]).contains("pixels"));
    reported(&place, &["shard", &from, &to]);
    assert!(place.complaint(2, &["shard", &from, &to, "--shuffle-seed", "3"]).contains("another rewrite"));
}
