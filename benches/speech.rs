//! Speech compared with its parts, in one run: `cargo bench --profile dev --bench speech`.
//!
//! 2,000 audio clips of 48 kHz mono MP3 at 64 kb/s, 5 s on average, become 16 kHz log-mel of 80 bins. Three
//! contenders take turns round by round, all on two threads: symphonia's decoding alone, the bare chain, and the
//! whole pipeline with audio clips in Parquet on the local disk. The bench prints medians, then the padding of random
//! and of bucketed batches. Last, a separate process prints memory beyond the slots and the byte budget.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use arrow::array::AsArray;
use feedstock::ops::{ChainSpec, RaggedRow};
use feedstock::ops::{SampleSeed, Scratch};
use feedstock::{BatchSize, Dataset, Pipeline, Rank, RawOptions, Shuffle, decode_audio, log_mel, resample};
use feedstock_synth::{CommonVoiceLayout, CommonVoiceOptions, Voice};
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{THREADS, cpu_s, median, memory_bytes, open};
use symphonia::core::audio::{Audio, GenericAudioBufferRef};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::io::MediaSourceStream;

const ROUNDS: usize = 5;
const CLIPS: u64 = 2000;

/// Rows per batch.
const BATCH: u64 = 32;

/// Samples that are shuffled and bucketed together: a quarter of the data, so that every epoch reads it again.
const WINDOW: u64 = 512;

/// Holds the window and blocks at its edges. All audio clips have 80 MB.
const BUDGET_BYTES: u64 = 64 << 20;

const SLOTS: u64 = 4;

/// Seconds of audio per second, and CPU seconds per hour of audio.
struct Case {
    name: &'static str,
    rate: Vec<f64>,
    cpu_per_hour: Vec<f64>,
}

impl Case {
    /// Measures one run over all audio clips.
    fn round(&mut self, seconds: f64, run: impl FnOnce() -> f64) {
        let (begun, cpu) = (Instant::now(), cpu_s());
        let share = run();
        self.rate.push(seconds * share / begun.elapsed().as_secs_f64());
        self.cpu_per_hour.push((cpu_s() - cpu) / (seconds * share) * 3600.0);
    }
}

fn main() {
    if std::env::args().any(|arg| arg == "--memory") {
        let folder = tempfile::tempdir().unwrap();
        return memory(&open(sample_data().to_str().unwrap(), folder.path(), &[]));
    }
    let folder = tempfile::tempdir().unwrap();
    let dataset = open(sample_data().to_str().unwrap(), folder.path(), &[]);
    let (clips, seconds) = clips(&dataset);
    println!(
        "{} audio clips, {:.2} h, mean {:.2} s",
        clips.len(),
        seconds / 3600.0,
        seconds / clips.len() as f64
    );
    let mut cases = ["symphonia's decoding alone", "bare chain", "pipeline, local files"].map(|name| Case {
        name,
        rate: vec![],
        cpu_per_hour: vec![],
    });
    for _ in 0..ROUNDS {
        cases[0].round(seconds, || decode_all(&clips));
        cases[1].round(seconds, || chain_all(&clips));
        epoch(&dataset, seconds, &mut cases[2]);
    }
    report(&mut cases);
    padding(&dataset);
    drop((clips, dataset));
    let own = std::env::current_exe().unwrap();
    assert!(std::process::Command::new(own).arg("--memory").status().unwrap().success());
}

fn report(cases: &mut [Case; 3]) {
    println!("\n{:<28}{:>14}{:>16}{:>14}", "case, two threads", "× real time", "5 s clips/s", "CPU-s/hour");
    let rates = cases.each_mut().map(|case| median(&mut case.rate));
    for (case, rate) in cases.iter_mut().zip(rates) {
        let cpu = median(&mut case.cpu_per_hour);
        println!("{:<28}{rate:>14.0}{:>16.0}{cpu:>14.2}", case.name, rate / 5.0);
    }
    println!("pipeline / bare chain: {:.2} (goal 0.90)", rates[2] / rates[1]);
    println!("bare chain / symphonia alone: {:.2} (goal 1.00)", rates[1] / rates[0]);
}

/// Runs `work` on each audio clip, with two threads and one state per thread. Returns the share that was done, which
/// is all.
fn by_threads<S>(
    clips: &[Vec<u8>],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &[u8]) + Sync,
) -> f64 {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut state = state();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(clip) = clips.get(index) else { break };
                    work(&mut state, index, clip);
                }
            });
        }
    });
    1.0
}

/// Decodes as symphonia's documentation shows, into one buffer per thread. Samples are copied plane by plane: this
/// file is compiled without optimizations, the libraries with them.
fn decode_all(clips: &[Vec<u8>]) -> f64 {
    by_threads(clips, Vec::<f32>::new, |samples, _, clip| {
        let stream = MediaSourceStream::new(Box::new(Cursor::new(clip.to_vec())), Default::default());
        let probe = symphonia::default::get_probe();
        let mut reader =
            probe.probe(&Default::default(), stream, Default::default(), Default::default()).unwrap();
        let Some(CodecParameters::Audio(parameters)) = reader.tracks()[0].codec_params.clone() else {
            panic!("no audio track");
        };
        let codecs = symphonia::default::get_codecs();
        let mut decoder = codecs.make_audio_decoder(&parameters, &Default::default()).unwrap();
        samples.clear();
        while let Ok(Some(packet)) = reader.next_packet() {
            let GenericAudioBufferRef::F32(decoded) = decoder.decode(&packet).unwrap() else {
                panic!("MP3 decodes to f32");
            };
            samples.extend_from_slice(decoded.plane(0).unwrap());
        }
    })
}

fn chain() -> ChainSpec {
    ChainSpec::from([decode_audio(), resample(16_000), log_mel(80)])
}

/// Runs the chain from memory to one row per thread.
fn chain_all(clips: &[Vec<u8>]) -> f64 {
    let chain = chain().compile().unwrap();
    let state = || (Scratch::new(), RaggedRow::new());
    by_threads(clips, state, |(scratch, row), index, clip| {
        chain.apply_ragged(clip, SampleSeed::new(7, 0, index as u64), scratch, row).unwrap();
    })
}

fn pipeline(dataset: &Dataset) -> Pipeline {
    dataset
        .clone()
        .map("audio", chain())
        .shuffle(Shuffle::seeded(7).window(WINDOW))
        .batch(BatchSize::per_rank(BATCH))
        .threads(THREADS)
        .budget_bytes(BUDGET_BYTES)
}

fn bucketed(dataset: &Dataset) -> Pipeline {
    pipeline(dataset).bucket_by("duration").bucket_window(WINDOW)
}

/// Measures the second of two epochs, without warm-up.
fn epoch(dataset: &Dataset, seconds: f64, case: &mut Case) {
    let mut ranks = bucketed(dataset).rank(Rank::new(0, 1)).start().unwrap();
    ranks.by_ref().for_each(|batch| drop(batch.unwrap()));
    case.round(seconds, || {
        let heard: f64 = ranks.by_ref().map(|batch| duration(&batch.unwrap())).sum();
        heard / seconds
    });
    ranks.ledger().check().unwrap();
}

fn duration(batch: &feedstock::Batch) -> f64 {
    let durations = batch.column("duration").unwrap();
    durations.as_primitive::<arrow::datatypes::Float64Type>().values().iter().sum()
}

/// Prints padding as planned, and as measured in batches.
fn padding(dataset: &Dataset) {
    println!();
    for (name, goal, pipeline) in
        [("random", "over 30", pipeline(dataset)), ("bucketed", "under 10", bucketed(dataset))]
    {
        let mut ranks = pipeline.epochs(1).rank(Rank::new(0, 1)).start().unwrap();
        let (mut frames, mut filled) = (0, 0);
        for batch in &mut ranks {
            let batch = batch.unwrap();
            let lengths = batch["audio"].lengths().unwrap();
            frames += batch["audio"].shape()[1] * lengths.len();
            filled += lengths.iter().sum::<usize>();
        }
        ranks.ledger().check().unwrap();
        let share = 100.0 * (1.0 - filled as f64 / frames as f64);
        println!("{name} batches of {BATCH}: {share:.1} % of the frames are padding (goal {goal} %)");
    }
}

/// Measures resident memory over epochs and with a consumer that sleeps. Each slot grows to the largest batch.
fn memory(dataset: &Dataset) {
    const EPOCHS: u64 = 4;
    println!(
        "\nbudget {} MiB, {SLOTS} slots; {:.0} MiB resident before",
        BUDGET_BYTES >> 20,
        mib(memory_bytes("VmRSS"))
    );
    let mut ranks = bucketed(dataset).epochs(EPOCHS + 1).rank(Rank::new(0, 1)).start().unwrap();
    let mut largest = 0;
    for epoch in 0..=EPOCHS {
        if epoch == EPOCHS {
            std::thread::sleep(Duration::from_secs(3)); // the consumer sleeps
        } else {
            for batch in &mut ranks {
                largest = largest.max(batch.unwrap()["audio"].bytes().len() as u64);
            }
        }
        let (now, peak) = (memory_bytes("VmRSS"), memory_bytes("VmHWM"));
        let beyond = peak.saturating_sub(BUDGET_BYTES + SLOTS * largest);
        let what =
            if epoch == EPOCHS { "consumer asleep".to_owned() } else { format!("after epoch {epoch}") };
        println!(
            "{what:<18} resident {:>4.0} MiB, peak {:>4.0} MiB, beyond budget and slots of {:.1} MiB {:>3.0} MiB",
            mib(now),
            mib(peak),
            mib(largest),
            mib(beyond)
        );
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the encoded audio clips, and their duration in seconds.
fn clips(dataset: &Dataset) -> (Vec<Vec<u8>>, f64) {
    let (mut clips, mut seconds) = (Vec::new(), 0.0);
    for batch in dataset.record_batches(&RawOptions::default()).unwrap() {
        let batch = batch.unwrap();
        let audio = batch.column_by_name("audio").unwrap().as_binary_view().clone();
        clips.extend(audio.iter().map(|bytes| bytes.unwrap().to_vec()));
        let durations = batch.column_by_name("duration").unwrap();
        seconds += durations.as_primitive::<arrow::datatypes::Float64Type>().values().iter().sum::<f64>();
    }
    (clips, seconds)
}

/// Makes 2,000 audio clips in Parquet with the formant synthesiser, once, in the temporary folder.
fn sample_data() -> PathBuf {
    let dir = std::env::temp_dir().join("feedstock-bench-common-voice-2000");
    if !dir.join("complete").exists() {
        println!("making {CLIPS} audio clips in {}", dir.display());
        let options = CommonVoiceOptions {
            samples: CLIPS,
            layout: CommonVoiceLayout::Parquet,
            voice: Voice::Formant,
            overwrite: true,
            ..Default::default()
        };
        options.write(&dir, &mut |_| ()).unwrap();
        std::fs::write(dir.join("complete"), "").unwrap();
    }
    dir.join("data")
}
