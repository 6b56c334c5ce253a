//! Codecs that are not decoded, in data sets whose headers are not all read for durations.

use super::*;
use arrow::array::{ArrayRef, Float64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Durations, UnsupportedAudio};

/// Opens a data set with a probe that names the codec of audio clips of odd seconds: `X`.
async fn open_naming(at: &Path, durations: Durations) -> (Dataset, u64) {
    let asked = Arc::new(AtomicU64::new(0));
    let (seen, (probe, _)) = (asked.clone(), probe());
    let probe = probe.unsupported(move |head| {
        seen.fetch_add(1, Ordering::Relaxed);
        let seconds = f64::from_le_bytes(head.strip_prefix(&clip(0, 0.0)[..4])?.get(..8)?.try_into().ok()?);
        (seconds % 2.0 == 1.0).then_some("X")
    });
    let options = OpenOptions { audio_probe: Some(probe), durations, ..options(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with(path(at), options).await.unwrap();
    (dataset, asked.load(Ordering::Relaxed))
}

/// Returns column, samples, sampled and the number of named samples.
fn counts(found: &[UnsupportedAudio]) -> Vec<(&str, u64, Option<u64>, usize)> {
    found.iter().map(|one| (one.column.as_str(), one.samples, one.sampled, one.named.len())).collect()
}

#[tokio::test]
async fn they_are_named_where_the_data_set_states_its_durations() {
    let root = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|i| format!("clips/{i}.mp3,{i}\n")).collect();
    (0..40).for_each(|i| put(root.path(), &format!("clips/{i}.mp3"), clip(i, i as f64)));
    put(root.path(), "list.csv", format!("audio,duration\n{rows}"));
    let (dataset, asked) = open_naming(&root.path().join("list.csv"), Durations::Auto).await;
    assert_eq!((asked, counts(&dataset.unsupported_audio())), (40, vec![("audio", 20, None, 20)]));
    let few = dataset.filter("duration IN (0, 2, 39)").await.unwrap();
    assert_eq!(counts(&few.unsupported_audio()), [("audio", 20, None, 1)]);
    let swapped = few.clone().rename(&[("audio", "duration"), ("duration", "audio")]).unwrap();
    let swapped = swapped.with_column("first", "1").await.unwrap();
    assert_eq!(counts(&swapped.unsupported_audio()), [("duration", 20, None, 1)]);
    assert_eq!(swapped.catalog().audio_columns(), ["duration"]);
    assert!(few.filter("duration < 39").await.unwrap().unsupported_audio().is_empty());
}

#[tokio::test]
async fn at_most_a_thousand_audio_clips_of_a_column_are_read() {
    let root = tempfile::tempdir().unwrap();
    let members = (0..2_500).map(|i| (format!("{i:04}.mp3"), clip(i, (i / 3 % 2) as f64)[..64].to_vec()));
    put(root.path(), "x.tar", tar_of(&members.collect::<Vec<_>>()));
    let (dataset, asked) = open_naming(root.path(), Durations::Never).await;
    let found = dataset.unsupported_audio();
    assert_eq!((asked, counts(&found)), (834, vec![("audio", 417, Some(834), 417)]));
    assert!(found[0].named.iter().all(|sample| sample.0 % 3 == 0 && sample.0 / 3 % 2 == 1));
    let notes = dataset.catalog().notes().join("\n");
    assert!(
        notes.contains("of 834 audio clips in 'audio', 417 are of the codec X, which is not decoded"),
        "{notes}"
    );
}

#[tokio::test]
async fn they_are_named_in_each_of_several_audio_columns() {
    let root = tempfile::tempdir().unwrap();
    let members = (0..10).flat_map(|i| {
        let near = (i < 4).then(|| (format!("{i}.near.wav"), clip(i, 1.0)));
        std::iter::once((format!("{i}.mp3"), clip(i, 2.0))).chain(near)
    });
    put(root.path(), "x.tar", tar_of(&members.collect::<Vec<_>>()));
    let (dataset, _) = open_naming(root.path(), Durations::Auto).await;
    assert_eq!(counts(&dataset.unsupported_audio()), [("near_wav", 4, None, 4)]);
}

/// Returns the columns of `batch` and another one of their length.
fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

#[tokio::test]
async fn they_are_named_in_parquet_and_ipc() {
    let plain = audio::hf_audio(0..200); // of 0.5 + i seconds: none is odd
    let odd = with_column(&plain, "wav", audio::hf_audio_of(0..200, |i| i as f64).column(1).clone());
    let stated = with_column(&odd, "duration", Arc::new(Float64Array::from(vec![1.0; 200])));
    assert_eq!(stated.schema().field_with_name("duration").unwrap().data_type(), &DataType::Float64);
    for (name, bytes) in [
        ("x.parquet", durations::parquet_of(&odd)),
        ("y.parquet", durations::parquet_of(&stated)),
        ("x.arrow", durations::stream_of(&stated)),
    ] {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), name, bytes);
        for durations in [Durations::Auto, Durations::Never] {
            let (dataset, _) = open_naming(root.path(), durations).await;
            let found = dataset.unsupported_audio();
            let [wav] = &found[..] else { panic!("{name}: {found:?}") };
            assert_eq!(wav.column, "wav", "{name}");
            let sampled = wav.sampled.unwrap_or(200);
            assert_eq!(wav.samples, sampled / 2, "{name}");
            if name.ends_with("parquet") {
                assert!(sampled >= 100 && sampled % 20 == 0, "{name}: whole row groups, not {sampled}");
            }
        }
    }
}
