//! Where the rows of JPEGs begin: what the decoders of this process have noted, by sample, for later epochs.
//!
//! ```text
//! epoch 1   decode a crop ─▶ RowIndex of the rows down to its end ─▶ table
//! later     table ─▶ decode: jumps to the crop's rows; a crop that ends further down adds rows ─▶ table
//! ```
//! A crop of 224 px from 500 × 375 px then takes 0.80 to 0.84 × the CPU time (`cargo bench -p feedstock-ops --bench row_index`),
//! and 2 to 4 % more in the first epoch. Samples are the same bytes with and without.
//!
//! **Bounds.** An index takes 160 to 170 bytes for 500 × 375 px and at most 657. With its place in a hash table and what an
//! allocator adds, that is 240 to 290 bytes, so 64 MiB hold some 240,000 images. All of it is counted. Other images are decoded as
//! without the table: an epoch asks for every sample once, so what is there is as good as what would replace it, and replacing the
//! oldest would leave nothing that the next epoch finds.
//!
//! **What is no longer read leaves a full table.** Time is counted in look-ups. The longest time between two uses of an entry is
//! about the length of two epochs. An entry that was not used for twice that time (and for twice as many look-ups as there are
//! entries) belongs to data that no run reads any more.
//!
//! **Wrong entries do no harm.** A key names a data set's content, a column and a sample; a file may change all the same. The decoder
//! compares the hash of the whole file, so an index of another file is not used, and then replaced.

use crate::run::job::Map;
use feedstock_dataset::{PerProcess, SampleId};
use feedstock_ops::image::RowIndex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use twox_hash::XxHash64;

/// The default bound of a process's table.
pub(crate) const ROW_INDEX_BYTES: u64 = 64 << 20;

/// An index of an image of 500 × 375 pixels.
const USUAL_BYTES: usize = 170;

/// Threads that look at once rarely wait for each other.
const SHARDS: usize = 16;

/// The entries for which a shard has slots at first. A hash table has a power of two of buckets and fills 7/8 of them, and each
/// growth doubles it.
const SLOTS: usize = 7;

/// An entry is no longer read if it was not used for this many times the longest time between two uses.
const UNUSED: u64 = 2;

type Key = (RowIndexColumn, SampleId);

struct Entry {
    /// The index in its stored form.
    index: Box<[u8]>,
    /// Look-ups before its last use.
    used_at: u64,
}

/// Entries, and what they take. Entries leave only when the table is rebuilt, so that its size is known.
#[derive(Default)]
struct Shard {
    entries: HashMap<Key, Entry>,
    slots: usize,
    /// Look-ups before the last search for entries that are no longer read.
    searched_at: u64,
}

/// Of one process; it ends with its last engine.
pub(crate) struct RowIndexes {
    shards: [Mutex<Shard>; SHARDS],
    bytes: AtomicU64,
    most_bytes: AtomicU64,
    lookups: AtomicU64,
    /// The longest time between two uses of an entry, in look-ups.
    longest: AtomicU64,
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

impl Shard {
    /// Has `slots` slots from now on, and the entries that `stays` chooses. Returns the bytes of the others.
    fn rebuild(&mut self, slots: usize, stays: impl Fn(&Entry) -> bool) -> u64 {
        let (mut entries, mut freed) = (HashMap::with_capacity(slots), 0);
        for (key, entry) in self.entries.drain() {
            match stays(&entry) {
                true => drop(entries.insert(key, entry)),
                false => freed += allocation_bytes(entry.index.len()),
            }
        }
        (self.entries, self.slots) = (entries, slots);
        freed
    }

    /// The slots that it needs for one more entry.
    fn slots_for_one_more(&self) -> usize {
        if self.entries.len() < self.slots { self.slots } else { (2 * self.slots).max(SLOTS) }
    }
}

/// The bytes of a hash table with this many slots: each bucket has an entry and a byte of its hash, and 16 bytes end the table.
fn table_bytes(slots: usize) -> u64 {
    match slots {
        0 => 0,
        slots => allocation_bytes(slots / SLOTS * (SLOTS + 1) * (size_of::<(Key, Entry)>() + 1) + 16),
    }
}

/// The bytes that the system's allocator takes for some: a head of 8 bytes, in steps of 16 bytes.
fn allocation_bytes(bytes: usize) -> u64 {
    (bytes as u64 + 8).next_multiple_of(16).max(32)
}

impl RowIndexes {
    fn new(most_bytes: u64) -> Self {
        let [bytes, lookups, longest] = [const { AtomicU64::new(0) }; 3];
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, bytes, most_bytes: AtomicU64::new(most_bytes), lookups, longest }
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

    /// Whether there is room for another index of usual size, after those that are no longer read have left. Without it, noting
    /// one costs time and brings nothing.
    pub(crate) fn has_room(&self, sample: SampleId) -> bool {
        if !self.fits_usual() {
            self.search(&mut self.lock(sample));
        }
        self.fits_usual()
    }

    fn fits_usual(&self) -> bool {
        let takes = allocation_bytes(USUAL_BYTES);
        self.bytes.load(Ordering::Relaxed) + takes <= self.most_bytes.load(Ordering::Relaxed)
    }

    /// Removes the entries of a shard that are no longer read, now and then.
    fn search(&self, shard: &mut Shard) {
        let now = self.lookups.load(Ordering::Relaxed);
        let all = (shard.entries.len() * SHARDS) as u64;
        let unused = self.longest.load(Ordering::Relaxed).max(all).saturating_mul(UNUSED);
        // Often enough that little time is lost, and rarely enough that a search costs nothing against `unused` decoded images.
        if now < shard.searched_at + unused / 8 {
            return;
        }
        shard.searched_at = now;
        let is_read = |entry: &Entry| now.saturating_sub(entry.used_at) <= unused;
        if !shard.entries.values().all(is_read) {
            let freed = shard.rebuild(shard.slots, is_read);
            self.bytes.fetch_sub(freed, Ordering::Relaxed);
        }
    }

    /// Returns what is known of a sample.
    pub(crate) fn get(&self, column: RowIndexColumn, sample: SampleId) -> Option<RowIndex> {
        let now = self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.lock(sample);
        let entry = shard.entries.get_mut(&(column, sample))?;
        self.longest.fetch_max(now.saturating_sub(entry.used_at), Ordering::Relaxed);
        entry.used_at = now;
        RowIndex::from_bytes(&entry.index)
    }

    /// Keeps an index, if there is room for it.
    pub(crate) fn put(&self, column: RowIndexColumn, sample: SampleId, index: &RowIndex) {
        let (key, index) = ((column, sample), index.to_bytes().into_boxed_slice());
        let mut shard = self.lock(sample);
        let there = shard.entries.get(&key).map(|entry| allocation_bytes(entry.index.len()));
        let slots = if there.is_some() { shard.slots } else { shard.slots_for_one_more() };
        let takes = allocation_bytes(index.len()) + table_bytes(slots) - table_bytes(shard.slots);
        let frees = there.unwrap_or(0);
        // Reserved before it is stored: threads that fill the last bytes at once do not pass the bound together.
        let before = self.bytes.fetch_add(takes, Ordering::Relaxed);
        if before + takes > self.most_bytes.load(Ordering::Relaxed) + frees {
            self.bytes.fetch_sub(takes, Ordering::Relaxed);
            return;
        }
        if slots > shard.slots {
            shard.rebuild(slots, |_| true);
        }
        let used_at = self.lookups.load(Ordering::Relaxed);
        shard.entries.insert(key, Entry { index, used_at });
        self.bytes.fetch_sub(frees, Ordering::Relaxed);
    }

    fn lock(&self, sample: SampleId) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[usize::try_from(sample.0 % SHARDS as u64).unwrap_or(0)];
        shard.lock().unwrap_or_else(PoisonError::into_inner) // entries are whole
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

    const COLUMN: RowIndexColumn = RowIndexColumn(7);

    /// The index of an image.
    fn an_index() -> RowIndex {
        let folder = tempfile::tempdir().unwrap();
        images(folder.path());
        let chain = Chain::parse("decode_image,center_crop:32").unwrap();
        let (mut scratch, mut row) = (Scratch::new(), vec![0; chain.output().bytes()]);
        scratch.note_rows(None);
        chain.apply(&first(folder.path()), SampleSeed::new(1, 0, 0), &mut scratch, &mut row).unwrap();
        scratch.take_rows().unwrap()
    }

    impl RowIndexes {
        /// Reads all of `samples` once, in another order each epoch. Returns how many it knew.
        fn epoch(&self, samples: u64, column: RowIndexColumn, epoch: u64, index: &RowIndex) -> usize {
            let mut order: Vec<u64> = (0..samples).collect();
            order.sort_by_key(|sample| XxHash64::oneshot(epoch, &sample.to_le_bytes()));
            let knew = order.into_iter().map(SampleId).filter(|sample| {
                let known = self.get(column, *sample).is_some();
                if !known && self.has_room(*sample) {
                    self.put(column, *sample, index);
                }
                known
            });
            knew.count()
        }

        fn holds(&self, column: RowIndexColumn, samples: u64) -> usize {
            let holds =
                |sample| self.lock(SampleId(sample)).entries.contains_key(&(column, SampleId(sample)));
            (0..samples).filter(|sample| holds(*sample)).count()
        }

        /// What the table takes, added up.
        fn taken(&self) -> u64 {
            let shards = self.shards.iter().map(|shard| {
                let shard = shard.lock().unwrap();
                assert_eq!(shard.entries.capacity(), shard.slots, "the size of the hash table");
                let indexes = shard.entries.values().map(|entry| allocation_bytes(entry.index.len()));
                table_bytes(shard.slots) + indexes.sum::<u64>()
            });
            shards.sum()
        }
    }

    /// Of a data set that is larger than the table, each epoch finds what the one before it left.
    #[test]
    fn a_full_table_keeps_what_is_read() {
        let (index, table) = (an_index(), RowIndexes::new(400 << 10));
        assert_eq!(table.epoch(4_000, COLUMN, 0, &index), 0);
        let held = table.holds(COLUMN, 4_000);
        assert!((1_000..3_500).contains(&held), "{held}");
        for epoch in 1..12 {
            let knew = table.epoch(4_000, COLUMN, epoch, &index);
            assert!(knew * 10 > held * 9, "epoch {epoch}: {knew} of {held}");
            assert_eq!(table.bytes.load(Ordering::Relaxed), table.taken());
            assert!(table.taken() <= 400 << 10);
        }
        assert_eq!(table.get(COLUMN, SampleId(u64::MAX)), None);
        for other in [RowIndexColumn::new(7, "mask"), RowIndexColumn::new(8, "image")] {
            assert_eq!(table.holds(other, 4_000), 0);
        }
        table.put(COLUMN, SampleId(1), &index); // replaced, not added
        assert_eq!(table.bytes.load(Ordering::Relaxed), table.taken());
    }

    #[test]
    fn what_is_no_longer_read_leaves_a_full_table() {
        let (index, table, other) = (an_index(), RowIndexes::new(400 << 10), RowIndexColumn(8));
        for epoch in 0..3 {
            table.epoch(4_000, COLUMN, epoch, &index);
        }
        let full = table.holds(COLUMN, 4_000);
        assert_eq!(table.epoch(4_000, other, 0, &index), 0);
        assert!(table.holds(COLUMN, 4_000) == full, "it may be read again");
        for epoch in 1..8 {
            table.epoch(4_000, other, epoch, &index);
        }
        assert_eq!(table.holds(COLUMN, 4_000), 0);
        let knew = table.epoch(4_000, other, 8, &index);
        assert!(knew * 10 > full * 9, "{knew} of {full}");
        assert_eq!(table.bytes.load(Ordering::Relaxed), table.taken());
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
            maps: vec![Map {
                column: "image".into(),
                output: "image".into(),
                chain: chain.clone(),
                partner: None,
                along: None,
                crop_boxes: None,
                views: None,
            }],
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
