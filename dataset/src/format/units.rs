//! Rows of columnar files, which are read in units: row groups, record batches.

use crate::ObjectRef;
use crate::catalog::Counted;
use bytes::Bytes;
use std::ops::Range;

/// Rows of one unit of a columnar file.
pub(crate) struct UnitRows {
    pub(crate) object: ObjectRef,
    /// What the catalog keeps of the unit.
    pub(crate) description: Bytes,
    pub(crate) rows: Range<u64>,
    pub(crate) counted: Counted,
}
