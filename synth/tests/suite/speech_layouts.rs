//! The layouts of audio clips: each is read with the usual reader of its format, and all hold the same audio clips.

use crate::written::{contents, files_below};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedstock_synth::{
    Clip, CommonVoiceLayout, CommonVoiceOptions, CommonVoiceSummary, ErrorKind, Locale, Narrator, Progress,
    Split, Voice,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::sync::OnceLock;

const SAMPLES: u64 = 60;
const RELEASE: &str = "cv-corpus-17.0-2024-03-15";

/// path → (split, sentence, client_id, up votes, MP3)
type Clips = BTreeMap<String, (String, String, String, u32, Vec<u8>)>;

fn options(layout: CommonVoiceLayout) -> CommonVoiceOptions {
    CommonVoiceOptions {
        samples: SAMPLES,
        layout,
        locales: vec![Locale::English, Locale::German],
        voice: Voice::Formant,
        mean_seconds: 1.6,
        samples_per_shard: 10,
        rows_per_group: 4,
        threads: 3,
        ..Default::default()
    }
}

fn made() -> &'static Vec<Clip> {
    static MADE: OnceLock<Vec<Clip>> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut narrator = Narrator::new(&options(CommonVoiceLayout::Mozilla)).unwrap();
        (0..SAMPLES).map(|index| narrator.clip(index).unwrap()).collect()
    })
}

fn expected() -> Clips {
    let facts = |clip: &Clip| {
        let split = clip.split.name().to_owned();
        (split, clip.sentence.clone(), clip.client_id.clone(), clip.up_votes, clip.mp3.clone())
    };
    made().iter().map(|clip| (clip.path.clone(), facts(clip))).collect()
}

fn write(layout: CommonVoiceLayout) -> (tempfile::TempDir, CommonVoiceSummary) {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    let summary = options(layout).write(dir.path(), &mut |progress| last = Some(progress)).unwrap();
    assert_eq!(last, Some(Progress { done: SAMPLES, total: SAMPLES, bytes: summary.audio_bytes }));
    let files = files_below(dir.path());
    let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!((summary.files, summary.file_bytes), (files.len() as u64, bytes));
    assert_eq!(summary.voice, Voice::Formant);
    let ms: u64 = made().iter().map(|clip| u64::from(clip.duration_ms)).sum();
    assert!((summary.seconds - ms as f64 / 1000.0).abs() < 1e-6);
    (dir, summary)
}

/// Returns the rows of a TSV by column name: tabs separate, and there is no quoting.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.strip_suffix('\n').unwrap().split('\n');
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields.len(), header.len(), "{line}");
            header.iter().zip(fields).map(|(name, field)| ((*name).to_owned(), field.to_owned())).collect()
        })
        .collect()
}

/// Collects the audio clips of one language's TSVs, and checks that the TSVs are consistent.
fn collect_mozilla(locale: &str, read: impl Fn(&str) -> Vec<u8>, clips: &mut Clips) {
    let table = |name: &str| rows(&String::from_utf8(read(&format!("{name}.tsv"))).unwrap());
    let durations: BTreeMap<String, String> = table("clip_durations")
        .into_iter()
        .map(|row| (row["clip"].clone(), row["duration[ms]"].clone()))
        .collect();
    let mut validated = Vec::new();
    let mut count = 0;
    for split in Split::ALL {
        for row in table(split.name()) {
            assert_eq!((row["locale"].as_str(), row["segment"].as_str()), (locale, ""));
            let clip = made().iter().find(|clip| clip.path == row["path"]).unwrap();
            assert_eq!(durations[&row["path"]], clip.duration_ms.to_string());
            assert_eq!(
                (&row["age"], &row["gender"], &row["accents"]),
                (&clip.age, &clip.gender, &clip.accents)
            );
            assert_eq!(row["sentence_id"], clip.sentence_id);
            if split.is_validated() {
                validated.push(row.clone());
            }
            let mp3 = read(&format!("clips/{}", row["path"]));
            let facts = (
                split.name().to_owned(),
                row["sentence"].clone(),
                row["client_id"].clone(),
                row["up_votes"].parse().unwrap(),
                mp3,
            );
            assert!(clips.insert(row["path"].clone(), facts).is_none(), "an audio clip in two splits");
            count += 1;
        }
    }
    let by_path = |mut rows: Vec<BTreeMap<String, String>>| {
        rows.sort_by(|a, b| a["path"].cmp(&b["path"]));
        rows
    };
    assert_eq!(by_path(table("validated")), by_path(validated));
    assert_eq!(durations.len(), count);
}

#[test]
fn mozilla_is_an_unpacked_archive() {
    let (dir, summary) = write(CommonVoiceLayout::Mozilla);
    assert_eq!(summary.files, SAMPLES + 2 * 7);
    let mut clips = Clips::new();
    for locale in ["de", "en"] {
        let folder = dir.path().join(locale);
        collect_mozilla(locale, |name| fs::read(folder.join(name)).unwrap(), &mut clips);
    }
    assert_eq!(clips, expected());
}

#[test]
fn mozilla_tar_gz_is_one_archive_a_language() {
    let (dir, summary) = write(CommonVoiceLayout::MozillaTarGz);
    assert_eq!(summary.files, 2);
    let mut clips = Clips::new();
    for locale in ["de", "en"] {
        let file = File::open(dir.path().join(format!("{RELEASE}-{locale}.tar.gz"))).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut members = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let name = name.strip_prefix(&format!("{RELEASE}/{locale}/")).unwrap().to_owned();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            assert!(members.insert(name, data).is_none());
        }
        collect_mozilla(locale, |name| members[name].clone(), &mut clips);
    }
    assert_eq!(clips, expected());
}

#[test]
fn hf_tars_are_joined_with_their_transcripts() {
    let (dir, _) = write(CommonVoiceLayout::HfTars);
    let counts: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("n_shards.json")).unwrap()).unwrap();
    let mut clips = Clips::new();
    for (locale, splits) in counts.as_object().unwrap() {
        for (split, count) in splits.as_object().unwrap() {
            let transcript = dir.path().join(format!("transcript/{locale}/{split}.tsv"));
            let rows = rows(&fs::read_to_string(transcript).unwrap());
            let mut audio = BTreeMap::new();
            for shard in 0..count.as_u64().unwrap() {
                let stem = format!("{locale}_{split}_{shard}");
                let path = dir.path().join(format!("audio/{locale}/{split}/{stem}.tar"));
                let mut archive = tar::Archive::new(File::open(path).unwrap());
                let mut members = 0;
                for entry in archive.entries().unwrap() {
                    let mut entry = entry.unwrap();
                    let name = entry.path().unwrap().to_str().unwrap().to_owned();
                    let mut data = Vec::new();
                    entry.read_to_end(&mut data).unwrap();
                    audio.insert(name.strip_prefix(&format!("{stem}/")).unwrap().to_owned(), data);
                    members += 1;
                }
                assert!((1..=10).contains(&members), "{members} in {stem}");
            }
            assert_eq!(audio.len(), rows.len());
            for row in rows {
                let mp3 = audio.remove(&row["path"]).unwrap();
                let votes = row["up_votes"].parse().unwrap();
                let facts = (split.clone(), row["sentence"].clone(), row["client_id"].clone(), votes, mp3);
                clips.insert(row["path"].clone(), facts);
            }
        }
    }
    let tars = files_below(&dir.path().join("audio")).len() as u64;
    let told: u64 = counts
        .as_object()
        .unwrap()
        .values()
        .flat_map(|s| s.as_object().unwrap().values())
        .filter_map(|n| n.as_u64())
        .sum();
    assert_eq!(tars, told);
    assert_eq!(clips, expected());
}

#[test]
fn parquet_is_hugging_faces() {
    let (dir, _) = write(CommonVoiceLayout::Parquet);
    let mut clips = Clips::new();
    for path in files_below(&dir.path().join("data")) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
        let features = pairs.iter().find(|pair| pair.key == "huggingface").unwrap().value.clone().unwrap();
        let features: serde_json::Value = serde_json::from_str(&features).unwrap();
        assert_eq!(features["info"]["features"]["audio"]["_type"], "Audio");
        assert_eq!(features["info"]["features"]["audio"]["sampling_rate"], 48_000);
        assert!(reader.metadata().row_groups().iter().all(|group| group.num_rows() <= 4));
        assert!(reader.metadata().file_metadata().num_rows() <= 10);
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            let text = |name: &str| batch.column_by_name(name).unwrap().as_string::<i32>().clone();
            let audio = batch.column_by_name("audio").unwrap().as_struct();
            let bytes = audio.column_by_name("bytes").unwrap().as_binary::<i32>();
            let votes = batch.column_by_name("up_votes").unwrap().as_primitive::<Int64Type>();
            for row in 0..batch.num_rows() {
                let split = text("split").value(row).to_owned();
                let prefix = if split == "dev" { "validation" } else { &split };
                assert!(name.starts_with(&format!("{prefix}-000")), "{split} in {name}");
                let path = audio.column_by_name("path").unwrap().as_string::<i32>().value(row).to_owned();
                assert_eq!(path, text("path").value(row));
                let facts = (
                    split,
                    text("sentence").value(row).to_owned(),
                    text("client_id").value(row).to_owned(),
                    u32::try_from(votes.value(row)).unwrap(),
                    bytes.value(row).to_vec(),
                );
                assert!(clips.insert(path, facts).is_none());
            }
        }
    }
    assert_eq!(clips, expected());
}

#[test]
fn webdataset_members_share_a_key() {
    let (dir, _) = write(CommonVoiceLayout::WebDataset);
    let mut clips = Clips::new();
    for path in files_below(dir.path()) {
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut members: Vec<(String, Vec<u8>)> = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            members.push((name, data));
        }
        for three in members.chunks(3) {
            let key = three[0].0.strip_suffix(".json").unwrap();
            assert_eq!((&three[1].0, &three[2].0), (&format!("{key}.mp3"), &format!("{key}.txt")));
            let facts: serde_json::Value = serde_json::from_slice(&three[0].1).unwrap();
            let text = |name: &str| facts[name].as_str().unwrap().to_owned();
            let clip = made().iter().find(|clip| clip.path == text("path")).unwrap();
            assert_eq!(facts["duration"].as_f64().unwrap(), f64::from(clip.duration_ms) / 1000.0);
            assert_eq!(text("sentence").as_bytes(), three[2].1);
            assert!(path.to_str().unwrap().contains(&format!("common-voice-{}-0000", text("split"))));
            let votes = facts["up_votes"].as_u64().unwrap() as u32;
            clips.insert(
                text("path"),
                (text("split"), text("sentence"), text("client_id"), votes, three[1].1.clone()),
            );
        }
    }
    assert_eq!(clips, expected());
}

#[test]
fn threads_do_not_show_in_the_bytes() {
    for layout in CommonVoiceLayout::ALL {
        let read = |threads| {
            let dir = tempfile::tempdir().unwrap();
            let options = CommonVoiceOptions { threads, samples: 12, ..options(layout) };
            options.write(dir.path(), &mut |_| ()).unwrap();
            contents(dir.path())
        };
        assert!(read(1) == read(5), "{layout}");
    }
}

#[test]
fn only_sample_data_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let small = |layout| CommonVoiceOptions { samples: 3, overwrite: true, ..options(layout) };
    for layout in CommonVoiceLayout::ALL {
        small(layout).write(dir.path(), &mut |_| ()).unwrap();
    }
    let refused = CommonVoiceOptions { overwrite: false, ..small(CommonVoiceLayout::Mozilla) };
    assert!(refused.write(dir.path(), &mut |_| ()).unwrap_err().to_string().contains("not empty"));
    small(CommonVoiceLayout::Mozilla).write(dir.path(), &mut |_| ()).unwrap();
    fs::write(dir.path().join("en/notes.txt"), "mine").unwrap();
    let error = small(CommonVoiceLayout::Mozilla).write(dir.path(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("is not sample data"), "{error}");
    assert!(dir.path().join("en/notes.txt").exists());
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("audio/holiday")).unwrap();
    assert!(small(CommonVoiceLayout::HfTars).write(dir.path(), &mut |_| ()).is_err());
    assert!(dir.path().join("audio/holiday").exists());
}

#[test]
fn options_out_of_range_are_named() {
    let refused = [
        ("samples", CommonVoiceOptions { samples: 0, ..Default::default() }),
        ("mean_seconds", CommonVoiceOptions { mean_seconds: 1.0, ..Default::default() }),
        ("mean_seconds", CommonVoiceOptions { mean_seconds: f64::NAN, ..Default::default() }),
        ("locales", CommonVoiceOptions { locales: Vec::new(), ..Default::default() }),
        ("locales", CommonVoiceOptions { locales: vec![Locale::French; 2], ..Default::default() }),
        ("samples_per_shard", CommonVoiceOptions { samples_per_shard: 0, ..Default::default() }),
        ("rows_per_group", CommonVoiceOptions { rows_per_group: 0, ..Default::default() }),
    ];
    for (name, options) in refused {
        let dir = tempfile::tempdir().unwrap();
        let error = options.write(dir.path(), &mut |_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.to_string().contains(name), "{name}: {error}");
        assert_eq!(files_below(dir.path()).len(), 0);
    }
    assert!("kaldi".parse::<CommonVoiceLayout>().unwrap_err().to_string().contains("mozilla-tar-gz"));
    assert!("festival".parse::<Voice>().unwrap_err().to_string().contains("espeak"));
}
