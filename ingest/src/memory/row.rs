//! The memory of one row, lent to the task that writes it.
//!
//! A fixed column's row is a place in the destination, written once and never moved. Where a ragged row belongs is
//! known only when the longest row of its step is: it is written into a reused buffer and given back with its length.

use crate::{Error, Result};
use feedstock_ops::{RaggedRow, Warnings};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that idle buffers keep: 100 rows of 5 s of speech (80 mel bins, 100 frames a second are 160 KB). A step of more
/// takes the rest from the allocator and gives it back: 0.1 ms a MB, a hundredth of what decoding its audio clips takes.
const KEPT_BYTES: usize = 16 << 20;

/// A buffer is kept if its last row took at least a quarter of it. Otherwise, one long audio clip after the other would leave
/// all buffers as large as the longest.
const KEPT_FACTOR: usize = 4;

/// Buffers up to this are kept anyway.
const SMALL_BYTES: usize = 64 << 10;

/// Buffers of ragged rows, reused from step to step.
///
/// In addition to what is kept here there are the rows in use: those of the running step and a few of the next, since rows
/// are decoded in step order.
#[derive(Debug, Default)]
pub struct RowBuffers {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    rows: Vec<RaggedRow>,
    bytes: usize,
}

impl RowBuffers {
    /// Returns a buffer of unspecified content.
    pub fn take(&self) -> RaggedRow {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner); // counts are set with the rows
        let row = idle.rows.pop().unwrap_or_default();
        idle.bytes -= row.capacity_bytes();
        row
    }

    /// Gives a buffer back; what would keep too much memory is freed.
    pub fn give(&self, row: RaggedRow) {
        if row.capacity_bytes() > SMALL_BYTES.max(KEPT_FACTOR * row.bytes().len()) {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = idle.bytes + row.capacity_bytes();
        if bytes <= KEPT_BYTES {
            idle.bytes = bytes;
            idle.rows.push(row);
        }
    }
}

/// Where the rows of one mapped column are written.
#[derive(Debug, Clone, Copy)]
pub(super) enum RowColumn {
    /// Into `bytes` bytes each, one row after another, from `offset` on.
    Fixed { offset: usize, bytes: usize },
    /// Into buffers.
    Ragged,
}

/// Where the rows of a step are written.
#[derive(Debug)]
pub(super) struct RowLayout {
    /// In the order of the mapped columns.
    pub(super) columns: Box<[RowColumn]>,
    pub(super) buffers: Arc<RowBuffers>,
}

/// The memory of one row in every mapped column, in the order of [`Job::maps`](crate::Job::maps).
///
/// A [`RowSlab`](crate::RowSlab) lends it to one task.
pub struct RowMemory {
    lent: Option<Lent>,
    /// By column, the buffers of ragged ones that were asked for; shorter than the columns if the others were not.
    ragged: Vec<Option<RaggedRow>>,
    warnings: Warnings,
}

/// A row of a slab's memory.
struct Lent {
    layout: Arc<RowLayout>,
    row: usize,
    /// Where the memory begins.
    start: NonNull<u8>,
    memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `RowMemory::new`'s contract makes these ranges this value's alone, so moving it to another thread moves exclusive
// access.
unsafe impl Send for Lent {}

impl RowMemory {
    /// Lends `row` of the memory that begins at `start`.
    ///
    /// # Safety
    /// The bytes of `row` in each fixed column of `layout` are valid for reads and writes, and initialised, while `memory` lives,
    /// and nothing else reads or writes them until this value is dropped.
    pub(super) unsafe fn new(
        layout: Arc<RowLayout>,
        row: usize,
        start: NonNull<u8>,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let lent = Some(Lent { layout, row, start, memory });
        Self { lent, ragged: Vec::new(), warnings: Warnings::default() }
    }

    /// Returns the memory of a row if no column is mapped.
    pub fn empty() -> Self {
        Self { lent: None, ragged: Vec::new(), warnings: Warnings::default() }
    }

    /// Returns the warnings about the sample that was written; none before.
    pub fn warnings(&self) -> Warnings {
        self.warnings
    }

    pub(crate) fn set_warnings(&mut self, warnings: Warnings) {
        self.warnings = warnings;
    }

    /// Returns the row's memory in mapped column `index`: bytes of a fixed column, a buffer of a ragged one. The buffer is
    /// taken when it is first asked for, so that rows in a queue hold none.
    ///
    /// # Errors
    /// `Bug` if the row has no such column.
    pub fn column(&mut self, index: usize) -> Result<RowPlace<'_>> {
        let lent = self.lent.as_ref();
        let Some((lent, column)) = lent.and_then(|lent| Some((lent, *lent.layout.columns.get(index)?)))
        else {
            return Err(Error::bug(format!(
                "a row was asked for column {index}, for which it has no memory"
            )));
        };
        Ok(match column {
            RowColumn::Fixed { offset, bytes } => {
                // SAFETY: `new`'s contract; `&mut self` excludes a second borrow.
                RowPlace::Fixed(unsafe {
                    let start = lent.start.add(offset + lent.row * bytes);
                    std::slice::from_raw_parts_mut(start.as_ptr(), bytes)
                })
            }
            RowColumn::Ragged => {
                if self.ragged.is_empty() {
                    self.ragged.resize_with(lent.layout.columns.len(), || None);
                }
                RowPlace::Ragged(self.ragged[index].get_or_insert_with(|| lent.layout.buffers.take()))
            }
        })
    }

    /// Whether this is row `row` of `memory`.
    pub(super) fn is_of<M>(&self, memory: &Arc<M>, row: usize) -> bool {
        let own = self.lent.as_ref().map(|lent| (Arc::as_ptr(&lent.memory).cast::<()>(), lent.row));
        own == Some((Arc::as_ptr(memory).cast::<()>(), row))
    }

    /// Returns the buffers that were written, by mapped column; none at all if no column is ragged.
    pub(super) fn into_ragged(self) -> Vec<Option<RaggedRow>> {
        self.ragged
    }
}

/// Where one value goes.
#[derive(Debug)]
pub enum RowPlace<'a> {
    /// Exactly these bytes.
    Fixed(&'a mut [u8]),
    /// Any number of bytes.
    Ragged(&'a mut RaggedRow),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_up_to_a_bound() {
        let buffers = RowBuffers::default();
        let mut row = buffers.take();
        row.f32s(10, 10).fill(1.0);
        buffers.give(row);
        assert!(buffers.take().capacity_bytes() >= 40, "the memory comes back");
        assert_eq!(buffers.take().capacity_bytes(), 0);
        let mut large = RaggedRow::new();
        large.f32s(1, KEPT_BYTES / 4 + 2).fill(0.0);
        buffers.give(large);
        assert_eq!(buffers.take().capacity_bytes(), 0, "too large to keep");
    }

    #[test]
    fn a_buffer_does_not_stay_as_large_as_its_longest_row() {
        let buffers = RowBuffers::default();
        let kept_after = |lengths: [usize; 2]| {
            let mut row = buffers.take();
            for length in lengths {
                row.f32s(length, length).fill(1.0);
            }
            buffers.give(row);
            buffers.take().capacity_bytes()
        };
        let minutes = 1 << 20;
        assert!(kept_after([minutes, minutes / 2]) >= 4 * minutes, "lengths of one kind share a buffer");
        assert_eq!(kept_after([minutes, minutes / 10]), 0, "that of one long row is freed");
        assert!(kept_after([1000, 1]) > 0, "small ones stay");
    }
}
