//! Slots: the reusable memory of one batch's mapped columns.
//!
//! ```text
//! free ──offer──▶ being written (rows lent to tasks) ──▶ ready ──▶ leased by a Batch ──drop──▶ free
//! ```
//! One block of memory has all fixed columns of a slot, and another all padded ones. Each column starts on a page. So both
//! blocks can be page-locked as a whole, and Arrow can view them without a copy. `memory.rs` provides them.
//! Memory grows to the largest step that the slot held. A slot is never cleared: each row is written whole before it is
//! read. It returns when its lease is dropped. A copy to a device holds the lease until it has ended (`staging/stage.rs`).

use crate::memory::{Allocator, Memory, no_memory};
use crate::padding::{Fill, pad};
use crate::{ErrorKind, Result};
use feedstock_base::PAGE_BYTES;
use feedstock_ingest::{Destination, Offers, RowBuffers, RowMemory, RowSlab};
use feedstock_ops::{RaggedRow, TensorSpec};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of steps of a slot after which its padded memory is compared with their needs. That is rare enough that freeing
/// and allocating memory costs nothing compared with decoding, even if every 16th batch is a large one.
const STEPS_REMEMBERED: u32 = 16;

/// Padded memory is freed if the steps needed less than a quarter of it. Batches of one data set differ by less: the longest
/// of 32 audio clips of 1 to 12 s is 12 s in nearly all. Buckets differ by a factor of at most 12, and the larger ones come
/// often.
const SHRINK_FACTOR: usize = 4;

/// Padded memory up to this size is kept, because freeing it is not worth a call.
const PADDED_KEPT_BYTES: usize = 1 << 20;

/// A mapped column: its name, the tensor of one sample, and the padding of short rows.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) spec: TensorSpec,
    pub(crate) fill: Fill,
    /// Whether its rows become images on a device, so that the batch has no lengths for them.
    pub(crate) is_deferred: bool,
}

/// One of a slot's two blocks of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotPart {
    /// Rows written in place.
    Fixed,
    /// Ragged rows, padded, and lists of images, one after another.
    Padded,
}

/// Where a column of a finished slot is, and its rows.
#[derive(Debug, Clone)]
pub(crate) struct PlacedColumn {
    pub(crate) part: SlotPart,
    pub(crate) offset: usize,
    /// The length of the first axis: the rows, or the images of all rows if the column has lists of images.
    pub(crate) rows: usize,
    /// The other axes: the shape of one row, or of one image.
    pub(crate) shape: Vec<usize>,
    /// The length of each row, if the column is ragged.
    pub(crate) lengths: Option<Vec<usize>>,
}

/// How large a slot's padded memory should be: a state machine without memory.
///
/// It grows when a step needs more. After every 16 steps it shrinks to the need of the largest of them, if that was less than
/// a quarter. So at least a quarter of the memory was needed within the last 31 steps.
#[derive(Debug, Default)]
struct PaddedSize {
    /// The largest need of a step since the last comparison, and the number of steps since.
    most: usize,
    steps: u32,
}

impl PaddedSize {
    /// Returns the new size for a step that needs `needed` bytes, or `None` to keep `bytes`.
    fn step(&mut self, bytes: usize, needed: usize) -> Option<usize> {
        self.most = self.most.max(needed);
        self.steps += 1;
        // A quarter more than needed, so that a growing maximum does not allocate at every step.
        let room = |needed: usize| needed.saturating_add(needed / 4);
        if needed > bytes {
            *self = Self::default();
            return Some(room(needed));
        }
        if self.steps < STEPS_REMEMBERED {
            return None;
        }
        let Self { most, .. } = std::mem::take(self);
        (bytes > PADDED_KEPT_BYTES && most < bytes / SHRINK_FACTOR).then(|| room(most))
    }
}

/// One reusable batch buffer.
pub(crate) struct Slot {
    columns: Arc<[Column]>,
    allocator: Allocator,
    /// The rows: fixed columns in place, ragged columns in buffers.
    rows: RowSlab<Memory>,
    padded: Arc<Memory>,
    padded_size: PaddedSize,
}

impl Slot {
    /// Makes a slot with room for `rows` rows of the fixed columns. It grows when a step is larger.
    pub(crate) fn new(
        columns: Arc<[Column]>,
        buffers: Arc<RowBuffers>,
        allocator: Allocator,
        rows: usize,
    ) -> Result<Self> {
        let specs = columns.iter().map(|column| column.spec.clone()).collect();
        let mut fixed = RowSlab::new(specs, buffers, allocator.memory(0)?);
        fixed.reserve(rows, |bytes| allocator.memory(bytes))?;
        let padded = allocator.memory(0)?;
        Ok(Self { columns, allocator, rows: fixed, padded, padded_size: PaddedSize::default() })
    }

    /// Completes every row. A row takes the content of the row that `sources` names: itself, unless it is substituted. Ragged
    /// columns are padded, and lists of images joined. Rows without a good source become zeros, or empty if they are ragged.
    ///
    /// Call it only while no row is lent.
    pub(crate) fn finish(&mut self, sources: &[Option<usize>]) -> Result<Vec<PlacedColumn>> {
        let rows = sources.len();
        let mut placed = Vec::with_capacity(self.columns.len());
        let mut padded_bytes = 0usize;
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(offset) = self.rows.offset(index) {
                for (row, from) in sources.iter().enumerate().filter(|(row, from)| **from != Some(*row)) {
                    self.rows.copy_row(index, *from, row)?;
                }
                let shape = column.spec.shape.clone();
                placed.push(PlacedColumn { part: SlotPart::Fixed, offset, rows, shape, lengths: None });
                continue;
            }
            let lengths: Vec<usize> =
                sources.iter().map(|from| self.written(*from, index).map_or(0, RaggedRow::length)).collect();
            let (rows, shape) = if column.spec.is_list() {
                (lengths.iter().sum(), column.spec.shape[1..].to_vec())
            } else {
                // A model can process one step of padding, but not zero steps.
                (rows, column.spec.shape_at(lengths.iter().copied().max().unwrap_or(0).max(1)))
            };
            let bytes =
                shape.iter().try_fold(column.spec.dtype.bytes(), |bytes, axis| bytes.checked_mul(*axis));
            let bytes = bytes.and_then(|row| row.checked_mul(rows));
            let end =
                bytes.and_then(|bytes| padded_bytes.checked_add(bytes)?.checked_next_multiple_of(PAGE_BYTES));
            placed.push(PlacedColumn {
                part: SlotPart::Padded,
                offset: padded_bytes,
                rows,
                shape,
                lengths: Some(lengths),
            });
            padded_bytes = end.ok_or_else(|| no_memory(usize::MAX))?;
        }
        if let Some(bytes) = self.padded_size.step(self.padded.size(), padded_bytes) {
            self.padded = self.allocator.memory(0)?; // free the old memory before allocating the new
            self.padded = self.allocator.memory(bytes)?;
        }
        for (index, placed) in placed.iter().enumerate().filter(|(_, placed)| placed.part == SlotPart::Padded)
        {
            match self.columns[index].spec.is_list() {
                true => self.join(index, placed, sources),
                false => self.pad(index, placed, sources),
            }
        }
        self.rows.recycle();
        Ok(placed)
    }

    fn pad(&self, index: usize, placed: &PlacedColumn, sources: &[Option<usize>]) {
        let Column { spec, fill, .. } = &self.columns[index];
        let longest = spec.ragged_axis.map_or(1, |axis| placed.shape[axis]);
        let bytes = placed.shape.iter().product::<usize>() * spec.dtype.bytes();
        let nothing = RaggedRow::new();
        for (row, from) in sources.iter().enumerate() {
            // SAFETY: rows are disjoint ranges inside `padded`, which was sized for them. No row is lent and no batch holds
            // this slot, so nothing else uses it.
            let out = unsafe {
                std::slice::from_raw_parts_mut(self.padded.at(placed.offset + row * bytes).as_ptr(), bytes)
            };
            pad(spec, *fill, self.written(*from, index).unwrap_or(&nothing), longest, out);
        }
    }

    /// Writes the images of all rows one after another.
    fn join(&self, index: usize, placed: &PlacedColumn, sources: &[Option<usize>]) {
        let mut offset = placed.offset;
        for row in sources.iter().filter_map(|from| self.written(*from, index)) {
            let bytes = row.bytes();
            // SAFETY: rows are disjoint ranges inside `padded`, which was sized for their sum. No row is lent and no batch holds
            // this slot, so nothing else uses it.
            let out = unsafe { std::slice::from_raw_parts_mut(self.padded.at(offset).as_ptr(), bytes.len()) };
            out.copy_from_slice(bytes);
            offset += bytes.len();
        }
        let expected =
            placed.rows * placed.shape.iter().product::<usize>() * self.columns[index].spec.dtype.bytes();
        assert_eq!(offset - placed.offset, expected, "rows have the bytes of their images");
    }

    fn written(&self, row: Option<usize>, column: usize) -> Option<&RaggedRow> {
        self.rows.ragged(row?, column)
    }

    /// Returns the bytes of its memory.
    fn bytes(&self) -> usize {
        self.rows.memory().size().saturating_add(self.padded.size())
    }

    fn memory(&self, part: SlotPart) -> &Arc<Memory> {
        match part {
            SlotPart::Fixed => self.rows.memory(),
            SlotPart::Padded => &self.padded,
        }
    }
}

impl Destination for Slot {
    fn begin(&mut self, rows: usize) -> Result<()> {
        self.rows.begin(rows, |bytes| self.allocator.memory(bytes))
    }

    fn take_row(&mut self, row: usize) -> RowMemory {
        self.rows.take_row(row)
    }

    fn give_row(&mut self, row: usize, memory: RowMemory) {
        self.rows.give_row(row, memory);
    }
}

/// The fewest slots of a pipeline, so that one is read while one is written.
const LEAST_SLOTS: usize = 2;

/// Makes `slots` slots with room for `rows` rows, or fewer if no more memory can be page-locked.
pub(crate) fn make_slots(
    columns: &Arc<[Column]>,
    buffers: &Arc<RowBuffers>,
    allocator: &Allocator,
    rows: usize,
    slots: usize,
) -> Result<Vec<Slot>> {
    let mut made = Vec::with_capacity(slots);
    for number in 0..slots {
        match Slot::new(columns.clone(), buffers.clone(), allocator.clone(), rows) {
            Ok(slot) => made.push(slot),
            Err(error)
                if number >= LEAST_SLOTS
                    && error.kind() == ErrorKind::BadConfig
                    && matches!(allocator, Allocator::Locked(_)) =>
            {
                // Leave one slot's memory for later page-locking: staging memory and padded rows.
                made.truncate(LEAST_SLOTS.max(number - 1));
                let fewer = made.len();
                tracing::warn!("continuing with {fewer} slots instead of {slots}: {error}");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// The place where slots return when their batch is dropped.
pub(crate) struct Home {
    offers: OnceLock<Offers<Slot>>,
    leased: AtomicUsize,
    leased_bytes: AtomicU64,
    /// Slots that were added for a caller that keeps its batches. The same number of slots is freed when batches return.
    added: AtomicUsize,
    /// The process that runs it. After `fork`, its child has copies of the batches but not the threads.
    process: u32,
}

impl Default for Home {
    fn default() -> Self {
        Self {
            offers: OnceLock::new(),
            leased: AtomicUsize::new(0),
            leased_bytes: AtomicU64::new(0),
            added: AtomicUsize::new(0),
            process: std::process::id(),
        }
    }
}

impl Home {
    /// Connects the home to a run. Slots that returned before are not reused.
    pub(crate) fn open(&self, offers: Offers<Slot>) {
        assert!(self.offers.set(offers).is_ok(), "a home belongs to one run");
    }

    pub(crate) fn offer(&self, slot: Slot) {
        if let Some(offers) = self.offers.get() {
            offers.offer(slot);
        }
    }

    /// Returns the number of slots that finished batches hold, delivered or ready.
    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Ordering::Acquire)
    }

    /// Offers a slot in addition to those that the run began with. When a slot returns, it or another one is freed.
    pub(crate) fn add(&self, slot: Slot) {
        self.added.fetch_add(1, Ordering::AcqRel);
        self.offer(slot);
    }

    /// Returns the number of slots that were added and not freed yet.
    pub(crate) fn added(&self) -> usize {
        self.added.load(Ordering::Acquire)
    }

    /// Takes a slot back from a batch that was dropped.
    fn take_back(&self, slot: Slot) {
        let one_less = |added: usize| added.checked_sub(1);
        if self.added.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_err() {
            self.offer(slot);
        }
    }

    /// Returns the bytes of these batches.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leased_bytes.load(Ordering::Acquire)
    }
}

/// A finished slot. Dropping the last handle frees it.
pub(crate) struct Lease {
    slot: Option<Slot>,
    bytes: u64,
    home: Arc<Home>,
}

impl Lease {
    /// Leases a slot to a batch whose unmapped columns take `column_bytes` bytes.
    pub(crate) fn new(slot: Slot, column_bytes: usize, home: Arc<Home>) -> Self {
        let bytes = slot.bytes().saturating_add(column_bytes) as u64;
        home.leased.fetch_add(1, Ordering::AcqRel);
        home.leased_bytes.fetch_add(bytes, Ordering::AcqRel);
        Self { slot: Some(slot), bytes, home }
    }

    /// Returns the address of byte `offset` in a part of the finished slot.
    pub(crate) fn at(&self, part: SlotPart, offset: usize) -> NonNull<u8> {
        #[expect(clippy::expect_used, reason = "taken in Drop only")]
        self.slot.as_ref().expect("a lease holds its slot").memory(part).at(offset)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.home.process != std::process::id() {
            // In a forked child, the parent's lock may be held forever and its memory may be page-locked.
            std::mem::forget((self.slot.take(), self.home.clone()));
            return;
        }
        self.home.leased.fetch_sub(1, Ordering::AcqRel);
        self.home.leased_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if let Some(slot) = self.slot.take() {
            self.home.take_back(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_ingest::RowPlace;
    use feedstock_ops::{DType, Layout};

    fn column(spec: TensorSpec) -> Column {
        Column { name: "x".into(), fill: Fill::new(-1.0, DType::F32).unwrap(), spec, is_deferred: false }
    }

    fn bytes(len: usize) -> Column {
        column(TensorSpec::new(DType::U8, [len], Layout::T))
    }

    fn slot(columns: Vec<Column>, rows: usize) -> Result<Slot> {
        Slot::new(columns.into(), Arc::default(), Allocator::Plain, rows)
    }

    fn fill(slot: &mut Slot, row: usize, value: u8) {
        let mut memory = slot.take_row(row);
        for (column, add) in [(0, 0), (1, 10)] {
            let RowPlace::Fixed(out) = memory.column(column).unwrap() else { panic!("not fixed") };
            out.fill(value + add);
        }
        slot.give_row(row, memory);
    }

    #[test]
    fn rows_are_disjoint_and_columns_start_on_pages() {
        let mut slot = slot(vec![bytes(5), bytes(4096)], 2).unwrap();
        slot.begin(3).unwrap(); // more than it had room for
        (0..3).for_each(|row| fill(&mut slot, usize::from(row), row));
        let placed = slot.finish(&[Some(2), None, Some(2)]).unwrap();
        assert_eq!(
            placed.iter().map(|p| (p.part, p.offset)).collect::<Vec<_>>(),
            [(SlotPart::Fixed, 0), (SlotPart::Fixed, 4096)]
        );
        let lease = Lease::new(slot, 0, Arc::default());
        // SAFETY: all rows are written and no task is left.
        let first = unsafe { std::slice::from_raw_parts(lease.at(SlotPart::Fixed, 0).as_ptr(), 15) };
        assert_eq!(first, [2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2]);
        assert_eq!(lease.at(SlotPart::Fixed, 0).as_ptr() as usize % PAGE_BYTES, 0);
    }

    #[test]
    fn a_forked_child_leaves_its_copies_of_batches_alone() {
        let of_parent = Home { process: std::process::id() + 1, ..Home::default() };
        let home = Arc::new(of_parent);
        drop(Lease::new(slot(vec![bytes(5)], 1).unwrap(), 7, home.clone()));
        assert_eq!((home.leased(), Arc::strong_count(&home)), (1, 2));
    }

    #[test]
    fn ragged_rows_are_padded_to_the_longest_and_substituted() {
        let mut slot = slot(vec![column(TensorSpec::new(DType::F32, [0], Layout::T).ragged(0))], 0).unwrap();
        let mut run = |lengths: [usize; 3], sources: &[Option<usize>]| -> (PlacedColumn, Vec<f32>) {
            slot.begin(3).unwrap();
            for (row, length) in lengths.into_iter().enumerate() {
                let mut memory = slot.take_row(row);
                let RowPlace::Ragged(out) = memory.column(0).unwrap() else { panic!("not ragged") };
                out.f32s(length, length).fill(row as f32);
                slot.give_row(row, memory);
            }
            let placed = slot.finish(sources).unwrap().remove(0);
            let start = slot.memory(placed.part).at(placed.offset).as_ptr().cast::<f32>();
            // SAFETY: the slot is finished and holds three rows of this shape.
            let values = unsafe { std::slice::from_raw_parts(start, 3 * placed.shape[0]) };
            (placed.clone(), values.to_vec())
        };
        let own = [Some(0), Some(1), Some(2)];
        let (placed, values) = run([1, 3, 0], &own);
        assert_eq!((placed.shape, placed.lengths), (vec![3], Some(vec![1, 3, 0])));
        assert_eq!(values, [0.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0]);
        let (placed, values) = run([1, 3, 2], &[Some(0), Some(2), Some(2)]);
        assert_eq!((placed.shape, placed.lengths), (vec![2], Some(vec![1, 2, 2])));
        assert_eq!(values, [0.0, -1.0, 2.0, 2.0, 2.0, 2.0]);
        let (placed, values) = run([4, 4, 4], &[None; 3]);
        assert_eq!((placed.shape, placed.lengths, values), (vec![1], Some(vec![0; 3]), vec![-1.0; 3]));
        let (placed, _) = run([3000, 1, 1], &own);
        assert_eq!(placed.shape, [3000], "the memory grew");
    }

    #[test]
    fn lists_of_images_are_joined_next_to_padded_rows() {
        let list = column(TensorSpec::new(DType::U8, [1, 2, 3], Layout::Hwc).list());
        let ragged = column(TensorSpec::new(DType::F32, [0], Layout::T).ragged(0));
        let mut slot = slot(vec![list.clone(), ragged, list], 0).unwrap();
        let mut run = |counts: [usize; 3], sources: &[Option<usize>]| -> Vec<(PlacedColumn, Vec<u8>)> {
            slot.begin(3).unwrap();
            for (row, count) in counts.into_iter().enumerate() {
                let mut memory = slot.take_row(row);
                for column in [0, 2] {
                    let RowPlace::Ragged(out) = memory.column(column).unwrap() else { panic!("not ragged") };
                    out.raw(count, count * 6).fill((10 * column + row) as u8);
                }
                let RowPlace::Ragged(out) = memory.column(1).unwrap() else { panic!("not ragged") };
                out.f32s(count, count).fill(row as f32);
                slot.give_row(row, memory);
            }
            let placed = slot.finish(sources).unwrap();
            let bytes = |placed: PlacedColumn| {
                let start = slot.memory(placed.part).at(placed.offset).as_ptr();
                let bytes = placed.rows * placed.shape.iter().product::<usize>();
                // SAFETY: the slot is finished and holds these rows.
                let bytes = unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec();
                (placed, bytes)
            };
            placed.into_iter().map(bytes).collect()
        };
        let repeated = |rows: &[(u8, usize)]| -> Vec<u8> {
            rows.iter().flat_map(|(value, count)| vec![*value; count * 6]).collect()
        };
        let found = run([2, 0, 1], &[Some(0), Some(1), Some(2)]);
        let shapes: Vec<_> = found.iter().map(|(placed, _)| (placed.rows, placed.shape.clone())).collect();
        assert_eq!(shapes, [(3, vec![1, 2, 3]), (3, vec![2]), (3, vec![1, 2, 3])]);
        assert_eq!(found[0].1, repeated(&[(0, 2), (2, 1)]));
        assert_eq!(found[2].1, repeated(&[(20, 2), (22, 1)]));
        let found = run([2, 0, 1], &[Some(0), Some(0), None]);
        assert_eq!(found[0].0.lengths, Some(vec![2, 2, 0]));
        assert_eq!(found[0].1, repeated(&[(0, 4)]));
        let found = run([0, 0, 0], &[Some(0), Some(1), Some(2)]);
        assert_eq!((found[2].0.rows, found[2].0.lengths.clone()), (0, Some(vec![0; 3])));
    }

    #[test]
    fn padded_memory_follows_the_steps_down_again() {
        let mut slot = slot(vec![column(TensorSpec::new(DType::F32, [0], Layout::T).ragged(0))], 0).unwrap();
        let mut run = |length: usize| {
            slot.begin(1).unwrap();
            let mut memory = slot.take_row(0);
            let RowPlace::Ragged(out) = memory.column(0).unwrap() else { panic!("not ragged") };
            out.f32s(length, length).fill(1.0);
            slot.give_row(0, memory);
            slot.finish(&[Some(0)]).unwrap();
            slot.padded.size()
        };
        let (speech, talk) = (300_000, 20 * 300_000); // 1.2 MB, a usual batch; 24 MB, one with an audio clip of 10 min
        let usual = run(speech);
        let large = run(talk);
        assert!(large >= 4 * talk, "{large}");
        let after: Vec<usize> = (0..31).map(|_| run(speech)).collect();
        assert_eq!(after[0], large, "the next batch may be as long");
        assert_eq!(after[30], usual, "freed when 31 steps did not need it");
        // Memory that a data set's usual lengths need is not freed and allocated again.
        let mixed = (0..200).map(|step| run(if step % 15 == 0 { talk } else { speech }));
        let sizes: std::collections::BTreeSet<usize> = mixed.collect();
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        let halves: Vec<usize> = (0..64).map(|_| run(talk / 2)).collect();
        assert_eq!(halves[63], large, "less than the whole is not less than a quarter");
    }

    #[test]
    fn padded_memory_is_at_most_four_times_what_was_needed_lately() {
        let (mut size, mut bytes, mut needs) = (PaddedSize::default(), 0usize, Vec::new());
        for step in 0..5_000usize {
            // Rarely large, out of step with the comparisons.
            let needed = if step % 97 == 0 { 900 << 20 } else { (1 + step * 7919 % 40) << 20 };
            needs.push(needed);
            bytes = size.step(bytes, needed).unwrap_or(bytes);
            let lately = needs.iter().rev().take(2 * STEPS_REMEMBERED as usize - 1).max().unwrap();
            assert!(needed <= bytes && bytes <= SHRINK_FACTOR * lately, "step {step}: {bytes} for {lately}");
        }
    }

    #[test]
    fn absurd_shapes_are_refused() {
        assert_eq!(slot(vec![bytes(2)], usize::MAX).err().unwrap().kind(), ErrorKind::BadConfig);
        assert!(slot(vec![bytes(1 << 22), bytes(1 << 22)], 1 << 40).is_err());
    }
}
