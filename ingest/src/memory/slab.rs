//! The memory of one step's rows, which lends each row to the task that writes it.
//!
//! ```text
//! begin(rows) ─▶ take_row(row) ─▶ RowMemory, on any thread ─▶ give_row(row) ─▶ bytes(row, column)
//! ```
//! This is the only place that lends memory without a borrow. Both users wrap it: a rank's slots and the places of a worker's
//! lanes. Fixed columns follow each other, each beginning on a page; ragged rows are written into buffers that are reused.
//!
//! Why it is sound:
//! - Rows of columns are disjoint ranges inside the memory, which was allocated for all of them.
//! - `taken` lends each row once between two calls of `begin`, and `begin` panics while a row of the step before is lent. A
//!   row that was lent holds a handle of the memory, so what is still lent can be counted by these handles.
//! - All other access panics while a row is lent. Only this file makes a [`RowMemory`] that has memory, so one that comes back
//!   and holds this memory is one that was lent.

use crate::memory::pages::Pages;
use crate::memory::row::{RowBuffers, RowColumn, RowLayout, RowMemory};
use crate::{Error, Result};
use feedstock_base::PAGE_BYTES;
use feedstock_ops::{RaggedRow, TensorSpec};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that a [`RowSlab`] can lend.
///
/// # Safety
/// `start` is the address of `size` bytes that are initialised, and valid for reads and writes while the value lives. Neither
/// changes, and nothing but the value's holder reads or writes these bytes.
pub unsafe trait SlabMemory: Send + Sync + 'static {
    /// Returns the number of bytes.
    fn size(&self) -> usize;
    /// Returns the address of the first byte, aligned to a page.
    fn start(&self) -> NonNull<u8>;
}

// SAFETY: a separate mapping, of zeros at first, that neither moves nor changes its size.
unsafe impl SlabMemory for Pages {
    fn size(&self) -> usize {
        self.size()
    }

    fn start(&self) -> NonNull<u8> {
        self.at(0)
    }
}

/// The memory of the rows of one step after another. It grows to the largest step, and is never cleared.
///
/// ```
/// # use std::sync::Arc;
/// # use feedstock_ingest::{Error, Pages, RowBuffers, RowPlace, RowSlab};
/// # use feedstock_ops::{DType, Layout, TensorSpec};
/// let specs = [TensorSpec::new(DType::U8, [4], Layout::T)];
/// let allocate = |bytes| Pages::new(bytes).map(Arc::new).ok_or_else(|| Error::config("no memory is left"));
/// let mut slab = RowSlab::new(specs.into(), Arc::new(RowBuffers::default()), allocate(0)?);
/// slab.begin(2, allocate)?;
/// let mut row = slab.take_row(1); // lent to the task that decodes it
/// if let RowPlace::Fixed(bytes) = row.column(0)? {
///     bytes.copy_from_slice(b"abcd");
/// }
/// slab.give_row(1, row);
/// slab.copy_row(0, Some(1), 0)?; // a substitute for row 0
/// assert_eq!((slab.bytes(0, 0), slab.bytes(1, 0)), (&b"abcd"[..], &b"abcd"[..]));
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
pub struct RowSlab<M> {
    specs: Arc<[TensorSpec]>,
    memory: Arc<M>,
    /// Where rows are in `memory`.
    layout: Arc<RowLayout>,
    /// Rows that `memory` has room for.
    capacity_rows: usize,
    /// Which rows of the step have been lent.
    taken: Vec<bool>,
    /// How many of them have not come back.
    lent_rows: usize,
    /// By row, and then by column, what was written into buffers. A row without such columns has none.
    ragged: Vec<Vec<Option<RaggedRow>>>,
}

impl<M: SlabMemory> RowSlab<M> {
    /// Returns a slab without room for rows. `specs` are the tensors of a row, in the order of the mapped columns; `buffers`
    /// are those of ragged rows; `memory` may be empty.
    pub fn new(specs: Arc<[TensorSpec]>, buffers: Arc<RowBuffers>, memory: Arc<M>) -> Self {
        let layout = Arc::new(RowLayout { columns: Box::default(), buffers });
        Self { specs, memory, layout, capacity_rows: 0, taken: Vec::new(), lent_rows: 0, ragged: Vec::new() }
    }

    /// Makes room for `rows` rows with memory from `allocate`, which returns at least the bytes that it is asked for. The old
    /// memory is freed before the new one is allocated.
    ///
    /// # Errors
    /// Those of `allocate`. `Bug` if it returns less memory than it was asked for.
    ///
    /// # Panics
    /// If a row is lent.
    pub fn reserve(&mut self, rows: usize, allocate: impl Fn(usize) -> Result<Arc<M>>) -> Result<()> {
        self.assert_none_lent();
        if rows <= self.capacity_rows && self.layout.columns.len() == self.specs.len() {
            return Ok(());
        }
        let (columns, bytes) = match layout(&self.specs, rows) {
            Some((columns, bytes)) => (columns, bytes),
            None => (Box::default(), usize::MAX), // no allocator has that much
        };
        let buffers = self.layout.buffers.clone();
        (self.capacity_rows, self.layout) =
            (0, Arc::new(RowLayout { columns: Box::default(), buffers: buffers.clone() }));
        self.memory = allocate(0)?;
        let memory = allocate(bytes)?;
        if memory.size() < bytes {
            return Err(Error::bug(format!("{bytes} bytes were requested and {} allocated", memory.size())));
        }
        (self.memory, self.capacity_rows) = (memory, rows);
        self.layout = Arc::new(RowLayout { columns, buffers });
        Ok(())
    }

    /// Begins a step of `rows` rows, none of which is lent yet.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    ///
    /// # Panics
    /// If a row of the step before is lent.
    pub fn begin(&mut self, rows: usize, allocate: impl Fn(usize) -> Result<Arc<M>>) -> Result<()> {
        self.reserve(rows, allocate)?;
        self.taken.clear();
        self.taken.resize(rows, false);
        self.recycle();
        self.ragged.resize_with(rows, Vec::new);
        Ok(())
    }

    /// Gives the buffers of ragged rows back, for other rows.
    pub fn recycle(&mut self) {
        for row in self.ragged.drain(..).flatten().flatten() {
            self.layout.buffers.give(row);
        }
    }

    /// Lends the memory of `row`.
    ///
    /// # Panics
    /// If the step has no such row, or it was lent before.
    pub fn take_row(&mut self, row: usize) -> RowMemory {
        assert!(!std::mem::replace(&mut self.taken[row], true), "row {row} is lent already");
        self.lent_rows += 1;
        // SAFETY: the rows of each column are disjoint ranges inside `memory`, whose handle keeps it; this one is lent once, and
        // is not accessed here until it has come back.
        unsafe { RowMemory::new(self.layout.clone(), row, self.memory.start(), self.memory.clone()) }
    }

    /// Takes the memory of `row` back.
    ///
    /// # Panics
    /// If `memory` is not that of `row`, or was lent by another slab.
    pub fn give_row(&mut self, row: usize, memory: RowMemory) {
        assert!(memory.is_of(&self.memory, row), "row {row} comes back with memory of another row or slab");
        self.ragged[row] = memory.into_ragged();
        self.lent_rows -= 1;
    }

    /// Returns the bytes of a row in a column: of a ragged one those that were written.
    ///
    /// # Panics
    /// If a row is lent, or there is no such row or column.
    pub fn bytes(&self, row: usize, column: usize) -> &[u8] {
        match self.layout.columns[column] {
            RowColumn::Ragged => self.ragged(row, column).map_or(&[], RaggedRow::bytes),
            RowColumn::Fixed { offset, bytes } => {
                let start = self.row_start(offset, bytes, row);
                // SAFETY: `row_start` checks the range and that no row is lent; `&self` keeps rows from being lent meanwhile.
                unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) }
            }
        }
    }

    /// Returns what was written into a ragged column of `row`, if anything was.
    pub fn ragged(&self, row: usize, column: usize) -> Option<&RaggedRow> {
        self.ragged.get(row)?.get(column)?.as_ref()
    }

    /// Replaces the bytes of row `to` in a fixed column by those of row `from`, or by zeros.
    ///
    /// # Errors
    /// `Bug` if the column is ragged.
    ///
    /// # Panics
    /// If a row is lent, or there is no such row or column.
    pub fn copy_row(&mut self, column: usize, from: Option<usize>, to: usize) -> Result<()> {
        let RowColumn::Fixed { offset, bytes } = self.layout.columns[column] else {
            return Err(Error::bug(format!(
                "column {column} is ragged, so its rows cannot be copied in place"
            )));
        };
        let target = self.row_start(offset, bytes, to);
        let source = from.map(|from| self.row_start(offset, bytes, from));
        // SAFETY: `row_start` checks the ranges and that no row is lent, and `&mut self` excludes every other access. `copy`
        // allows the two to be the same row.
        unsafe {
            match source {
                Some(source) => std::ptr::copy(source.as_ptr(), target.as_ptr(), bytes),
                None => std::ptr::write_bytes(target.as_ptr(), 0, bytes),
            }
        }
        Ok(())
    }

    /// Returns where the first row of a fixed column begins in [`memory`](Self::memory); `None` for a ragged one.
    ///
    /// # Panics
    /// If there is no such column, or no room was reserved.
    pub fn offset(&self, column: usize) -> Option<usize> {
        match self.layout.columns[column] {
            RowColumn::Fixed { offset, .. } => Some(offset),
            RowColumn::Ragged => None,
        }
    }

    /// Returns the memory of the fixed columns. Reading it is sound only while no row is lent.
    pub fn memory(&self) -> &Arc<M> {
        &self.memory
    }

    /// Returns the tensors of a row.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Returns the start of the `bytes` bytes of `row` in the column at `offset`.
    fn row_start(&self, offset: usize, bytes: usize, row: usize) -> NonNull<u8> {
        assert_eq!(self.lent_rows, 0, "rows are lent");
        assert!(row < self.taken.len(), "row {row} of {}", self.taken.len());
        // SAFETY: the step has at most `capacity_rows` rows, for which the memory was allocated.
        unsafe { self.memory.start().add(offset + row * bytes) }
    }

    /// Rows that are lent hold handles of the memory, those that were dropped and did not come back do not.
    fn assert_none_lent(&mut self) {
        assert!(
            Arc::get_mut(&mut self.memory).is_some(),
            "{} rows of the step before are lent",
            self.lent_rows
        );
        self.lent_rows = 0;
    }
}

/// Returns where the columns are in the memory of `rows` rows, each beginning on a page, and its size in bytes. `None` if that
/// exceeds the address space.
fn layout(specs: &[TensorSpec], rows: usize) -> Option<(Box<[RowColumn]>, usize)> {
    let mut end = 0usize;
    let mut columns = Vec::with_capacity(specs.len());
    for spec in specs {
        if spec.is_ragged() {
            columns.push(RowColumn::Ragged);
            continue;
        }
        let bytes = spec.bytes();
        columns.push(RowColumn::Fixed { offset: end, bytes });
        end = end.checked_add(rows.checked_mul(bytes)?.checked_next_multiple_of(PAGE_BYTES)?)?;
    }
    Some((columns.into(), end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::memory::row::RowPlace;
    use feedstock_ops::{DType, Layout};
    use proptest::prelude::*;
    use std::sync::mpsc::channel;

    fn allocate(bytes: usize) -> Result<Arc<Pages>> {
        Pages::new(bytes).map(Arc::new).ok_or_else(|| Error::config("no memory"))
    }

    fn slab(specs: &[TensorSpec]) -> RowSlab<Pages> {
        RowSlab::new(specs.into(), Arc::default(), allocate(0).unwrap())
    }

    fn fixed(bytes: usize) -> TensorSpec {
        TensorSpec::new(DType::U8, [bytes], Layout::T)
    }

    fn ragged() -> TensorSpec {
        TensorSpec::new(DType::U8, [0], Layout::T).ragged(0)
    }

    /// The bytes of a row in a column of a step.
    fn made(spec: &TensorSpec, step: usize, row: usize, column: usize) -> Vec<u8> {
        let length = if spec.is_ragged() { (row * 7 + step) % 50 } else { spec.bytes() };
        (0..length).map(|byte| (step * 89 + row * 31 + column * 7 + byte) as u8).collect()
    }

    fn write(memory: &mut RowMemory, specs: &[TensorSpec], step: usize, row: usize) {
        for (column, spec) in specs.iter().enumerate() {
            let bytes = made(spec, step, row, column);
            match memory.column(column).unwrap() {
                RowPlace::Fixed(out) => out.copy_from_slice(&bytes),
                RowPlace::Ragged(out) => out.raw(bytes.len(), bytes.len()).copy_from_slice(&bytes),
            }
        }
    }

    fn column() -> impl Strategy<Value = TensorSpec> {
        prop_oneof![(0..70usize).prop_map(fixed), Just(fixed(PAGE_BYTES + 1)), Just(ragged())]
    }

    /// Rows in the order in which they are lent.
    fn step() -> impl Strategy<Value = Vec<usize>> {
        (0..40usize).prop_flat_map(|rows| Just((0..rows).collect::<Vec<_>>()).prop_shuffle())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// All rows of a step are lent in a random order, written by several threads at once, and given back as they come.
        #[test]
        fn rows_hold_what_threads_wrote_into_them(
            specs in proptest::collection::vec(column(), 0..4),
            steps in proptest::collection::vec(step(), 1..5),
            threads in 1..5usize,
        ) {
            let mut slab = slab(&specs);
            for (index, order) in steps.iter().enumerate() {
                slab.begin(order.len(), allocate).unwrap();
                std::thread::scope(|scope| {
                    let (done, written) = channel();
                    let queues: Vec<_> = (0..threads).map(|_| {
                        let (lent, queue) = channel::<(usize, RowMemory)>();
                        let (done, specs) = (done.clone(), &specs);
                        scope.spawn(move || for (row, mut memory) in queue {
                            write(&mut memory, specs, index, row);
                            done.send((row, memory)).unwrap();
                        });
                        lent
                    }).collect();
                    for (nth, &row) in order.iter().enumerate() {
                        queues[nth % threads].send((row, slab.take_row(row))).unwrap();
                        if let Ok((row, memory)) = written.try_recv() {
                            slab.give_row(row, memory);
                        }
                    }
                    drop((queues, done));
                    for (row, memory) in written {
                        slab.give_row(row, memory);
                    }
                });
                for row in 0..order.len() {
                    for (column, spec) in specs.iter().enumerate() {
                        prop_assert_eq!(slab.bytes(row, column), made(spec, index, row, column));
                    }
                }
            }
        }
    }

    #[test]
    fn columns_begin_on_pages_and_rows_are_replaced() {
        let mut slab = slab(&[fixed(5), ragged(), fixed(3)]);
        slab.begin(3, allocate).unwrap();
        for row in 0..3 {
            let mut memory = slab.take_row(row);
            write(&mut memory, &[fixed(5), ragged(), fixed(3)], 0, row);
            slab.give_row(row, memory);
        }
        assert_eq!([0, 1, 2].map(|column| slab.offset(column)), [Some(0), None, Some(PAGE_BYTES)]);
        assert_eq!(slab.memory().start().as_ptr() as usize % PAGE_BYTES, 0);
        for (from, to) in [(Some(2), 0), (None, 1), (Some(2), 2)] {
            slab.copy_row(2, from, to).unwrap();
        }
        assert_eq!(slab.copy_row(1, Some(0), 1).unwrap_err().kind(), ErrorKind::Bug);
        let last = made(&fixed(3), 0, 2, 2);
        assert_eq!([0, 1, 2].map(|row| slab.bytes(row, 2)), [&last[..], &[0; 3], &last[..]]);
        assert_eq!(slab.bytes(1, 0), made(&fixed(5), 0, 1, 0), "other columns stay");
    }

    #[test]
    fn a_column_that_is_not_mapped_is_a_bug() {
        let mut slab = slab(&[fixed(1)]);
        slab.begin(1, allocate).unwrap();
        let error = slab.take_row(0).column(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
        assert_eq!(RowMemory::empty().column(0).unwrap_err().kind(), ErrorKind::Bug);
    }

    #[test]
    fn a_slab_that_got_no_memory_can_be_used_again() {
        let mut slab = slab(&[fixed(8)]);
        slab.begin(2, allocate).unwrap();
        let small = |bytes| if bytes > 1 << 20 { Err(Error::config("full")) } else { allocate(bytes) };
        assert_eq!(slab.begin(1 << 20, small).unwrap_err().kind(), ErrorKind::BadConfig);
        slab.begin(2, small).unwrap();
        let mut memory = slab.take_row(1);
        write(&mut memory, &[fixed(8)], 0, 1);
        slab.give_row(1, memory);
        assert_eq!(slab.bytes(1, 0), made(&fixed(8), 0, 1, 0));
        assert!(slab.begin(usize::MAX, allocate).is_err(), "more than the address space");
        let too_little = |_| allocate(0);
        assert_eq!(slab.begin(1 << 20, too_little).unwrap_err().kind(), ErrorKind::Bug);
    }

    #[test]
    fn a_row_that_was_dropped_is_no_longer_lent() {
        let mut slab = slab(&[fixed(8)]);
        slab.begin(1, allocate).unwrap();
        drop(slab.take_row(0));
        slab.begin(1, allocate).unwrap();
        let memory = slab.take_row(0);
        slab.give_row(0, memory);
        assert_eq!(slab.bytes(0, 0).len(), 8);
    }

    #[test]
    #[should_panic(expected = "lent already")]
    fn a_row_is_lent_once() {
        let mut slab = slab(&[fixed(8)]);
        slab.begin(2, allocate).unwrap();
        let _first = slab.take_row(1);
        let _second = slab.take_row(1);
    }

    #[test]
    #[should_panic(expected = "rows are lent")]
    fn rows_are_not_read_while_one_is_lent() {
        let mut slab = slab(&[fixed(8)]);
        slab.begin(2, allocate).unwrap();
        let _lent = slab.take_row(1);
        let _read = slab.bytes(0, 0);
    }

    #[test]
    #[should_panic(expected = "of the step before are lent")]
    fn a_step_does_not_begin_while_a_row_is_lent() {
        let mut slab = slab(&[fixed(8)]);
        slab.begin(2, allocate).unwrap();
        let _lent = slab.take_row(1);
        let _error = slab.begin(2, allocate);
    }

    #[test]
    #[should_panic(expected = "memory of another row or slab")]
    fn a_row_comes_back_to_the_slab_that_lent_it() {
        let (mut one, mut other) = (slab(&[fixed(8)]), slab(&[fixed(8)]));
        one.begin(1, allocate).unwrap();
        other.begin(1, allocate).unwrap();
        let _lent = one.take_row(0);
        one.give_row(0, other.take_row(0));
    }
}
