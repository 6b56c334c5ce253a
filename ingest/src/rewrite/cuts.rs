//! Where shards begin, and how large batches are: arithmetic over the catalog, so that every run cuts alike.

use feedstock_dataset::{BlockId, Dataset, Plan, ShuffleKind};

/// Rows of a batch at most: ids and views of 64 Ki rows are 1.5 MiB.
const BATCH_ROWS: u64 = 1 << 16;

/// The first position of every shard, then the number of samples: shards + 1 values, rising.
///
/// In catalog order the blocks' bytes decide where the cuts are; in a shuffled order, where every stretch looks like the
/// whole, shards have equal numbers of samples (± `page`). All but the last have a multiple of `page` samples.
pub(super) fn shard_starts(
    dataset: &Dataset,
    plan: &Plan,
    kind: ShuffleKind,
    (shard_bytes, page): (u64, u64),
) -> Vec<u64> {
    let samples = plan.len();
    let weights = block_weights(dataset, plan);
    let total: u128 = weights.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
    let shards = (total.div_ceil(u128::from(shard_bytes)).max(1)).min(u128::from(samples.div_ceil(page)));
    let shards = u64::try_from(shards).unwrap_or(samples); // at most `samples`
    let mut starts = match kind {
        ShuffleKind::None => by_bytes(&weights, total, shards),
        _ => (0..=shards).map(|shard| shard_start(samples, shards, shard)).collect(),
    };
    spread(&mut starts, samples, page);
    starts
}

/// Moves `starts` to multiples of `page`, so that every shard holds a sample, however uneven the blocks are.
fn spread(starts: &mut [u64], samples: u64, page: u64) {
    let (shards, pages) = (starts.len() as u64 - 1, samples.div_ceil(page));
    let mut least = 0;
    for (shard, start) in (0..=shards).zip(starts.iter_mut()) {
        let at = (*start / page).clamp(least, pages - (shards - shard));
        (*start, least) = (at * page, at + 1);
    }
    if let [first, .., last] = starts {
        (*first, *last) = (0, samples);
    }
}

/// Selected samples of each block, and the bytes that are theirs.
fn block_weights(dataset: &Dataset, plan: &Plan) -> Vec<(u64, u64)> {
    let catalog = dataset.catalog();
    let blocks = u32::try_from(catalog.blocks()).unwrap_or(u32::MAX); // block ids are u32
    (0..blocks)
        .map(|block| {
            let spec = catalog.block(BlockId(block));
            let selected = plan.selected_in(BlockId(block));
            let bytes = u128::from(spec.bytes) * u128::from(selected) / u128::from(spec.samples.max(1));
            (selected, u64::try_from(bytes).unwrap_or(u64::MAX))
        })
        .collect()
}

/// `samples · shard / shards` without overflow.
fn shard_start(samples: u64, shards: u64, shard: u64) -> u64 {
    let start = u128::from(samples) * u128::from(shard) / u128::from(shards);
    u64::try_from(start).unwrap_or(samples)
}

fn by_bytes(weights: &[(u64, u64)], total: u128, shards: u64) -> Vec<u64> {
    let mut starts = Vec::new();
    let mut block = weights.iter().copied().peekable();
    let (mut samples_before, mut bytes_before) = (0u64, 0u128);
    for shard in 0..=shards {
        let target = total * u128::from(shard) / u128::from(shards);
        while let Some(&(samples, bytes)) = block.peek() {
            if bytes_before + u128::from(bytes) > target {
                break;
            }
            samples_before += samples;
            bytes_before += u128::from(bytes);
            block.next();
        }
        let inside = block.peek().map_or(0, |&(samples, bytes)| {
            let part = u128::from(samples) * (target - bytes_before) / u128::from(bytes.max(1));
            u64::try_from(part).unwrap_or(samples)
        });
        starts.push(samples_before + inside);
    }
    starts
}

/// Rows of a batch of about `bytes`, from the catalog's mean.
pub(super) fn mean_batch_rows(dataset: &Dataset, bytes: u64) -> u64 {
    (bytes / mean_sample_bytes(dataset)).clamp(1, BATCH_ROWS)
}

/// Encoded bytes of a sample, on average.
pub(super) fn mean_sample_bytes(dataset: &Dataset) -> u64 {
    let catalog = dataset.catalog();
    let blocks = u32::try_from(catalog.blocks()).unwrap_or(u32::MAX); // block ids are u32
    let total: u64 = (0..blocks).map(|block| catalog.block(BlockId(block)).bytes).sum();
    (total / catalog.samples().max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_follow_the_bytes() {
        let weights = [(10, 1000), (10, 3000), (0, 0), (4, 4000)];
        assert_eq!(by_bytes(&weights, 8000, 4), [0, 13, 20, 22, 24]);
    }

    #[test]
    fn shards_hold_whole_pages() {
        for (mut starts, samples, page, expected) in [
            (vec![0, 13, 20, 22, 24], 24, 1, vec![0, 13, 20, 22, 24]),
            (vec![0, 13, 20, 22, 23], 23, 3, vec![0, 12, 18, 21, 23]),
            (vec![0, 0, 0, 10], 10, 3, vec![0, 3, 6, 10]),
            (vec![0, 10, 10, 10], 10, 3, vec![0, 6, 9, 10]),
            (vec![0, 5], 5, 3, vec![0, 5]),
        ] {
            spread(&mut starts, samples, page);
            assert_eq!(starts, expected);
        }
    }

    proptest! {
        #[test]
        fn every_cut_lies_in_range_and_none_runs_backwards(
            weights in proptest::collection::vec((0u64..50, 0u64..10_000), 1..40), shards in 1u64..30,
        ) {
            let total = weights.iter().map(|w| u128::from(w.1)).sum();
            let samples = weights.iter().map(|w| w.0).sum();
            let starts = by_bytes(&weights, total, shards);
            prop_assert_eq!(starts.len() as u64, shards + 1);
            prop_assert!(starts.windows(2).all(|w| w[0] <= w[1]));
            prop_assert!(starts.iter().all(|&s| s <= samples));
        }
    }
}
