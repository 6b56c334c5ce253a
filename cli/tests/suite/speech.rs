//! Speech on the command line: synth, inspect, preview and bench.

use crate::sandbox::{Sandbox, text};
use serde_json::Value;
use std::path::Path;

const SAMPLES: u64 = 60;
const OPS: &str = "decode_audio,resample:16000,log_mel:80";

/// A folder with sample speech, and what `synth` reported about it.
fn with_clips(layout: &str) -> (Sandbox, Value) {
    let place = Sandbox::new();
    let data = data(&place);
    let small = ["--samples", "60", "--mean-seconds", "1.6", "--voice", "formant", "--locale", "en,de"];
    let shards = ["--samples-per-shard", "20", "--rows-per-group", "8", "--layout", layout];
    let made = place.json(&[&["synth", "common-voice", &data][..], &small, &shards].concat()).remove(0);
    assert_eq!((&made["samples"], &made["voice"]), (&Value::from(SAMPLES), &Value::from("formant")));
    (place, made)
}

fn data(place: &Sandbox) -> String {
    place.named("speech")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Returns the number of rows in the TSVs, without their headers.
fn rows(dir: &Path, split: &str) -> u64 {
    let lines = ["de", "en"].map(|locale| {
        let tsv = std::fs::read_to_string(dir.join(locale).join(format!("{split}.tsv"))).unwrap();
        tsv.lines().count() as u64 - 1
    });
    lines.iter().sum()
}

#[test]
fn inspect_shows_hours_durations_speakers_and_locales() {
    let (place, made) = with_clips("mozilla");
    let complaint = place.complaint(2, &["inspect", &data(&place)]);
    assert!(complaint.contains("train") && complaint.contains("validated"), "{complaint}");
    let facts = &place.json(&["inspect", &data(&place), "--split", "validated"])[0];
    let clips = rows(&place.path("speech"), "validated");
    assert_eq!((&facts["layout"], &facts["samples"]), (&Value::from("common_voice"), &Value::from(clips)));
    let speech = &facts["speech"];
    assert_eq!(speech["clips_of_known_length"], clips);
    let histogram = speech["histogram"].as_array().unwrap();
    assert_eq!(histogram.iter().map(|bar| bar["count"].as_u64().unwrap()).sum::<u64>(), clips);
    assert!(number(&speech["shortest_s"]) >= 1.0 && number(&speech["longest_s"]) <= 12.0);
    let locales = speech["locales"].as_array().unwrap();
    let seconds: f64 = locales.iter().map(|locale| number(&locale["seconds"])).sum();
    assert_eq!(locales.len(), 2);
    assert!((seconds - number(&speech["seconds"])).abs() < 1e-3 && seconds < number(&made["audio_seconds"]));
    assert!((2..=20).contains(&speech["speakers"].as_u64().unwrap()));

    let german =
        &place.json(&["inspect", &data(&place), "--split", "validated", "--filter", "locale = 'de'"])[0];
    assert_eq!(german["speech"]["locales"].as_array().unwrap().len(), 1);
    assert_eq!(german["speech"]["locales"][0]["count"], german["selected"]);
    let people = text(&place.run(&["inspect", &data(&place), "--split", "train"]).stdout);
    for word in ["speakers", "locales", "mean", "█"] {
        assert!(people.contains(word), "{word}: {people}");
    }
}

#[test]
fn every_layout_holds_the_same_clips() {
    let mut all = Vec::new();
    for layout in ["parquet", "webdataset"] {
        let (place, made) = with_clips(layout);
        let facts = &place.json(&["inspect", &data(&place)])[0];
        assert_eq!(facts["samples"], SAMPLES, "{layout}");
        assert_eq!(facts["speech"]["clips_of_known_length"], SAMPLES, "{layout}");
        let seconds = number(&facts["speech"]["seconds"]);
        assert!((seconds - number(&made["audio_seconds"])).abs() < 0.05, "{layout}: {seconds}");
        assert_eq!(facts["speech"]["splits"].as_array().unwrap().len(), 5, "{layout}");
        all.push(facts["speech"]["speakers"].clone());
    }
    assert_eq!(all[0], all[1]);
    for layout in ["mozilla-tar-gz", "hf-tars"] {
        let (place, _) = with_clips(layout);
        let facts = &place.json(&["inspect", &data(&place), "--split", "train"])[0];
        assert_eq!(facts["speech"]["clips_of_known_length"], facts["samples"], "{layout}");
        let run =
            &place.json(&["bench", &data(&place), "--split", "train", "--batch-size", "1", "--no-ceiling"])
                [0];
        assert_eq!(
            (&run["samples"], &run["epochs_exactly_once"]),
            (&facts["samples"], &Value::from(1)),
            "{layout}"
        );
    }
}

#[test]
fn bench_measures_speech() {
    let (place, _) = with_clips("mozilla");
    let clips = rows(&place.path("speech"), "train");
    let asked =
        ["bench", &data(&place), "--split", "train", "--batch-size", "8", "--tail", "pad", "--threads", "2"];
    let run = &place.json(&asked)[0]; // --ops defaults to the ops for speech
    for key in ["samples_per_s", "chain_ceiling_samples_per_s", "audio_s_per_s", "slot_bytes"] {
        assert!(number(&run[key]) > 0.0, "{key}: {run}");
    }
    assert!((0.01..0.9).contains(&number(&run["padding_share"])), "{run}");
    assert_eq!(run["samples"], clips.div_ceil(8) * 8);
    assert_eq!(run["epochs_exactly_once"], 1);
    let same = place.json(&[&asked[..], &["--ops", OPS, "--no-ceiling"]].concat()).remove(0);
    assert_eq!(same["padding_share"], run["padding_share"]);
    let people = text(&place.run(&[&asked[..], &["--no-ceiling"]].concat()).stdout);
    assert!(people.contains("× real time") && people.contains("padding"), "{people}");
}

#[test]
fn bench_buckets_by_length_and_bounds_batches_by_seconds() {
    let (place, _) = with_clips("mozilla");
    let data = data(&place);
    let fixed =
        ["bench", &data, "--split", "validated", "--tail", "pad", "--no-ceiling", "--world-size", "2"];
    let run = |more: &[&str]| place.json(&[&fixed[..], more].concat()).remove(0);
    let random = run(&["--global-batch", "8"]);
    let bucketed = run(&["--global-batch", "8", "--bucket", "duration"]);
    let shares = (number(&bucketed["padding_share"]), number(&random["padding_share"]));
    assert!(shares.0 < shares.1 / 2.0, "{shares:?}");
    let bounded = run(&["--batch-total", "12", "--bucket", "duration", "--bucket-window", "40"]);
    for run in [&random, &bucketed, &bounded] {
        assert_eq!(run["epochs_exactly_once"], 1);
    }
    assert!(bounded["batches"].as_u64().unwrap() > 4, "{bounded}");
    let complaint = place.complaint(2, &[&fixed[..], &["--batch-total", "0"]].concat());
    assert!(complaint.contains("--batch-total"), "{complaint}");
    let complaint = place.complaint(2, &[&fixed[..], &["--bucket", "sentence"]].concat());
    assert!(complaint.contains("sentence"), "{complaint}");
    let long = place.complaint(2, &[&fixed[..], &["--batch-total", "1.5", "--bucket", "duration"]].concat());
    assert!(long.contains("common_voice_"), "the audio clip is named: {long}");
}

#[test]
fn preview_shows_spectrograms_and_plays_the_clips() {
    let (place, _) = with_clips("mozilla");
    let out = place.path("page.html");
    let asked =
        ["preview", &data(&place), "--split", "validated", "--samples", "9", "--out", out.to_str().unwrap()];
    let said = &place.json(&asked)[0];
    assert_eq!((&said["samples"], &said["failed"]), (&Value::from(9), &Value::from(0)));
    let html = std::fs::read_to_string(&out).unwrap();
    assert_eq!(html.matches("data:image/png;base64,").count(), 9);
    assert_eq!(html.matches("<audio controls preload=\"none\" src=\"data:audio/mpeg;base64,").count(), 9);
    assert_eq!(html.matches("<blockquote>").count(), 9);
    assert!(html.contains("F32 [T, 80]") && html.contains("duration: ") && !html.contains("src=\"http"));
    let wave = place.json(&[&asked[..], &["--ops", "decode_audio,resample:16000"]].concat()).remove(0);
    assert_eq!(wave["failed"], 0);
    assert!(std::fs::read_to_string(&out).unwrap().contains("F32 [T]"));
}

#[test]
fn preview_shows_why_a_clip_is_unusable() {
    let (place, _) = with_clips("mozilla");
    let clips = place.path("speech/en/clips");
    for clip in std::fs::read_dir(&clips).unwrap() {
        std::fs::write(clip.unwrap().path(), "a text file named .mp3").unwrap();
    }
    let out = place.path("page.html");
    let uri = format!("{}/en/train.tsv", data(&place));
    let output = place.run(&["preview", &uri, "--samples", "5", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(std::fs::read_to_string(&out).unwrap().contains("class=\"bad\""));
}

#[test]
fn synth_rejects_unknown_languages() {
    let place = Sandbox::new();
    let data = data(&place);
    let complaint = text(&place.run(&["synth", "common-voice", &data, "--locale", "en,tlh"]).stderr);
    assert!(complaint.contains("tlh") && complaint.contains("de, en, es, fr"), "{complaint}");
    let complaint = place.complaint(2, &["synth", "common-voice", &data, "--mean-seconds", "11"]);
    assert!(complaint.contains("--mean-seconds"), "{complaint}");
    let complaint = text(&place.run(&["synth", "common-voice", &data, "--layout", "kaldi"]).stderr);
    assert!(complaint.contains("mozilla-tar-gz"), "{complaint}");
}
