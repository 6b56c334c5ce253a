//! Pages of memory.

/// The unit of page locking, and of every alignment that Arrow or a GPU copy requires.
pub const PAGE_BYTES: usize = 4096;
