//! Layouts of speech: Common Voice in its forms, audio in the other layouts, durations from headers.

mod archives;
mod audio;
mod bad_tables;
mod clips;
mod codecs;
mod durations;
mod hf_tars;

use crate::format_common::*;
use feedstock_dataset::{AudioProbe, CatalogStore, Dataset, OpenOptions, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Makes an audio clip of 2 to 3 KB whose first twelve bytes state its seconds for [`probe`].
fn clip(i: u64, seconds: f64) -> Vec<u8> {
    [b"CLIP", seconds.to_le_bytes().as_slice(), &picture(i, 2_000)].concat()
}

/// Reads what [`clip`] wrote, and counts its calls.
fn probe() -> (AudioProbe, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = asked.clone();
    let probe = AudioProbe::new(1, move |head: &[u8], total| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(head.len() as u64 <= total);
        let seconds = head.strip_prefix(b"CLIP")?.get(..8)?;
        Some(f64::from_le_bytes(seconds.try_into().ok()?))
    });
    (probe, asked)
}

fn put(root: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let at = root.join(name);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, bytes).unwrap();
}

async fn open_split(at: &Path, split: &str) -> Result<Dataset> {
    open_as(path(at), split, CatalogStore::Nowhere).await
}

async fn open_as(at: &str, split: &str, store: CatalogStore) -> Result<Dataset> {
    Dataset::open_with(at, OpenOptions { split: Some(split.to_owned()), ..options(store) }).await
}

/// Returns a column as numbers; null is `None`.
fn floats(rows: &[arrow::record_batch::RecordBatch], column: &str) -> Vec<Option<f64>> {
    use arrow::array::AsArray;
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap();
            array.as_primitive::<arrow::datatypes::Float64Type>().iter().collect::<Vec<_>>()
        })
        .collect()
}

/// Returns a text column; null is `None`.
fn optional_texts(rows: &[arrow::record_batch::RecordBatch], column: &str) -> Vec<Option<String>> {
    use arrow::array::AsArray;
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap().as_string::<i32>().clone();
            array.iter().map(|t| t.map(str::to_owned)).collect::<Vec<_>>()
        })
        .collect()
}

/// The columns of release 17.
const HEADER: &str = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\t\
                      accents\tvariant\tlocale\tsegment";

/// Returns the name of audio clip `i` of a locale.
fn clip_name(locale: &str, i: u64) -> String {
    format!("common_voice_{locale}_{i}.mp3")
}

fn sentence(i: u64) -> String {
    match i % 4 {
        0 => format!("\"Nummer {i},\" sagte sie"),
        1 => String::new(),
        2 => format!("it's 5\" wide: {i}"),
        _ => format!("Größe {i}"),
    }
}

/// Makes the TSV of the audio clips `range`.
fn table(locale: &str, range: std::ops::Range<u64>, newline: &str) -> String {
    let mut text = format!("{HEADER}{newline}");
    for i in range {
        let (path, said) = (clip_name(locale, i), sentence(i));
        text += &format!(
            "c{}\t{path}\ts{i}\t{said}\t\t{}\t{}\t\tmale\t\t\t{locale}\t{newline}",
            i % 5,
            i % 4,
            i % 2
        );
    }
    text
}

/// The locales of the sample release, with the audio clips of `train` and of `dev`; `validated` has both.
const LOCALES: [(&str, std::ops::Range<u64>, std::ops::Range<u64>); 2] =
    [("de", 0..60, 60..80), ("fr", 100..130, 130..140)];

/// Makes every file of a small release 17. `de` lacks audio clip 7, and the duration of audio clip 9.
fn release() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for (locale, train, dev) in LOCALES {
        let newline = if locale == "fr" { "\r\n" } else { "\n" };
        let all = train.start..dev.end;
        let mut durations = format!("clip\tduration[ms]{newline}");
        for i in all.clone() {
            if i != 9 {
                durations += &format!("{}\t{}{newline}", clip_name(locale, i), 1_000 + i * 10);
            }
            if i != 7 {
                files.push((format!("{locale}/clips/{}", clip_name(locale, i)), clip(i, 0.5 + i as f64)));
            }
        }
        files.push((format!("{locale}/clip_durations.tsv"), durations.into_bytes()));
        files.push((format!("{locale}/reported.tsv"), b"sentence\tsentence_id\tlocale\treason\n".to_vec()));
        for (split, range) in [("train", train), ("dev", dev), ("validated", all)] {
            files.push((format!("{locale}/{split}.tsv"), table(locale, range, newline).into_bytes()));
        }
    }
    files
}

/// Returns the bytes of the audio clips of `train` of the sample release, in the TSVs' order.
fn clips_of_train() -> Vec<Option<Vec<u8>>> {
    let clips = LOCALES.iter().flat_map(|(_, train, _)| train.clone());
    clips.map(|i| (i != 7).then(|| clip(i, 0.5 + i as f64))).collect()
}
