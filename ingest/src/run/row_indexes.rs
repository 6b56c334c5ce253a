//! Where the rows of JPEGs begin: what the decoders of this process have noted, by sample, for later epochs.
//!
//! ```text
//! epoch 1   decode a crop ─▶ RowIndex of the rows down to its end ─▶ table
//! later     table ─▶ decode: jumps to the crop's rows; a crop that ends further down adds rows ─▶ table
//! ```
//! A crop of 224 px from 500 × 375 px then takes 0.80 to 0.84 × the CPU time (`cargo bench -p feedstock-ops --bench row_index`),
//! and 2 to 4 % more in the first epoch. Samples are the same bytes with and without.
//!
//! **Bounds.** An index takes 160 to 170 bytes for 500 × 375 px and at most 657, and [`ENTRY_BYTES`] around it, so 64 MiB
//! hold some 290,000 images. A full table takes no more, and other images are decoded as without it: an epoch asks for every sample
//! once, so what is there is as good as what would replace it, and replacing the oldest would leave nothing that the next epoch finds.
//! What is there stays until the last engine of the process ends, also of data sets that are no longer read.
//!
//! **Wrong entries do no harm.** A key names a data set's content, a column and a sample; a file may change all the same. The decoder
//! compares the hash of the whole file, so an index of another file is not used, and then replaced.

use crate::run::job::Map;
use feedstock_dataset::{PerProcess, SampleId};
use feedstock_ops::image::RowIndex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use twox_hash::XxHash64;

/// The default bound of a process's table.
pub(crate) const ROW_INDEX_BYTES: u64 = 64 << 20;

/// Counted for each entry in addition to the index: 32 bytes for key and pointer in a hash table that is 2/3 full, and 16 of
/// the allocator.
const ENTRY_BYTES: u64 = 64;

/// An index of an image of 500 × 375 pixels.
const USUAL_BYTES: u64 = 170;

/// Threads that look at once rarely wait for each other.
const SHARDS: usize = 16;

type Key = (RowIndexColumn, SampleId);
type Shard = HashMap<Key, Box<[u8]>>;

/// Of one process; it ends with its last engine.
pub(crate) struct RowIndexes {
    shards: [Mutex<Shard>; SHARDS],
    bytes: AtomicU64,
    most_bytes: AtomicU64,
}

static TABLE: PerProcess<RowIndexes> = PerProcess::new();

/// A column of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowIndexColumn(u64);

impl RowIndexColumn {
    pub(crate) fn new(content_hash: u64, column: &str) -> Self {
        Self(XxHash64::oneshot(content_hash, column.as_bytes()))
    }
}

/// The part of the table for a run.
pub(crate) struct RunRowIndexes {
    table: Arc<RowIndexes>,
    /// By map; `None` for chains that show no parts of images.
    columns: Vec<Option<RowIndexColumn>>,
}

impl RunRowIndexes {
    pub(crate) fn new(table: Arc<RowIndexes>, content_hash: u64, maps: &[Map]) -> Self {
        let column =
            |map: &Map| map.chain.shows_parts().then(|| RowIndexColumn::new(content_hash, &map.column));
        Self { table, columns: maps.iter().map(column).collect() }
    }

    /// The table, and the column of a map in it.
    pub(crate) fn of(&self, map: usize) -> Option<(&RowIndexes, RowIndexColumn)> {
        Some((&self.table, (*self.columns.get(map)?)?))
    }
}

impl RowIndexes {
    fn new(most_bytes: u64) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, bytes: AtomicU64::new(0), most_bytes: AtomicU64::new(most_bytes) }
    }

    /// The table of this process. It holds the most bytes that any of its users asked for.
    pub(crate) fn shared(most_bytes: u64) -> Arc<Self> {
        let mut table = TABLE.lock();
        if let Some(there) = table.upgrade() {
            there.most_bytes.fetch_max(most_bytes, Ordering::Relaxed);
            return there;
        }
        let made = Arc::new(Self::new(most_bytes));
        *table = Arc::downgrade(&made);
        made
    }

    /// Whether there is room for another index of usual size. Without it, noting one costs time and brings nothing.
    pub(crate) fn has_room(&self) -> bool {
        let takes = ENTRY_BYTES + USUAL_BYTES;
        self.bytes.load(Ordering::Relaxed) + takes <= self.most_bytes.load(Ordering::Relaxed)
    }

    /// Returns what is known of a sample.
    pub(crate) fn get(&self, column: RowIndexColumn, sample: SampleId) -> Option<RowIndex> {
        let key = (column, sample);
        let shard = self.shard(sample).lock().unwrap_or_else(PoisonError::into_inner); // entries are whole
        RowIndex::from_bytes(shard.get(&key)?)
    }

    /// Keeps an index, if there is room for it.
    pub(crate) fn put(&self, column: RowIndexColumn, sample: SampleId, index: &RowIndex) {
        let (key, index) = ((column, sample), index.to_bytes().into_boxed_slice());
        let mut shard = self.shard(sample).lock().unwrap_or_else(PoisonError::into_inner);
        let takes = ENTRY_BYTES + index.len() as u64;
        let frees = shard.get(&key).map_or(0, |there| ENTRY_BYTES + there.len() as u64);
        // Reserved before it is stored: threads that fill the last bytes at once do not pass the bound together.
        let before = self.bytes.fetch_add(takes, Ordering::Relaxed);
        if before + takes > self.most_bytes.load(Ordering::Relaxed) + frees {
            self.bytes.fetch_sub(takes, Ordering::Relaxed);
            return;
        }
        shard.insert(key, index);
        self.bytes.fetch_sub(frees, Ordering::Relaxed);
    }

    fn shard(&self, sample: SampleId) -> &Mutex<Shard> {
        &self.shards[usize::try_from(sample.0 % SHARDS as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pages::Pages;
    use crate::memory::row::RowMemory;
    use crate::memory::slab::RowSlab;
    use crate::{Destination, Engine, Error, Finished, Job, Map, Popped, Ready, Result, Sink};
    use feedstock_dataset::{
        CatalogOptions, CatalogStore, Dataset, OpenOptions, Position, Rank, Shuffle, StepShape, StepSize,
        Tail,
    };
    use feedstock_ops::{Chain, SampleSeed, Scratch};
    use feedstock_synth::{ImagenetOptions, Layout};
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Duration;

    const SAMPLES: u64 = 24;
    const EPOCHS: u64 = 4;

    /// Makes a folder of JPEGs with 10 rows of MCUs or more.
    fn images(folder: &Path) -> Dataset {
        let images = ImagenetOptions {
            samples: SAMPLES,
            classes: Some(1),
            width: 192,
            height: 192,
            layout: Layout::Folder,
            ..ImagenetOptions::default()
        };
        images.write(folder, &mut |_| {}).unwrap();
        let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
        let options = OpenOptions { catalog, ..OpenOptions::default() };
        futures::executor::block_on(Dataset::open_with(folder.to_str().unwrap(), options)).unwrap()
    }

    /// The first JPEG of a folder.
    fn first(folder: &Path) -> Vec<u8> {
        let mut entries: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        match entries.iter().find(|path| path.is_dir()) {
            Some(class) => first(class),
            None => std::fs::read(&entries[0]).unwrap(),
        }
    }

    #[test]
    fn a_full_table_keeps_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        images(folder.path());
        let chain = Chain::parse("decode_image,center_crop:32").unwrap();
        let (mut scratch, mut row) = (Scratch::new(), vec![0; chain.output().bytes()]);
        scratch.note_rows(None);
        chain.apply(&first(folder.path()), SampleSeed::new(1, 0, 0), &mut scratch, &mut row).unwrap();
        let index = scratch.take_rows().unwrap();

        let entry = ENTRY_BYTES + index.to_bytes().len() as u64;
        let table = RowIndexes::new(10 * entry + 5);
        let column = RowIndexColumn::new(7, "image");
        for sample in 0..100 {
            table.put(column, SampleId(sample), &index);
            table.put(column, SampleId(sample), &index); // replaced, not added
        }
        let kept: Vec<u64> =
            (0..100).filter(|sample| table.get(column, SampleId(*sample)).is_some()).collect();
        assert_eq!(kept, (0..10).collect::<Vec<_>>());
        assert_eq!(table.bytes.load(Ordering::Relaxed), 10 * entry);
        assert_eq!(table.get(column, SampleId(3)), Some(index));
        for other in [RowIndexColumn::new(7, "mask"), RowIndexColumn::new(8, "image")] {
            assert_eq!(table.get(other, SampleId(3)), None);
        }
    }

    #[test]
    fn a_process_has_one_table() {
        let (one, two) = (RowIndexes::shared(1 << 20), RowIndexes::shared(1 << 10));
        assert!(Arc::ptr_eq(&one, &two) && two.most_bytes.load(Ordering::Relaxed) >= 1 << 20);
    }

    /// A slot of pixels.
    struct Place(RowSlab<Pages>);

    fn allocate(bytes: usize) -> Result<Arc<Pages>> {
        Pages::new(bytes).map(Arc::new).ok_or_else(|| Error::config("no memory"))
    }

    impl Destination for Place {
        fn begin(&mut self, rows: usize) -> Result<()> {
            self.0.begin(rows, allocate)
        }

        fn take_row(&mut self, row: usize) -> RowMemory {
            self.0.take_row(row)
        }

        fn give_row(&mut self, row: usize, memory: RowMemory) {
            self.0.give_row(row, memory);
        }
    }

    /// Runs some epochs. Returns the pixels by epoch and sample; `after` sees each step.
    fn pixels(
        engine: &Engine,
        dataset: &Dataset,
        after: &mut dyn FnMut(u64),
    ) -> BTreeMap<(u64, u64), Vec<u8>> {
        let chain = Arc::new(Chain::parse("decode_image,random_resized_crop:32,horizontal_flip").unwrap());
        let job = Job {
            dataset: dataset.clone(),
            plan: dataset.plan(&Shuffle::full(5)).unwrap(),
            maps: vec![Map { column: "image".into(), output: "image".into(), chain: chain.clone() }],
            shape: StepShape { size: StepSize::Rows(8), rank: Rank::new(0, 1), tail: Tail::Short },
            strands: None,
            seed: 3,
            epoch: 0,
            position: Position(0),
            end_epoch: Some(EPOCHS),
            budget_bytes: 64 << 20,
            prefetch_bytes: 16 << 20,
            sample_bytes: 64 << 20,
        };
        let steps = Arc::new(Ready::<Finished<Place>>::default());
        let run = engine.run(job, steps.clone() as Arc<dyn Sink<Place>>).unwrap();
        let offers = run.offers();
        let slab = RowSlab::new([chain.output().clone()].into(), Arc::default(), allocate(0).unwrap());
        offers.offer(Place(slab));
        let mut rows = BTreeMap::new();
        loop {
            match steps.pop(Duration::from_secs(60)) {
                Popped::Item(finished) => {
                    assert!(finished.failures.is_empty());
                    for (row, planned) in finished.step.rows.iter().enumerate() {
                        let bytes = finished.destination.0.bytes(row, 0).to_vec();
                        rows.insert((finished.step.epoch, planned.sample.0), bytes);
                    }
                    after(finished.step.epoch);
                    offers.offer(finished.destination);
                }
                Popped::Ended => return rows,
                Popped::Failed(error) => panic!("{error}"),
                _ => panic!("no step came within a minute"),
            }
        }
    }

    /// With a table, without one and with one that is full at once, samples are the same bytes. Indexes only grow, so later
    /// epochs found those of earlier ones: without them, an epoch would note what its crop comes to, which may be less.
    #[test]
    fn samples_are_the_same_bytes_while_indexes_grow() {
        let folder = tempfile::tempdir().unwrap();
        let dataset = images(folder.path());
        let column = RowIndexColumn::new(dataset.catalog().content_hash(), "image");
        let none = Engine::new(2).unwrap().row_index_bytes(0);
        let expected = pixels(&none, &dataset, &mut |_| ());
        assert_eq!(expected.len() as u64, SAMPLES * EPOCHS);

        let engine = Engine::new(2).unwrap();
        let table = RowIndexes::shared(ROW_INDEX_BYTES);
        let known = |sample| table.get(column, SampleId(sample)).map_or(0, |index| index.to_bytes().len());
        assert!((0..SAMPLES).all(|sample| known(sample) == 0));
        let mut lengths = vec![[0; SAMPLES as usize]];
        let found = pixels(&engine, &dataset, &mut |_| {
            lengths.push(std::array::from_fn(|sample| known(sample as u64)));
        });
        assert!(found == expected);
        for (before, after) in lengths.iter().zip(&lengths[1..]) {
            assert!(before.iter().zip(after).all(|(before, after)| before <= after), "{lengths:?}");
        }
        assert!(lengths.last().unwrap().iter().all(|length| *length > 0), "{lengths:?}");
    }
}
