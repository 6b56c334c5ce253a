//! Audio clips that cannot be decoded, in an unpacked Common Voice archive. Each is named, or replaced and listed. Nothing is
//! lost or repeated, and nothing hangs.

use crate::common::speech::wav;
use crate::common::{open, open_split};
use feedstock_dataset::{Rank, Shuffle};
use feedstock_ops::{decode_audio, log_mel, resample};
use feedstock_trainer_bridge::{BatchSize, Dataset, ErrorKind, OnError, Pipeline};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of good audio clips between two bad ones.
const SPACING: usize = 5;

fn mp3() -> Vec<u8> {
    std::fs::read("../ops/tests/golden/audio/48k_mono_64.mp3").unwrap()
}

/// Returns a WAV that claims another sample rate.
fn claiming(rate: u32) -> Vec<u8> {
    let mut bytes = wav(4000, 0);
    bytes[24..28].copy_from_slice(&rate.to_le_bytes());
    bytes
}

/// Returns a WAV of 32-bit floats, one of which is NaN.
fn not_a_number() -> Vec<u8> {
    let mut bytes = wav(8000, 0); // twice the bytes of 4,000 floats of 4 bytes: 16,000
    bytes[20..22].copy_from_slice(&3u16.to_le_bytes());
    bytes[32..34].copy_from_slice(&4u16.to_le_bytes());
    bytes[34..36].copy_from_slice(&32u16.to_le_bytes());
    let (_, data) = bytes.split_at_mut(44);
    data.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&0.25f32.to_le_bytes()));
    data[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    bytes
}

/// Returns an MP3 with noise in place of half of its frames.
fn garbage() -> Vec<u8> {
    let mut bytes = mp3();
    let (from, to) = (bytes.len() / 4, bytes.len() * 3 / 4);
    let mut state = 1u32;
    for byte in &mut bytes[from..to] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8 & 0x7F; // never a frame's first byte
    }
    bytes
}

/// Returns a good MP3 after an ID3 tag of 3 MB, a cover image.
fn behind_a_large_tag() -> Vec<u8> {
    let size: u32 = 3 << 20;
    let mut bytes = b"ID3\x03\x00\x00".to_vec();
    bytes.extend([21, 14, 7, 0].map(|shift| (size >> shift) as u8 & 0x7F));
    bytes.resize(bytes.len() + size as usize, 0);
    bytes.extend(mp3());
    bytes
}

/// Returns the bad audio clips by name. `None` stands for a missing file.
fn bad() -> Vec<(&'static str, Option<Vec<u8>>)> {
    let half = mp3().len() / 2;
    vec![
        ("cut_in_half.mp3", Some(mp3()[..half].to_vec())),
        ("garbage.mp3", Some(garbage())),
        ("text.mp3", Some(b"These are the words of a voice, not its sound.\n".repeat(40))),
        ("empty.mp3", Some(Vec::new())),
        ("rate_zero.wav", Some(claiming(0))),
        ("rate_of_4_ghz.wav", Some(claiming(4_000_000_000))),
        ("not_a_number.wav", Some(not_a_number())),
        ("missing.mp3", None),
    ]
}

/// Writes an archive of the bad audio clips with good ones between, and returns the names by sample.
fn write(root: &Path, bad: &[(&str, Option<Vec<u8>>)]) -> Vec<String> {
    let clips = root.join("de/clips");
    std::fs::create_dir_all(&clips).unwrap();
    let mut rows: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    for (i, (name, bytes)) in bad.iter().enumerate() {
        for good in 0..SPACING {
            let bytes = if good == 0 { behind_a_large_tag() } else { mp3() };
            rows.push((format!("good_{i}_{good}.mp3"), Some(bytes)));
        }
        rows.push(((*name).to_owned(), bytes.clone()));
    }
    let mut table = "client_id\tpath\tsentence\tup_votes\tdown_votes\tlocale\r\n".to_owned();
    for (i, (name, bytes)) in rows.iter().enumerate() {
        let sentence = if i % 3 == 0 { "" } else { "Er sagte: \"nein\" – und ging" };
        table += &format!("speaker\t{name}\t{sentence}\t2\t0\tde\r\n");
        if let Some(bytes) = bytes {
            std::fs::write(clips.join(name), bytes).unwrap();
        }
    }
    std::fs::write(root.join("de/train.tsv"), table).unwrap();
    rows.into_iter().map(|(name, _)| name).collect()
}

fn pipeline(dataset: Dataset) -> Pipeline {
    dataset
        .map("audio", [decode_audio(), resample(16_000), log_mel(40)])
        .shuffle(Shuffle::seeded(2))
        .batch(BatchSize::global(8))
        .threads(2)
        .epochs(1)
        .deadline(Duration::from_secs(60))
}

#[test]
fn each_bad_clip_is_raised_with_its_name() {
    for (name, bytes) in bad() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[(name, bytes)]);
        let begun = Instant::now();
        let mut ranks = pipeline(open_split(dir.path(), "train"))
            .batch(BatchSize::global(6))
            .rank(Rank::new(0, 1))
            .start()
            .unwrap();
        let error = ranks.find_map(Result::err).unwrap_or_else(|| panic!("{name} was delivered"));
        assert_eq!(error.kind(), ErrorKind::BadSample, "{name}: {error}");
        assert!(error.to_string().contains(name), "{name}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name} took {:?}", begun.elapsed());
    }
}

#[test]
fn bad_clips_are_skipped_and_listed_and_the_rest_comes_once() {
    let dir = tempfile::tempdir().unwrap();
    let names = write(dir.path(), &bad());
    let dataset = open_split(dir.path(), "train");
    assert_eq!(dataset.len(), names.len() as u64);
    let pipeline = pipeline(dataset).on_error(OnError::Skip { max_fraction: 0.5 });
    let (mut delivered, mut listed) = (BTreeMap::new(), Vec::new());
    let mut steps = Vec::new();
    for rank in 0..2 {
        let mut ranks = pipeline.rank(Rank::new(rank, 2)).start().unwrap();
        let mut batches = 0;
        for batch in ranks.by_ref() {
            let batch = batch.unwrap();
            batches += 1;
            assert!(batch["audio"].as_f32().unwrap().iter().all(|value| value.is_finite()));
            for (row, id) in batch.sample_ids().iter().enumerate() {
                *delivered.entry(id.0).or_insert(0) += 1;
                let is_bad = bad().iter().any(|(name, _)| names[id.0 as usize] == *name);
                assert_eq!(batch.valid()[row], !is_bad, "{}", names[id.0 as usize]);
            }
        }
        ranks.ledger().check().unwrap();
        listed.extend(ranks.skip_report().samples.iter().map(|skipped| skipped.reason.clone()));
        steps.push(batches);
    }
    assert_eq!(steps[0], steps[1], "ranks stay in step");
    assert_eq!(delivered.len(), names.len());
    assert!(delivered.values().all(|count| *count == 1));
    for (name, _) in bad() {
        assert_eq!(listed.iter().filter(|reason| reason.contains(name)).count(), 1, "{name} in {listed:#?}");
    }
}

#[test]
fn a_clip_without_a_duration_cannot_be_bucketed_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("missing.mp3", None)]);
    let dataset = open_split(dir.path(), "train");
    let start = |dataset: Dataset| {
        pipeline(dataset).bucket_by("duration").batch(BatchSize::global(2)).rank(Rank::new(0, 1)).start()
    };
    let error = start(dataset.clone()).unwrap_err();
    assert!(
        error.to_string().contains("missing.mp3") && error.to_string().contains("is not null"),
        "{error}"
    );
    let known = dataset.filter("duration is not null").unwrap();
    assert_eq!(start(known).unwrap().map(|batch| batch.unwrap().len()).sum::<usize>(), 4);
}

/// Returns a WAV that claims to hold IMA ADPCM.
fn adpcm() -> Vec<u8> {
    let mut bytes = wav(4000, 0);
    bytes[20..22].copy_from_slice(&0x11u16.to_le_bytes());
    bytes
}

#[test]
fn codecs_that_are_not_decoded_are_named_before_a_run() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("first.wav", Some(adpcm())), ("second.wav", Some(adpcm()))]);
    let alone = open_split(dir.path(), "train");
    let both = Dataset::concat(vec![alone.clone().named("once"), alone.clone().named("again")]).unwrap();
    for (dataset, name) in [(alone.clone(), "first.wav"), (both, "again: ")] {
        let notes = dataset.catalog().notes().join("\n");
        assert!(notes.contains("2 audio clips are of the codec IMA ADPCM, which is not decoded"), "{notes}");
        let error = pipeline(dataset.clone()).rank(Rank::new(0, 1)).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        for part in ["IMA ADPCM (", name, "on_error=skip"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        let skipping = pipeline(dataset).on_error(OnError::Skip { max_fraction: 0.5 });
        assert!(skipping.rank(Rank::new(0, 1)).start().unwrap().all(|batch| batch.is_ok()));
    }
    let one = alone.clone().filter("path NOT LIKE '%first.wav'").unwrap();
    let error = pipeline(one).rank(Rank::new(0, 1)).start().unwrap_err();
    assert!(error.to_string().contains("second.wav") && !error.to_string().contains("first.wav"), "{error}");
    let none = alone.filter("path NOT LIKE '%.wav'").unwrap();
    assert!(pipeline(none).rank(Rank::new(0, 1)).start().unwrap().all(|batch| batch.is_ok()));
}

#[test]
fn codecs_are_named_where_the_data_set_states_its_durations() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("good.mp3"), mp3()).unwrap();
    std::fs::write(dir.path().join("bad.wav"), adpcm()).unwrap();
    let list = dir.path().join("list.csv");
    std::fs::write(&list, "audio,duration\ngood.mp3,1\nbad.wav,0.5\n").unwrap();
    let start =
        |dataset: Dataset| pipeline(dataset).batch(BatchSize::global(1)).rank(Rank::new(0, 1)).start();
    let all = open(&list);
    let good = all.clone().filter("duration = 1").unwrap();
    let both =
        |part: &Dataset| Dataset::concat(vec![part.clone().named("a"), part.clone().named("b")]).unwrap();
    for dataset in [all.clone(), both(&all)] {
        let error = start(dataset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.message().contains("IMA ADPCM (") && error.message().contains("bad.wav"), "{error}");
    }
    for dataset in [good.clone(), both(&good)] {
        assert!(start(dataset).unwrap().all(|batch| batch.is_ok()));
    }
}
