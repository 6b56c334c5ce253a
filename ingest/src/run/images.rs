//! Maps of lists of images.

use crate::images::EncodedImages;
use crate::memory::row::RowPlace;
use crate::run::job::Map;
use crate::{Error, Result};
use arrow::record_batch::RecordBatch;
use feedstock_ops::{SampleSeed, Scratch};

/// Runs `map` on all images in one row of a block.
///
/// # Errors
/// `BadSample` for a list that is null and for an image that cannot be used, with its number.
pub(super) fn write_images(
    map: &Map,
    (rows, row): (&RecordBatch, usize),
    seed: SampleSeed,
    scratch: &mut Scratch,
    out: RowPlace<'_>,
) -> Result<()> {
    let RowPlace::Ragged(out) = out else {
        return Err(Error::bug("the rows of a list of images have a fixed place"));
    };
    map.chain.apply_list(&EncodedImages::of(rows, &map.column, row)?, seed, scratch, out)
}
