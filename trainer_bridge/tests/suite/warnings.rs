//! Audio clips whose end their container cannot prove. They are delivered and counted once, by any decoding process.

use crate::common::open_split;
use crate::fleet::{at, worker};
use feedstock_dataset::{Position, Rank, SampleId, Shuffle, Tail};
use feedstock_ops::{Warning, decode_audio, log_mel, resample};
use feedstock_trainer_bridge::{BatchSize, Pipeline, WarningReport};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLIPS: u64 = 60;
/// Every fifth audio clip is an MP3 that does not state its number of frames.
const SPACING: u64 = 5;
const EPOCHS: u64 = 2;
const BATCH: u64 = 8;

fn is_uncounted(clip: u64) -> bool {
    clip.is_multiple_of(SPACING)
}

fn pipeline(root: &Path) -> Pipeline {
    let clips = root.join("de/clips");
    std::fs::create_dir_all(&clips).unwrap();
    let golden = |name: &str| std::fs::read(format!("../ops/tests/golden/audio/{name}")).unwrap();
    let (counted, uncounted) = (golden("48k_mono_64.mp3"), golden("48k_mono_untagged.mp3"));
    let mut table = "client_id\tpath\tsentence\tup_votes\tdown_votes\tlocale\r\n".to_owned();
    for clip in 0..CLIPS {
        std::fs::write(
            clips.join(format!("{clip:03}.mp3")),
            if is_uncounted(clip) { &uncounted } else { &counted },
        )
        .unwrap();
        table += &format!("speaker\t{clip:03}.mp3\tJa\t2\t0\tde\r\n");
    }
    std::fs::write(root.join("de/train.tsv"), table).unwrap();
    open_split(root, "train")
        .map("audio", [decode_audio(), resample(16_000), log_mel(40)])
        .shuffle(Shuffle::seeded(2))
        .batch(BatchSize::global(BATCH))
        .tail(Tail::Pad) // 4 of 64 rows are padding
        .threads(2)
        .epochs(EPOCHS)
        .deadline(Duration::from_secs(60))
}

/// Returns the reports of two ranks after all epochs. Calls `watch` after each batch of a rank.
fn reports(pipeline: &Pipeline, watch: impl Fn(usize) + Sync) -> Vec<WarningReport> {
    let run = |rank| {
        let mut batches = pipeline.rank(Rank::new(rank, 2)).start().unwrap();
        for epoch in 0..EPOCHS {
            for (nth, batch) in batches.by_ref().enumerate() {
                assert_eq!(batch.unwrap().epoch(), epoch);
                watch(nth);
            }
        }
        batches.warning_report().clone()
    };
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Checks that each uncounted audio clip is reported once per epoch.
fn check(reports: &[WarningReport]) {
    let expected: BTreeSet<(u64, u64)> = (0..EPOCHS)
        .flat_map(|epoch| (0..CLIPS).filter(|clip| is_uncounted(*clip)).map(move |clip| (epoch, clip)))
        .collect();
    let listed: Vec<_> = reports.iter().flat_map(|report| &report.samples).collect();
    let found: BTreeSet<(u64, u64)> = listed.iter().map(|one| (one.epoch, one.sample.0)).collect();
    assert_eq!(found, expected);
    assert_eq!(listed.len(), expected.len(), "padding does not count");
    assert!(listed.iter().all(|one| one.warnings.iter().eq([Warning::EndUnknown])));
    let counted: u64 = reports.iter().map(|report| report.counts[&Warning::EndUnknown]).sum();
    assert_eq!(counted, expected.len() as u64);
}

#[test]
fn an_unproven_end_is_counted_once_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    check(&reports(&pipeline(dir.path()), |_| {}));
}

#[test]
fn warnings_come_from_workers_too() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pipeline(dir.path());
    let alone = reports(&pipeline, |_| {});
    let fleet = [worker(dir.path()), worker(dir.path())];
    let remote = pipeline.workers(at(&fleet));
    assert_eq!(reports(&remote, |_| {}), alone, "in the same order");
    assert!(fleet.iter().map(|worker| worker.status().samples).sum::<u64>() >= CLIPS * EPOCHS);
}

#[test]
fn jobs_that_share_samples_share_their_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let one = worker(dir.path());
    let pipeline = pipeline(dir.path()).workers(at([&one]));
    let under_way = AtomicUsize::new(0);
    // Both jobs reach their second batch before either continues.
    let wait = |batch: usize| {
        let patience = Instant::now() + Duration::from_secs(60);
        if batch == 1 {
            under_way.fetch_add(1, Ordering::Relaxed);
        }
        while batch == 1 && under_way.load(Ordering::Relaxed) < 4 {
            assert!(Instant::now() < patience, "the other job has not begun");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (wait, pipeline) = (&wait, &pipeline);
    std::thread::scope(|scope| {
        let jobs = [0, 1].map(|_| scope.spawn(move || reports(pipeline, wait)));
        jobs.into_iter().for_each(|job| check(&job.join().unwrap()));
    });
    assert!(one.status().shared_samples > 0);
}

#[test]
fn a_loader_that_goes_back_counts_a_sample_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut loader = pipeline(dir.path()).loader(Rank::new(0, 1)).unwrap();
    let start = loader.state();
    let mut seen: BTreeMap<SampleId, usize> = BTreeMap::new();
    for batches in [3, 5] {
        loader.load_state(start.clone()).unwrap();
        for batch in loader.by_ref().take(batches) {
            batch.unwrap().sample_ids().iter().for_each(|id| *seen.entry(*id).or_default() += 1);
        }
    }
    let uncounted = seen.keys().filter(|id| is_uncounted(id.0)).count() as u64;
    assert!(seen.values().any(|times| *times == 2));
    assert_eq!(loader.state().position, Position(5 * BATCH));
    assert_eq!(loader.warning_report().counts[&Warning::EndUnknown], uncounted);
}
