//! Batches of variable-length rows: waveforms, features, tokens.

use crate::common::open;
use crate::common::speech::{RATE, samples_of, sentence, wavs, write_parquet};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedstock_dataset::{Rank, SampleId, Shuffle, Stop, Tail};
use feedstock_ops::{
    ChainSpec, Need, Noise, RaggedRow, Resources, SampleSeed, Scratch, add_noise, decode_audio, log_mel,
    pad_seconds, random_crop_seconds, resample, reverb, tokenize, tokenize_chars, volume,
};
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, ErrorKind, OnError, Pipeline};
use std::collections::BTreeMap;

const CLIPS: usize = 40;

fn features() -> ChainSpec {
    [decode_audio(), resample(RATE), log_mel(20)].into()
}

fn clips(bad: &[(usize, Option<Vec<u8>>)]) -> (tempfile::TempDir, Dataset) {
    let dir = tempfile::tempdir().unwrap();
    let mut clips = wavs(CLIPS);
    for (row, clip) in bad {
        clips[*row] = clip.clone();
    }
    write_parquet(dir.path(), &clips);
    let dataset = open(dir.path());
    (dir, dataset)
}

fn pipeline(dataset: Dataset) -> Pipeline {
    dataset
        .map_as("audio", "wave", [decode_audio(), resample(RATE)])
        .map_as("audio", "features", features())
        .map_as("sentence", "tokens", [tokenize_chars("abcdefghij")])
        .pad_value("tokens", -100.0)
        .shuffle(Shuffle::seeded(3))
        .batch(BatchSize::global(8))
        .threads(2)
        .epochs(1)
}

fn run(pipeline: &Pipeline, world_size: u32) -> Vec<Batch> {
    let ranks = (0..world_size).flat_map(|rank| {
        let mut ranks = pipeline.clone().slots(64).rank(Rank::new(rank, world_size)).start().unwrap();
        let batches: Vec<Batch> = ranks.by_ref().map(|batch| batch.unwrap()).collect();
        ranks.ledger().check().unwrap();
        batches
    });
    ranks.collect()
}

/// Returns the length and bytes that the chain makes of one audio clip alone.
fn alone(chain: &ChainSpec, encoded: &[u8]) -> (usize, Vec<u8>) {
    let mut row = RaggedRow::new();
    let seed = SampleSeed::new(3, 0, 0);
    chain.compile().unwrap().apply_ragged(encoded, seed, &mut Scratch::new(), &mut row).unwrap();
    (row.length(), row.bytes().to_vec())
}

#[test]
fn rows_are_padded_to_the_longest_of_their_batch_and_nothing_else_changes() {
    let (_dir, dataset) = clips(&[]);
    let encoded = wavs(CLIPS);
    let mut seen = BTreeMap::new();
    for batch in run(&pipeline(dataset), 2) {
        let longest = batch["features"].lengths().unwrap().iter().max().copied().unwrap();
        assert_eq!(batch["features"].shape(), [batch.len(), longest, 20]);
        assert_eq!(batch["features"].padded_axis(), Some(1));
        for (row, SampleId(id)) in batch.sample_ids().iter().enumerate() {
            let i = usize::try_from(*id).unwrap();
            let (length, bytes) = alone(&features(), encoded[i].as_deref().unwrap());
            let padded = batch["features"].row(row);
            assert_eq!(batch["features"].lengths().unwrap()[row], length);
            assert_eq!(&padded[..bytes.len()], bytes);
            assert!(padded[bytes.len()..].iter().all(|byte| *byte == 0), "padding is zero by default");
            assert_eq!(batch["wave"].lengths().unwrap()[row], samples_of(i) as usize);
            let tokens = &batch["tokens"].as_i64().unwrap()[row * batch["tokens"].shape()[1]..]
                [..batch["tokens"].shape()[1]];
            let expected: Vec<i64> = sentence(i).bytes().map(|letter| i64::from(letter - b'a')).collect();
            assert_eq!(&tokens[..expected.len()], expected);
            assert!(tokens[expected.len()..].iter().all(|token| *token == -100));
            let lengths = batch.column("tokens_length").unwrap().as_primitive::<Int64Type>();
            assert_eq!(lengths.value(row), expected.len() as i64);
            let texts = batch.column("sentence").unwrap();
            assert_eq!(text(texts, row), sentence(i), "text that was mapped under another name stays");
            assert!(batch.column("audio").is_none(), "mapped encoded bytes do not");
            *seen.entry(*id).or_insert(0) += 1;
        }
        let arrow = batch.to_record_batch().unwrap();
        assert_eq!(arrow.num_rows(), batch.len());
        assert!(arrow.column_by_name("features").is_some() && arrow.column_by_name("wave_length").is_some());
    }
    assert_eq!(seen.len(), CLIPS);
    assert!(seen.values().all(|count| *count == 1));
}

fn text(column: &arrow::array::ArrayRef, row: usize) -> String {
    match column.as_string_view_opt() {
        Some(texts) => texts.value(row).to_owned(),
        None => column.as_string::<i32>().value(row).to_owned(),
    }
}

#[test]
fn slots_are_reused_with_batches_of_any_length() {
    let (_dir, dataset) = clips(&[]);
    let mut ranks = pipeline(dataset).epochs(3).slots(2).rank(Rank::new(0, 1)).start().unwrap();
    let (mut epochs, mut total) = (0, 0);
    while epochs < 3 {
        for batch in ranks.by_ref() {
            let batch = batch.unwrap();
            let values = batch["wave"].as_f32().unwrap();
            let width = batch["wave"].shape()[1];
            for (row, length) in batch["wave"].lengths().unwrap().iter().enumerate() {
                let row = &values[row * width..][..width];
                assert!(row[..*length].iter().any(|value| value.abs() > 0.1));
                assert!(
                    row[*length..].iter().all(|value| *value == 0.0),
                    "nothing of an earlier batch is left"
                );
                total += 1;
            }
        }
        epochs += 1;
    }
    assert_eq!(total, 3 * CLIPS);
    assert!(ranks.padding_share("wave").unwrap() > 0.05);
    assert!(ranks.padding_share("image").is_none());
}

#[test]
fn a_bad_clip_is_raised_by_name_or_replaced_whole() {
    let bad = b"no audio at all, only text that calls itself a voice".to_vec();
    let (_dir, dataset) = clips(&[(11, Some(bad)), (23, None)]);
    let failed = |dataset: Dataset| {
        let mut ranks = pipeline(dataset).rank(Rank::new(0, 1)).start().unwrap();
        ranks.find_map(Result::err).unwrap()
    };
    let error = failed(dataset.clone());
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.to_string().contains("train.parquet row "), "{error}");

    let skip = OnError::Skip { max_fraction: 0.1 };
    let mut replaced = Vec::new();
    for batch in run(&pipeline(dataset.clone()).on_error(skip), 1) {
        for row in (0..batch.len()).filter(|row| !batch.valid()[*row]) {
            let twin = (0..batch.len()).find(|other| {
                batch.valid()[*other]
                    && ["wave", "features"]
                        .iter()
                        .all(|name| batch[*name].row(*other) == batch[*name].row(row))
            });
            let twin = twin.expect("the row of a bad audio clip is the copy of a good one");
            assert_eq!(batch["wave"].lengths().unwrap()[twin], batch["wave"].lengths().unwrap()[row]);
            replaced.push(batch.sample_ids()[row].0);
        }
    }
    replaced.sort_unstable();
    assert_eq!(replaced, [11, 23]);
}

#[test]
fn a_batch_of_bad_clips_alone_is_one_step_of_padding() {
    let all_bad: Vec<_> = (0..CLIPS).map(|i| (i, Some(b"nothing".to_vec()))).collect();
    let (_dir, dataset) = clips(&all_bad);
    let batches = run(&pipeline(dataset).on_error(OnError::Skip { max_fraction: 1.0 }), 1);
    assert_eq!(batches.len(), CLIPS / 8);
    for batch in batches {
        assert_eq!(batch["wave"].shape(), [8, 1]);
        assert!(batch["wave"].lengths().unwrap().iter().all(|length| *length == 0));
        assert!(batch["wave"].as_f32().unwrap().iter().all(|value| *value == 0.0));
        assert!(batch.valid().iter().all(|valid| !valid));
    }
}

#[test]
fn clips_cropped_and_padded_to_seconds_are_fixed() {
    let (_dir, dataset) = clips(&[]);
    let pipeline = dataset
        .map("audio", [decode_audio(), resample(RATE), random_crop_seconds(0.25), pad_seconds(0.25)])
        .batch(BatchSize::global(8))
        .epochs(1);
    for batch in run(&pipeline, 1) {
        assert_eq!(batch["audio"].shape(), [8, 4000]);
        assert_eq!(batch["audio"].lengths(), None);
        assert!(batch.column("audio_length").is_none());
    }
}

#[test]
fn maps_that_cannot_be_are_refused_before_anything_runs() {
    let (_dir, dataset) = clips(&[]);
    let refused = |pipeline: Pipeline| {
        let error = pipeline.rank(Rank::new(0, 1)).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        error.to_string()
    };
    let data = || dataset.clone();
    let message = refused(data().map("duration", [tokenize_chars("ab")]));
    assert!(
        message.contains("'duration'") && message.contains("bytes in: audio") && message.contains("sentence"),
        "{message}"
    );
    assert!(
        refused(data().map("audio", features()).map("audio", features()))
            .contains("two maps have the output 'audio'")
    );
    let clash =
        data().map_as("sentence", "x", [tokenize_chars("ab")]).map_as("audio", "x_length", features());
    assert!(refused(clash).contains("'x_length'"));
    let fraction = data().map("sentence", [tokenize_chars("ab")]).pad_value("sentence", 0.5);
    assert!(refused(fraction).contains("0.5 is not a value of I64"));
    let missing = data().map("sentence", [tokenize("/nowhere/tokenizer.json")]);
    let error = missing.rank(Rank::new(0, 1)).start().unwrap_err();
    assert!(error.to_string().contains("/nowhere/tokenizer.json"), "{error}");
}

#[test]
fn noise_is_read_from_another_data_set_or_given() {
    let (_dir, dataset) = clips(&[]);
    let (noise_dir, noise) = clips(&[]);
    drop(noise);
    let uri = noise_dir.path().to_str().unwrap().to_owned();
    let chain: ChainSpec = [decode_audio(), resample(8000), add_noise(&uri, [5.0, 10.0])].into();
    assert_eq!(chain.needs(), [Need::Noise { uri: uri.clone(), sample_rate: 8000 }]);
    let pipeline = |dataset: &Dataset| {
        dataset.clone().map("audio", chain.clone()).batch(BatchSize::global(8)).seed(1).epochs(1)
    };
    let noisy = run(&pipeline(&dataset), 1);
    let clean = run(
        &dataset.clone().map("audio", [decode_audio(), resample(8000)]).batch(BatchSize::global(8)).epochs(1),
        1,
    );
    let power = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>();
    for (noisy, clean) in noisy.iter().zip(&clean) {
        let (noisy, clean) = (noisy["audio"].as_f32().unwrap(), clean["audio"].as_f32().unwrap());
        let difference: Vec<f32> = noisy.iter().zip(clean).map(|(a, b)| a - b).collect();
        let snr_db = 10.0 * (power(clean) / power(&difference)).log10();
        assert!((4.0..11.0).contains(&snr_db), "{snr_db} dB");
    }
    let noise = Noise { sample_rate: 16_000, clips: vec![vec![0.5; 16_000]] };
    let given = pipeline(&dataset).resources(Resources::new().with_noise(&uri, noise));
    let error = given.rank(Rank::new(0, 1)).start().unwrap_err().to_string();
    assert!(error.contains("16000 Hz") && error.contains("8000 Hz"), "{error}");
}

/// Returns a WAV of 8 kHz.
fn response(samples: &[i16]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let (len, head) = (data.len() as u32, [16, 0x0001_0001, 8000, 16_000, 0x0010_0002].map(u32::to_le_bytes));
    let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
    [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
}

#[test]
fn impulse_responses_are_read_from_a_folder_and_a_bad_one_is_named() {
    let (_dir, dataset) = clips(&[]);
    let folder = |files: &[(&str, Vec<u8>)]| {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        folder
    };
    let map =
        |ops: ChainSpec| dataset.clone().map("audio", ops).batch(BatchSize::global(8)).seed(1).epochs(1);
    let reverberated = |folder: &tempfile::TempDir| {
        map([decode_audio(), resample(8000), reverb(folder.path().to_str().unwrap(), 1.0)].into())
    };
    let mut hall = vec![0; 400];
    (hall[20], hall[60]) = (20_000, 10_000);
    let rooms = folder(&[("hall.wav", response(&hall))]);
    let dry = run(&map([decode_audio(), resample(8000)].into()), 1);
    for (wet, dry) in run(&reverberated(&rooms), 1).iter().zip(&dry) {
        let (wet, dry) = (wet["audio"].as_f32().unwrap(), dry["audio"].as_f32().unwrap());
        assert_eq!(wet.len(), dry.len());
        assert!(wet.iter().zip(dry).any(|(a, b)| (a - b).abs() > 1e-3), "nothing changed");
    }
    let rooms = folder(&[("hall.wav", response(&hall)), ("silent.wav", response(&[0; 50]))]);
    let error = reverberated(&rooms).rank(Rank::new(0, 1)).start().unwrap_err().to_string();
    for words in ["reverb: ", "silent.wav", "the impulse response is silent"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_filter_by_duration_needs_no_decoding() {
    let (_dir, dataset) = clips(&[(5, Some(b"rubbish".to_vec()))]);
    let short = dataset.filter("duration < 0.2").unwrap();
    let expected = (0..CLIPS).filter(|i| samples_of(*i) < 3200).count() as u64;
    assert_eq!(short.len(), expected);
}

/// Returns the samples of each step, over all ranks: by position, the ids in row order.
fn steps(pipeline: &Pipeline, world_size: u32) -> BTreeMap<u64, Vec<u64>> {
    let mut steps: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for batch in run(pipeline, world_size) {
        steps.entry(batch.position().0).or_default().extend(batch.sample_ids().iter().map(|id| id.0));
    }
    steps
}

#[test]
fn buckets_hold_like_lengths_and_are_the_same_for_any_world_size() {
    let (_dir, dataset) = clips(&[]);
    let base =
        dataset.map("audio", features()).shuffle(Shuffle::seeded(5)).batch(BatchSize::global(8)).epochs(1);
    let bucketed = base.clone().bucket_by("duration");
    let share = |pipeline: &Pipeline| {
        let mut ranks = pipeline.rank(Rank::new(0, 1)).start().unwrap();
        assert_eq!(ranks.by_ref().map(|batch| batch.unwrap().len()).sum::<usize>(), CLIPS);
        ranks.padding_share("audio").unwrap()
    };
    assert!(share(&bucketed) < share(&base) / 2.0, "{} against {}", share(&bucketed), share(&base));
    let alone = steps(&bucketed, 1);
    assert_eq!(steps(&bucketed, 3), alone);
    let mut all: Vec<u64> = alone.into_values().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (0..CLIPS as u64).collect::<Vec<_>>());
}

#[test]
fn a_total_bounds_every_batch_and_resumes_with_another_world_size_and_total() {
    let (_dir, dataset) = clips(&[]);
    let with = |total: f64| {
        let data = dataset.clone().map("audio", [decode_audio()]).shuffle(Shuffle::seeded(5));
        data.bucket_by("duration").batch(BatchSize::global_total(total)).epochs(1).slots(64)
    };
    let mut ranks = with(3.0).rank(Rank::new(0, 1)).start().unwrap();
    let expected = ranks.steps_per_epoch();
    let mut seen: Vec<u64> = Vec::new();
    for batch in ranks.by_ref().take(3) {
        let batch = batch.unwrap();
        let shape = batch["audio"].shape();
        assert!(shape[0] * shape[1] <= 3 * RATE as usize, "{shape:?}");
        seen.extend(batch.sample_ids().iter().map(|id| id.0));
    }
    assert_eq!(ranks.steps_left(), expected - 3);
    let cursor = ranks.state();
    let grown: Vec<usize> = {
        let rest = with(9.0).rank(Rank::new(0, 1)).resume(cursor.clone()).start().unwrap();
        rest.map(|batch| batch.unwrap()["audio"].shape().iter().product()).collect()
    };
    assert!(grown.iter().all(|cells| *cells <= 9 * RATE as usize), "{grown:?}");
    assert!(grown.iter().any(|cells| *cells > 4 * RATE as usize), "a larger total is used: {grown:?}");
    for rank in 0..2 {
        let mut rest = with(2.0).rank(Rank::new(rank, 2)).resume(cursor.clone()).start().unwrap();
        for batch in rest.by_ref() {
            let batch = batch.unwrap();
            assert!(batch["audio"].shape()[0] * batch["audio"].shape()[1] <= 2 * RATE as usize);
            seen.extend(batch.sample_ids().iter().map(|id| id.0));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..CLIPS as u64).collect::<Vec<_>>(), "every sample once, across the change");
}

#[test]
fn a_clip_longer_than_a_batch_is_named() {
    let (_dir, dataset) = clips(&[]);
    let longest = (0..CLIPS).max_by_key(|i| samples_of(*i)).unwrap();
    let refused = |size| {
        let pipeline = dataset.clone().map("audio", [decode_audio()]).bucket_by("duration").batch(size);
        let error = pipeline.rank(Rank::new(0, 2)).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        error.to_string()
    };
    for size in [BatchSize::per_rank_total(0.2), BatchSize::global_total(0.8)] {
        let message = refused(size);
        assert!(message.contains(&format!("train.parquet row {longest}")), "{message}");
    }
    let unknown = dataset.clone().map("audio", [decode_audio()]).batch(BatchSize::global_total(9.0));
    assert!(unknown.rank(Rank::new(0, 1)).start().unwrap_err().to_string().contains("lengths"));
    let message = dataset.map("audio", [decode_audio()]).bucket_by("sentence").rank(Rank::new(0, 1)).start();
    assert!(message.unwrap_err().to_string().contains("sentence"));
}

#[test]
fn a_total_for_each_rank_bounds_each_ranks_batches() {
    let (_dir, dataset) = clips(&[]);
    let data = dataset.map("audio", [decode_audio()]).shuffle(Shuffle::seeded(1)).bucket_by("duration");
    // Two audio clips of 0.59 s fit in 1.19 s, and three ranks must not get seven of them.
    for (total, world_size) in [(0.6, 2), (1.19, 3), (0.9, 5)] {
        let pipeline = data.clone().batch(BatchSize::per_rank_total(total)).epochs(1).tail(Tail::Pad);
        for batch in run(&pipeline, world_size) {
            let shape = batch["audio"].shape();
            assert!((shape[0] * shape[1]) as f64 <= total * f64::from(RATE), "{shape:?} for {total} s");
        }
    }
}

#[test]
fn a_mix_repeats_samples_but_not_their_augmentation() {
    let (_dir, large) = clips(&[]);
    let small = tempfile::tempdir().unwrap();
    write_parquet(small.path(), &wavs(7));
    let mix = || {
        let parts = vec![(large.clone(), 0.5), (open(small.path()), 0.5)];
        let data = Dataset::mix(parts, Stop::AllExhausted).unwrap();
        let ops = [decode_audio(), resample(8000), volume([-20.0, 0.0])];
        data.map("audio", ops)
            .shuffle(Shuffle::seeded(4))
            .bucket_by("duration")
            .batch(BatchSize::global(6))
            .epochs(1)
            .tail(Tail::Pad)
    };
    let delivered = |world_size| {
        let mut rows: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for batch in run(&mix(), world_size) {
            for (row, id) in batch.sample_ids().iter().enumerate().filter(|(row, _)| batch.valid()[*row]) {
                let length = batch["audio"].lengths().unwrap()[row] * 4;
                rows.entry(id.0).or_default().push(batch["audio"].row(row)[..length].to_vec());
            }
        }
        rows.values_mut().for_each(|all| all.sort());
        rows
    };
    let alone = delivered(1);
    assert_eq!(alone.len(), CLIPS + 7);
    for (id, rows) in &alone {
        let times = if *id < CLIPS as u64 { 1..2 } else { 5..8 };
        assert!(times.contains(&rows.len()), "sample {id} came {} times", rows.len());
        assert!(rows.windows(2).all(|two| two[0] != two[1]), "sample {id} came twice with the same volume");
    }
    assert_eq!(delivered(3), alone, "the same for any world size");

    let mut first = mix().rank(Rank::new(0, 1)).start().unwrap();
    let mut resumed: Vec<u64> = Vec::new();
    let ids = |batch: &Batch| {
        batch
            .sample_ids()
            .iter()
            .zip(batch.valid())
            .filter(|(_, valid)| **valid)
            .map(|(id, _)| id.0)
            .collect::<Vec<_>>()
    };
    first.by_ref().take(5).for_each(|batch| resumed.extend(ids(&batch.unwrap())));
    let rest = mix().rank(Rank::new(0, 1)).resume(first.state()).start().unwrap();
    rest.for_each(|batch| resumed.extend(ids(&batch.unwrap())));
    resumed.sort_unstable();
    let all: Vec<u64> = alone.iter().flat_map(|(id, rows)| vec![*id; rows.len()]).collect();
    assert_eq!(resumed, all, "a cursor inside a repeated pass");
}
