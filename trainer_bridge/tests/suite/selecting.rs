//! Selected samples: delivered once on any number of ranks, resumed, and decoded by workers that open the same selection.

use crate::common::{Delivered, open, pipeline, run_epochs, synth};
use crate::fleet::{at, batches, worker};
use feedstock_dataset::{Rank, SampleId, Shuffle, Tail};
use feedstock_trainer_bridge::{Dataset, ErrorKind};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const SAMPLES: u64 = 203;

/// Data sets with different selections, and the ids that each keeps, as far as they are known without a hash.
fn selected(dir: &Path) -> Vec<(Dataset, Option<BTreeSet<u64>>)> {
    let all = || open(dir);
    let scattered: Vec<SampleId> = (0..SAMPLES).filter(|id| id % 3 == 1).map(SampleId).collect();
    let mut parts = all().skip(3).unwrap().split_by("label", &[("train", 0.6), ("val", 0.4)], 5).unwrap();
    let (train, val) = (parts.remove(0).1, parts.remove(0).1);
    assert_eq!(train.len() + val.len(), SAMPLES - 3);
    vec![
        (all().skip(40).unwrap().take(101).unwrap(), Some((40..141).collect())),
        (all().filter("sample_id >= 7").unwrap().take(90).unwrap(), Some((7..97).collect())),
        (all().select(scattered.clone()).unwrap(), Some(scattered.iter().map(|id| id.0).collect())),
        (train, None),
    ]
}

#[test]
fn selections_are_delivered_once_on_any_number_of_ranks_and_by_workers() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    for (dataset, ids) in selected(dir.path()) {
        let samples = dataset.len();
        let padded = pipeline(dataset, 24).tail(Tail::Pad).epochs(2).deadline(Duration::from_secs(30));
        let alone = run_epochs(&padded, 1, 2);
        alone.assert_once_each();
        assert_eq!(alone.samples() as u64, 2 * samples);
        if let Some(ids) = ids {
            let delivered: BTreeSet<u64> = alone.0.keys().map(|(_, sample)| *sample).collect();
            assert_eq!(delivered, ids);
        }
        assert_eq!(run_epochs(&padded, 3, 2), alone);
        let workers = [worker(dir.path()), worker(dir.path())];
        assert_eq!(batches(&padded.clone().workers(at(&workers)), 2), batches(&padded, 2));
        let decoded: u64 = workers.iter().map(|worker| worker.status().samples).sum();
        assert!(decoded >= 2 * samples, "{decoded} samples came from workers");
    }
}

#[test]
fn a_selection_resumes_with_other_ranks_and_another_selection_does_not() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    for (dataset, _) in selected(dir.path()) {
        let whole = run_epochs(&pipeline(dataset.clone(), 1), 1, 1);
        let mut delivered = Delivered::default();
        let mut first = pipeline(dataset.clone(), 16).rank(Rank::new(0, 1)).start().unwrap();
        for _ in 0..3 {
            delivered.add(&first.next().unwrap().unwrap());
        }
        let cursor = first.state();
        drop(first);
        for rank in 0..3 {
            let second = pipeline(dataset.clone(), 9).tail(Tail::Pad);
            let mut ranks = second.rank(Rank::new(rank, 3)).resume(cursor.clone()).start().unwrap();
            delivered.drain(&mut ranks);
            ranks.ledger().check().unwrap();
        }
        assert_eq!(delivered, whole);
        let mut other = pipeline(dataset.take(50).unwrap(), 16).loader(Rank::new(0, 1)).unwrap();
        let refused = other.load_state(cursor).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadConfig);
        assert!(refused.to_string().contains("another order: its selection is "), "{refused}");
    }
}

#[test]
fn weights_deliver_each_draw_once_with_its_own_augmentation() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let weighted = || open(dir.path()).take(100).unwrap().weights("sample_id % 4", Some(600)).unwrap();
    for shuffle in [Shuffle::seeded(7), Shuffle::full(7), Shuffle::seeded(7).window(64).piece(3)] {
        let of = |batch| {
            let padded = pipeline(weighted(), batch).shuffle(shuffle.clone()).tail(Tail::Pad);
            padded.epochs(2).deadline(Duration::from_secs(30))
        };
        let alone = run_epochs(&of(32), 1, 2);
        let draws: usize = alone.0.values().map(Vec::len).sum();
        assert_eq!((draws, alone.samples()), (2 * 600, 2 * 75));
        for ((_, sample), digests) in &alone.0 {
            assert_eq!(digests.len() as u64, 4 * (sample % 4), "sample {sample}");
            let different: BTreeSet<&u64> = digests.iter().collect();
            assert!(different.len() + 2 >= digests.len(), "sample {sample} looks the same in several draws");
        }
        let sorted = |mut delivered: Delivered| {
            delivered.0.values_mut().for_each(|digests| digests.sort_unstable());
            delivered
        };
        let alone = sorted(alone);
        assert_eq!(sorted(run_epochs(&of(32), 3, 2)), alone);
        let workers = [worker(dir.path()), worker(dir.path())];
        assert_eq!(batches(&of(32).workers(at(&workers)), 2), batches(&of(32), 2));

        let mut resumed = Delivered::default();
        let mut first = of(20).rank(Rank::new(0, 1)).start().unwrap();
        for _ in 0..7 {
            resumed.add(&first.next().unwrap().unwrap());
        }
        let cursor = first.state();
        drop(first);
        for rank in 0..2 {
            let mut ranks = of(24).rank(Rank::new(rank, 2)).resume(cursor.clone()).start().unwrap();
            resumed.drain(&mut ranks);
            ranks.ledger().check().unwrap();
        }
        let mut whole = alone;
        whole.0.retain(|(epoch, _), _| *epoch == 0);
        assert_eq!(sorted(resumed), whole);
    }
}
