//! The row that a chain of audio writes into.

use crate::buffer::fit;
use crate::plan::Row;
use feedstock_base::{Error, Result};

/// Lets `fill` write a row of `length` with `elements` elements, into `spare` if the row is not aligned.
pub(super) fn write(
    row: Row<'_>,
    length: usize,
    elements: usize,
    spare: &mut Vec<f32>,
    fill: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let bytes = match row {
        Row::Ragged(row) => return fill(row.f32s(length, elements)),
        Row::Fixed(bytes) => bytes,
    };
    if bytes.len() != elements * size_of::<f32>() {
        let needed = bytes.len();
        return Err(Error::bug(format!("a row of {needed} bytes cannot hold {elements} elements of f32")));
    }
    // SAFETY: any bits are an f32.
    if let ([], row, []) = unsafe { bytes.align_to_mut::<f32>() } {
        return fill(row);
    }
    fit(spare, elements);
    spare.resize(elements, 0.0);
    fill(&mut spare[..elements])?;
    for (bytes, x) in bytes.chunks_exact_mut(size_of::<f32>()).zip(&*spare) {
        bytes.copy_from_slice(&x.to_ne_bytes());
    }
    Ok(())
}
