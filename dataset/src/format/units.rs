//! Rows of columnar files, which are read in units: row groups, record batches.

use super::sides::Sides;
use crate::ObjectRef;
use crate::catalog::Counted;
use bytes::Bytes;
use std::ops::Range;

/// Rows of one unit of a columnar file.
pub(crate) struct UnitRows {
    pub(crate) object: ObjectRef,
    /// Its number in the catalog.
    pub(crate) number: u32,
    /// What the catalog keeps of the unit.
    pub(crate) description: Bytes,
    pub(crate) rows: Range<u64>,
    /// Whether these are some rows of a block whose pages are small and regular.
    pub(crate) is_of_pages: bool,
    pub(crate) counted: Counted,
    /// The small buffers of units that the reader holds.
    pub(crate) sides: Sides,
}
