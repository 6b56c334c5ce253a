//! Slots: the reusable memory of one batch's mapped columns.
//!
//! ```text
//! free ──offer──▶ being written (rows lent to tasks) ──▶ ready ──▶ leased by a Batch ──drop──▶ free
//! ```
//! One allocation holds all columns of a slot, each starting on a page, so that it can be page-locked as a whole and
//! Arrow can view it without a copy. A slot is never cleared: each row is written whole before it is read.

use feedstock_ingest::{Destination, Offers, RowMemory};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The unit of page-locking and of every alignment that Arrow or a GPU copy asks for.
const PAGE_BYTES: usize = 4096;

/// Page-aligned bytes, shared by the slot, its rows' tasks and the views of a finished batch.
pub(crate) struct SlotMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is plain bytes; who may touch which range when is the slot's protocol (see the module).
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// `None` where the system has no such memory.
    fn new(bytes: usize) -> Option<Self> {
        let size = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let layout = Layout::from_size_align(size, PAGE_BYTES).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    /// The address of byte `offset`.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.layout.size(), "byte {offset} lies outside the slot");
        // SAFETY: just checked to lie inside the allocation or at its end.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Where the rows of each mapped column lie in a slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotShape {
    pub(crate) rows: usize,
    /// By column: offset of row 0, bytes of a row.
    pub(crate) columns: Vec<(usize, usize)>,
    pub(crate) bytes: usize,
}

impl SlotShape {
    /// The shape for batches of up to `rows` rows of `row_bytes` by column; `None` past the address space.
    pub(crate) fn new(rows: usize, row_bytes: &[usize]) -> Option<Self> {
        let mut bytes = 0usize;
        let mut columns = Vec::with_capacity(row_bytes.len());
        for &row in row_bytes {
            columns.push((bytes, row));
            bytes = bytes.checked_add(rows.checked_mul(row)?.checked_next_multiple_of(PAGE_BYTES)?)?;
        }
        (bytes <= isize::MAX as usize).then_some(Self { rows, columns, bytes })
    }
}

/// One reusable batch buffer.
pub(crate) struct Slot {
    pub(crate) memory: Arc<SlotMemory>,
    pub(crate) shape: Arc<SlotShape>,
    taken: Vec<bool>,
}

impl Slot {
    /// `None` where the system has no memory for it.
    pub(crate) fn new(shape: Arc<SlotShape>) -> Option<Self> {
        Some(Self { memory: Arc::new(SlotMemory::new(shape.bytes)?), taken: vec![false; shape.rows], shape })
    }

    /// Copies row `from` over row `to` in every mapped column. Only while no row is lent.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize) {
        self.each_row(from, to, |source, target, bytes| {
            // SAFETY: two different rows do not overlap; `&mut self` with all rows' tasks done excludes others.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes) }
        });
    }

    /// Zeroes a row in every mapped column. Only while no row is lent.
    pub(crate) fn clear_row(&mut self, row: usize) {
        self.each_row(row, row, |_, target, bytes| {
            // SAFETY: as in `copy_row`.
            unsafe { std::ptr::write_bytes(target.as_ptr(), 0, bytes) }
        });
    }

    fn each_row(&mut self, from: usize, to: usize, touch: impl Fn(NonNull<u8>, NonNull<u8>, usize)) {
        assert!(
            from < self.shape.rows && to < self.shape.rows,
            "rows {from} and {to} of {}",
            self.shape.rows
        );
        for &(offset, bytes) in &self.shape.columns {
            touch(self.memory.at(offset + from * bytes), self.memory.at(offset + to * bytes), bytes);
        }
    }
}

impl Destination for Slot {
    fn take_row(&mut self, row: usize) -> RowMemory {
        assert!(!std::mem::replace(&mut self.taken[row], true), "row {row} is lent already");
        let columns =
            self.shape.columns.iter().map(|&(offset, bytes)| (self.memory.at(offset + row * bytes), bytes));
        // SAFETY: rows are disjoint ranges of memory that `memory` keeps alive, `taken` lends each once a step, and
        // the slot is read only after the engine gave it back, when every row's task is done.
        unsafe { RowMemory::new(columns.collect(), self.memory.clone()) }
    }
}

/// Where slots go when their batch is dropped.
#[derive(Default)]
pub(crate) struct Home {
    offers: OnceLock<Offers<Slot>>,
    leased: AtomicUsize,
}

impl Home {
    /// Connects the home to a run; slots that come home before are not reused.
    pub(crate) fn open(&self, offers: Offers<Slot>) {
        assert!(self.offers.set(offers).is_ok(), "a home belongs to one run");
    }

    pub(crate) fn offer(&self, mut slot: Slot) {
        slot.taken.fill(false);
        if let Some(offers) = self.offers.get() {
            offers.offer(slot);
        }
    }

    /// Slots that finished batches hold, delivered or ready.
    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Ordering::Acquire)
    }
}

/// A finished slot; dropping the last handle frees it.
pub(crate) struct Lease {
    slot: Option<Slot>,
    home: Arc<Home>,
}

impl Lease {
    pub(crate) fn new(slot: Slot, home: Arc<Home>) -> Self {
        home.leased.fetch_add(1, Ordering::AcqRel);
        Self { slot: Some(slot), home }
    }

    /// The address of byte `offset` of the finished slot.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        #[expect(clippy::expect_used, reason = "taken in Drop only")]
        self.slot.as_ref().expect("a lease holds its slot").memory.at(offset)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.home.leased.fetch_sub(1, Ordering::AcqRel);
        if let Some(slot) = self.slot.take() {
            self.home.offer(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_disjoint_and_columns_start_on_pages() {
        let shape = Arc::new(SlotShape::new(3, &[5, 4096]).unwrap());
        assert_eq!(shape.columns, [(0, 5), (4096, 4096)]);
        let mut slot = Slot::new(shape).unwrap();
        for row in 0..3u8 {
            let mut memory = slot.take_row(usize::from(row));
            memory.column(0).fill(row);
            memory.column(1).fill(row + 10);
        }
        slot.copy_row(2, 0);
        slot.clear_row(1);
        let lease = Lease::new(slot, Arc::default());
        // SAFETY: all rows are written and no task is left.
        let first = unsafe { std::slice::from_raw_parts(lease.at(0).as_ptr(), 15) };
        assert_eq!(first, [2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2]);
        assert_eq!(lease.at(0).as_ptr() as usize % PAGE_BYTES, 0);
    }

    #[test]
    #[should_panic(expected = "lent already")]
    fn a_row_is_lent_once() {
        let mut slot = Slot::new(Arc::new(SlotShape::new(2, &[8]).unwrap())).unwrap();
        let _first = slot.take_row(1);
        let _second = slot.take_row(1);
    }

    #[test]
    fn absurd_shapes_are_refused() {
        assert!(SlotShape::new(usize::MAX, &[2]).is_none());
        assert!(SlotShape::new(1 << 40, &[1 << 22, 1 << 22]).is_none());
    }
}
