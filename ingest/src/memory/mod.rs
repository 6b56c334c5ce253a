//! The memory that rows are written into.

pub(crate) mod pages;
pub(crate) mod row;
pub(crate) mod slab;
