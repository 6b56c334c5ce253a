//! Pages of memory.

/// The unit of page-locking and of every alignment that Arrow or a GPU copy asks for.
pub const PAGE_BYTES: usize = 4096;
