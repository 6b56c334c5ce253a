//! Good and bad audio clips in Parquet files as Hugging Face writes them.

use super::pictures::files;
use arrow::array::{ArrayRef, BinaryArray, Float64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::Path;
use std::sync::Arc;

/// Samples per second of the test's audio clips.
pub(crate) const RATE: u32 = 16_000;

/// Returns a mono 16-bit WAV of `samples` samples: a tone that depends on `pitch`.
pub(crate) fn wav(samples: u32, pitch: u32) -> Vec<u8> {
    let data_bytes = samples * 2;
    let mut bytes = Vec::with_capacity(44 + data_bytes as usize);
    bytes.extend_from_slice(b"RIFF");
    bytes.extend_from_slice(&(36 + data_bytes).to_le_bytes());
    bytes.extend_from_slice(b"WAVEfmt ");
    bytes.extend_from_slice(&16u32.to_le_bytes());
    for half in [1u16, 1] {
        bytes.extend_from_slice(&half.to_le_bytes()); // PCM, one channel
    }
    bytes.extend_from_slice(&RATE.to_le_bytes());
    bytes.extend_from_slice(&(RATE * 2).to_le_bytes());
    for half in [2u16, 16] {
        bytes.extend_from_slice(&half.to_le_bytes()); // bytes per frame, bits per sample
    }
    bytes.extend_from_slice(b"data");
    bytes.extend_from_slice(&data_bytes.to_le_bytes());
    for i in 0..samples {
        let phase = f64::from(i) * f64::from(100 + pitch) / f64::from(RATE);
        let value = (phase * std::f64::consts::TAU).sin() * 8000.0;
        bytes.extend_from_slice(&(value as i16).to_le_bytes());
    }
    bytes
}

/// Returns the number of samples of audio clip `i`: between 0.1 and 0.6 s.
pub(crate) fn samples_of(i: usize) -> u32 {
    1600 + (i as u32 * 2654) % 8000
}

/// Returns `count` good audio clips of different lengths.
pub(crate) fn wavs(count: usize) -> Vec<Option<Vec<u8>>> {
    (0..count).map(|i| Some(wav(samples_of(i), i as u32 * 7))).collect()
}

/// Returns the words of audio clip `i`: its number's digits as letters, and nothing in every tenth.
pub(crate) fn sentence(i: usize) -> String {
    match i % 10 {
        9 => String::new(),
        _ => i.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect(),
    }
}

/// Writes one file whose row `i` is sample `i`: `audio: struct<bytes, path>`, `sentence`, `duration` in seconds.
pub(crate) fn write_parquet(dir: &Path, clips: &[Option<Vec<u8>>]) {
    let fields = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
    ]);
    let bytes = BinaryArray::from_iter(clips.iter().map(Option::as_deref));
    let paths = StringArray::from_iter_values((0..clips.len()).map(|i| format!("clip_{i}.mp3")));
    let audio = StructArray::new(fields.clone(), vec![Arc::new(bytes), Arc::new(paths)], None);
    let sentences = StringArray::from_iter_values((0..clips.len()).map(sentence));
    let seconds = |i| f64::from(samples_of(i)) / f64::from(RATE);
    let durations = Float64Array::from_iter_values((0..clips.len()).map(seconds));
    let schema = Arc::new(Schema::new(vec![
        Field::new("audio", DataType::Struct(fields), true),
        Field::new("sentence", DataType::Utf8, false),
        Field::new("duration", DataType::Float64, false),
    ]));
    let columns: Vec<ArrayRef> = vec![Arc::new(audio), Arc::new(sentences), Arc::new(durations)];
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(8)).build();
    assert!(files(dir).is_empty(), "one data set per folder");
    let file = std::fs::File::create(dir.join("train.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
