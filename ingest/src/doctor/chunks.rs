//! Which samples are read, block by block, and the pieces of work that the threads take.

use super::column::ColumnReport;
use super::decoding::Decoding;
use feedstock_dataset::{Block, BlockId, Catalog, EpochOrder, Position, SampleId};
use std::sync::Arc;

/// Consecutive samples of a run and of a chunk: about one block of images, and enough to see whether labels are sorted.
const RUN: u64 = 64;
/// [`RUN`], as a length of slices.
const CHUNK_ROWS: usize = 64;

/// Rows of one block that one thread examines.
pub(super) struct Chunk {
    pub(super) block: Arc<Block>,
    pub(super) rows: Vec<usize>,
}

impl Chunk {
    /// Decodes every payload column of every row.
    pub(super) fn examine(
        &self,
        decoding: &mut Decoding,
        catalog: &Catalog,
        listed: usize,
        columns: &mut [ColumnReport],
    ) {
        for column in columns {
            for row in &self.rows {
                column.examine(decoding, (catalog, &self.block, *row), listed);
            }
        }
    }
}

/// Returns the blocks to read in the catalog's order, each with the samples to examine: `total` samples of `order`,
/// in evenly spaced runs.
pub(super) fn wanted(mut order: EpochOrder, total: u64) -> impl Iterator<Item = (BlockId, Vec<SampleId>)> {
    let mut positions = positions(order.len(), total).peekable();
    std::iter::from_fn(move || {
        let first = order.sample_at(Position(positions.next()?));
        let mut samples = vec![first.sample];
        while let Some(next) = positions.peek().map(|next| order.sample_at(Position(*next))) {
            if next.block != first.block {
                break;
            }
            samples.push(next.sample);
            positions.next();
        }
        Some((first.block, samples))
    })
}

/// Returns `total` of the positions below `len`, ascending: runs of [`RUN`] that are evenly spaced.
fn positions(len: u64, total: u64) -> impl Iterator<Item = u64> {
    let runs = total.div_ceil(RUN);
    // With fewer than `len` samples, runs do not overlap: runs × RUN < total + RUN, and the last one is cut.
    let start = move |run: u64| {
        let free = u128::from(len - total);
        run * RUN + u64::try_from(free * u128::from(run) / u128::from(runs.max(1))).unwrap_or(0)
    };
    (0..runs).flat_map(move |run| start(run)..start(run) + RUN.min(total - run * RUN))
}

/// Cuts the samples of a block into chunks.
pub(super) fn cut(block: &Arc<Block>, samples: &[SampleId]) -> impl Iterator<Item = Chunk> {
    samples.chunks(CHUNK_ROWS).map(|samples| {
        // A block's rows fit memory, so their number fits usize.
        let row = |sample: &SampleId| usize::try_from(sample.0 - block.first_sample).unwrap_or(usize::MAX);
        Chunk { block: block.clone(), rows: samples.iter().map(row).collect() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_positions_as_asked_each_once_and_spread_over_all() {
        for (len, total) in [(1, 1), (63, 63), (64, 64), (1000, 1000), (1000, 1), (1000, 100), (10_000, 640)]
        {
            let positions: Vec<u64> = positions(len, total).collect();
            assert_eq!(positions.len() as u64, total, "{len} {total}");
            assert!(positions.is_sorted_by(|a, b| a < b), "{len} {total}");
            assert!(positions.last().is_some_and(|last| *last < len), "{len} {total}");
        }
        let spread: Vec<u64> = positions(10_000, 640).collect();
        assert!(spread.last().is_some_and(|last| *last > 9000), "{spread:?}");
    }
}
