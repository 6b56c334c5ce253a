//! Pages of memory.

/// The unit of page locking, and of every alignment that Arrow or a GPU copy requires.
///
/// ```
/// use feedstock_base::PAGE_BYTES;
///
/// let row_bytes = 224 * 224 * 3;
/// assert_eq!(row_bytes % PAGE_BYTES, 3072); // such rows are not page-aligned; batches are
/// let batch_bytes = (256 * row_bytes).next_multiple_of(PAGE_BYTES);
/// assert_eq!(batch_bytes / PAGE_BYTES, 9408);
/// ```
pub const PAGE_BYTES: usize = 4096;
