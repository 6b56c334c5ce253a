//! `feedstock doctor` on files that a run would refuse.

use crate::sandbox::{Sandbox, text};
use serde_json::Value;

/// Returns a WAV of this format whose content is silence.
fn wav(format: u16) -> Vec<u8> {
    let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    bytes.extend(format.to_le_bytes());
    bytes.extend(b"\x01\0\x80\x3E\0\0\0\x7D\0\0\x02\0\x10\0data\0\x40\0\0");
    bytes.resize(bytes.len() + 0x4000, 0);
    bytes
}

#[test]
fn doctor_counts_audio_clips_of_codecs_that_are_not_decoded() {
    let place = Sandbox::new();
    let folder = place.named("audio");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, format) in [("a", 1), ("b", 0x11), ("c", 0x11), ("d", 1)] {
        std::fs::write(format!("{folder}/{name}.wav"), wav(format)).unwrap();
    }
    let output = place.run(&["doctor", &folder, "--json"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let codec = &report["columns"][0]["unsupported"]["IMA ADPCM"];
    assert_eq!((&codec["samples"], &codec["examples"][0]), (&2.into(), &"b.wav".into()), "{report}");
    let note = "2 audio clips are of the codec IMA ADPCM, which is not decoded: b.wav, c.wav";
    assert!(report["notes"].as_array().unwrap().contains(&note.into()), "{report}");
    let people = text(&place.run(&["doctor", &folder, "--quiet"]).stdout);
    assert!(people.contains("not decoded    2 IMA ADPCM: b.wav, c.wav\n"), "{people}");
}

#[test]
fn doctor_refuses_samples_that_a_run_refuses_for_their_memory() {
    let place = Sandbox::new();
    let folder = place.named("audio");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(format!("{folder}/a.wav"), wav(1)).unwrap();
    assert_eq!(place.json(&["doctor", &folder])[0]["columns"][0]["refused"], 0);
    let limits = ["--decoder-memory", "1048576", "--budget-bytes", "2097152"];
    let output = place.run(&[&["doctor", &folder, "--json"][..], &limits].concat());
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let reason = report["columns"][0]["refusals"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("MiB of memory, over 2.0 MiB (decoder_memory and half of budget_bytes"),
        "{reason}"
    );
}

#[test]
fn doctor_decodes_columns_of_masks_as_classes() {
    let place = Sandbox::new();
    let folder = place.named("masks");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(format!("{folder}/a.jpg"), feedstock_synth::picture(1, 0).0).unwrap();
    assert_eq!(place.json(&["doctor", &folder])[0]["columns"][0]["refused"], 0);
    let output = place.run(&["doctor", &folder, "--masks", "image", "--json"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let column = &report["columns"][0];
    assert_eq!(column["medium"], "mask");
    let reason = column["refusals"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("needs a palette or grey values"), "{reason}");
    let output = place.run(&["doctor", &folder, "--masks", "image,label"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("'label' is not a column of images"), "{}", text(&output.stderr));
}
