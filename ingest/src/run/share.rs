//! What several runs of one process need, read and made once: a worker serves ranks of many jobs, and jobs that tune
//! something else than the data ask for the same samples.
//!
//! Blocks are shared while any run holds them, so that costs no memory. Finished samples are kept, up to a number of bytes,
//! only while runs overlap: ranks of one job never ask for the same sample, and would pay for copies in vain.

use crate::memory::row::{RowMemory, RowPlace};
use feedstock_dataset::{Block, Extent, Rank, SampleId, StrandSet};
use feedstock_ops::{TensorSpec, Warnings};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What a block is: a catalog's content and its place, the columns that are read, and which block or sample.
type BlockKey = (u64, u64, Extent);

/// What a finished sample is: what makes it, the epoch of its randomness, and which sample.
type SampleKey = (u64, u64, SampleId);

type Fetching = Shared<BoxFuture<'static, Result<Arc<Block>, feedstock_dataset::Error>>>;

/// Forgotten blocks are removed when there are twice as many entries as after the last time, and at least this number.
const SWEEP_AT: usize = 1024;

/// Shared by the runs of one worker.
pub(crate) struct Share {
    blocks: Mutex<Blocks>,
    samples: Cache<SampleKey, Arc<Made>, Bytes>,
    askers: Arc<Askers>,
    /// Samples that were taken from here.
    pub(crate) taken: AtomicU64,
}

#[derive(Default)]
struct Blocks {
    known: HashMap<BlockKey, Known>,
    sweep_at: usize,
}

enum Known {
    Here(Weak<Block>),
    Coming(WeakShared<BoxFuture<'static, Result<Arc<Block>, feedstock_dataset::Error>>>),
}

/// One run, as far as it may ask for what others ask for.
pub(crate) struct Asker {
    /// A hash of what makes its samples: data and their place, ops, seed.
    maker: u64,
    /// A hash of the order: ranks and strands are distinct within one order only.
    order: u64,
    rank: Rank,
    strands: Option<StrandSet>,
    /// Another run asks for some of the same samples.
    overlaps: AtomicBool,
    others: Arc<Askers>,
}

/// The runs that there are.
#[derive(Default)]
struct Askers(Mutex<Vec<Weak<Asker>>>);

/// A finished sample.
pub(crate) struct Made {
    /// By mapped column, its length and bytes.
    columns: Vec<(usize, Box<[u8]>)>,
    warnings: Warnings,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<SampleKey, Arc<Made>> for Bytes {
    fn weight(&self, _key: &SampleKey, made: &Arc<Made>) -> u64 {
        made.columns.iter().map(|(_, bytes)| bytes.len() as u64 + 64).sum::<u64>().max(1)
    }
}

impl Share {
    /// Keeps finished samples up to `sample_bytes`.
    pub(crate) fn new(sample_bytes: u64) -> Self {
        let expected = usize::try_from(sample_bytes / (64 << 10)).unwrap_or(usize::MAX).clamp(16, 1 << 16);
        Self {
            blocks: Mutex::default(),
            samples: Cache::with_weighter(expected, sample_bytes, Bytes),
            askers: Arc::default(),
            taken: AtomicU64::new(0),
        }
    }

    /// Returns the block from the run that holds or fetches it, else by `fetch`.
    pub(crate) async fn block(
        &self,
        key: BlockKey,
        fetch: impl Future<Output = Result<Block, feedstock_dataset::Error>> + Send + 'static,
    ) -> Result<Arc<Block>, feedstock_dataset::Error> {
        let coming = {
            let mut blocks = self.blocks();
            match blocks.known.get(&key) {
                Some(Known::Here(block)) => match block.upgrade() {
                    Some(block) => return Ok(block),
                    None => blocks.fetch(key, fetch),
                },
                Some(Known::Coming(coming)) => match coming.upgrade() {
                    Some(coming) => coming,
                    None => blocks.fetch(key, fetch),
                },
                None => blocks.fetch(key, fetch),
            }
        };
        let block = coming.await?;
        self.blocks().known.insert(key, Known::Here(Arc::downgrade(&block)));
        Ok(block)
    }

    /// Registers a run that may ask for what others ask for. Dropping the handle removes it.
    pub(crate) fn asker(&self, maker: u64, order: u64, rank: Rank, strands: Option<StrandSet>) -> Arc<Asker> {
        let (overlaps, others) = (AtomicBool::new(false), self.askers.clone());
        let asker = Arc::new(Asker { maker, order, rank, strands, overlaps, others });
        self.askers.list().push(Arc::downgrade(&asker));
        self.askers.compare();
        asker
    }

    /// Writes a sample that was made already; false if it was not, or not for others.
    pub(crate) fn take(&self, asker: &Asker, epoch: u64, sample: SampleId, memory: &mut RowMemory) -> bool {
        if !asker.overlaps.load(Ordering::Relaxed) {
            return false;
        }
        let Some(made) = self.samples.get(&(asker.maker, epoch, sample)) else { return false };
        for (column, (length, bytes)) in made.columns.iter().enumerate() {
            match memory.column(column) {
                Ok(RowPlace::Fixed(out)) => out.copy_from_slice(bytes),
                Ok(RowPlace::Ragged(row)) => row.raw(*length, bytes.len()).copy_from_slice(bytes),
                Err(_) => return false, // making the sample reports it
            }
        }
        memory.set_warnings(made.warnings);
        self.taken.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Keeps a sample that was just made, if others ask for it too.
    pub(crate) fn give(
        &self,
        asker: &Asker,
        epoch: u64,
        sample: SampleId,
        specs: &[TensorSpec],
        memory: &mut RowMemory,
    ) {
        if !asker.overlaps.load(Ordering::Relaxed) {
            return;
        }
        let warnings = memory.warnings();
        let columns = (0..specs.len()).map(|column| {
            Some(match memory.column(column).ok()? {
                RowPlace::Fixed(out) => (0, Box::from(&*out)),
                RowPlace::Ragged(row) => (row.length(), Box::from(row.bytes())),
            })
        });
        let Some(columns) = columns.collect() else { return }; // only a bug leaves columns out, and it was reported
        self.samples.insert((asker.maker, epoch, sample), Arc::new(Made { columns, warnings }));
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner) // entries are stored whole
    }
}

impl Askers {
    fn list(&self) -> MutexGuard<'_, Vec<Weak<Asker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // entries are whole
    }

    /// Finds out which of them ask for the same.
    fn compare(&self) {
        let mut list = self.list();
        list.retain(|asker| asker.strong_count() > 0);
        let live: Vec<Arc<Asker>> = list.iter().filter_map(Weak::upgrade).collect();
        for one in &live {
            let overlaps = live.iter().any(|other| !Arc::ptr_eq(one, other) && one.overlaps(other));
            one.overlaps.store(overlaps, Ordering::Relaxed);
        }
        // The last reference to a run may be one of these: its drop compares again, and needs the list.
        drop(list);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.others.compare();
    }
}

impl Blocks {
    fn fetch(
        &mut self,
        key: BlockKey,
        fetch: impl Future<Output = Result<Block, feedstock_dataset::Error>> + Send + 'static,
    ) -> Fetching {
        if self.known.len() >= self.sweep_at.max(SWEEP_AT) {
            self.known.retain(|_, known| match known {
                Known::Here(block) => block.strong_count() > 0,
                Known::Coming(coming) => coming.upgrade().is_some(),
            });
            self.sweep_at = self.known.len() * 2;
        }
        let coming = fetch.map(|block| block.map(Arc::new)).boxed().shared();
        if let Some(weak) = coming.downgrade() {
            self.known.insert(key, Known::Coming(weak));
        }
        coming
    }
}

impl Asker {
    /// Whether both may ask for one sample: never two ranks of one world.
    fn overlaps(&self, other: &Self) -> bool {
        let strands = match (&self.strands, &other.strands) {
            (Some(own), Some(others)) => own.iter().any(|strand| others.contains(strand)),
            _ => true,
        };
        let worlds = self.rank == other.rank || self.rank.world_size != other.rank.world_size;
        self.maker == other.maker && (self.order != other.order || (strands && worlds))
    }
}

/// A run's part in what its worker shares.
#[derive(Clone)]
pub(crate) struct Sharing {
    pub(crate) share: Arc<Share>,
    pub(crate) asker: Arc<Asker>,
    pub(crate) specs: Arc<[TensorSpec]>,
    /// A hash of the data set and its place, and one of the columns that are read.
    pub(crate) read: (u64, u64),
}

impl Sharing {
    pub(crate) async fn block(
        &self,
        extent: Extent,
        fetch: impl Future<Output = Result<Block, feedstock_dataset::Error>> + Send + 'static,
    ) -> Result<Arc<Block>, feedstock_dataset::Error> {
        let (data, columns) = self.read;
        self.share.block((data, columns, extent), fetch).await
    }

    pub(crate) fn take(&self, epoch: u64, sample: SampleId, memory: &mut RowMemory) -> bool {
        self.share.take(&self.asker, epoch, sample, memory)
    }

    pub(crate) fn give(&self, epoch: u64, sample: SampleId, memory: &mut RowMemory) {
        self.share.give(&self.asker, epoch, sample, &self.specs, memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: u32) -> Block {
        let rows = arrow::record_batch::RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty()));
        Block { id: feedstock_dataset::BlockId(id), first_sample: 0, rows }
    }

    #[tokio::test]
    async fn a_block_is_fetched_once_while_somebody_holds_it() {
        let share = Share::new(0);
        let fetched = Arc::new(AtomicU64::new(0));
        let fetch = || {
            let fetched = fetched.clone();
            async move {
                fetched.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(block(7))
            }
        };
        let key = (1, 2, Extent::new(feedstock_dataset::BlockId(7), 0..1));
        let (first, second) = tokio::join!(share.block(key, fetch()), share.block(key, fetch()));
        let third = share.block(key, fetch()).await.unwrap();
        assert!(Arc::ptr_eq(&first.unwrap(), &third) && Arc::ptr_eq(&second.unwrap(), &third));
        assert_eq!(fetched.load(Ordering::Relaxed), 1);
        drop(third);
        share.block(key, fetch()).await.unwrap();
        assert_eq!(fetched.load(Ordering::Relaxed), 2, "no run held it");
    }

    #[test]
    fn only_runs_that_ask_for_the_same_overlap() {
        let share = Share::new(1 << 20);
        let strands = |strands: &[u32]| Some(strands.iter().copied().collect());
        let ask = |maker, order, rank, of: &[u32]| share.asker(maker, order, rank, strands(of));
        let first = ask(1, 1, Rank::new(0, 2), &[0, 1]);
        let others = [
            ask(1, 1, Rank::new(1, 2), &[0, 1]),
            ask(1, 1, Rank::new(0, 2), &[2]),
            ask(2, 1, Rank::new(0, 2), &[0]),
        ];
        assert!(!first.overlaps.load(Ordering::Relaxed), "ranks, strands and recipes keep apart");
        for (order, rank, strand) in
            [(1, Rank::new(0, 2), 1), (1, Rank::new(0, 3), 1), (2, Rank::new(1, 2), 9)]
        {
            let same = ask(1, order, rank, &[strand]);
            assert!(first.overlaps.load(Ordering::Relaxed) && same.overlaps.load(Ordering::Relaxed));
            drop(same);
            assert!(!first.overlaps.load(Ordering::Relaxed), "the other run has left");
        }
        drop(others);
    }
}
