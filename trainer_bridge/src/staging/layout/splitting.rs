//! Columns of which the device decodes some rows.

use super::super::decoding::Undecoded;
use super::BufferLayout;
use super::parts::{Copied, CopySource, SplitRows, narrow, too_large};
use crate::batch::Tensor;
use crate::{Error, Result};
use feedstock_device::driver::ALIGN_BYTES;
use feedstock_device::handles::Address;
use feedstock_device::kernels::{CropArguments, CropRow};
use feedstock_ops::TensorSpec;
use feedstock_ops::image::{DeferredRow, Rect, Size};

/// The alignment of the lines of decoded images.
const PITCH_BYTES: usize = 32;

impl BufferLayout {
    /// Separates pixels from JPEGs in the rows of a column of which the device decodes some, and stages their crops.
    pub(super) fn split(&mut self, tensor: &Tensor, spec: &TensorSpec) -> Result<SplitRows> {
        let bug = |what: &str| Error::bug(format!("a column that the device decodes {what}"));
        let row_bytes = tensor.byte_len() / tensor.rows;
        let (mut pixels, mut undecoded, mut crops) = (Vec::new(), Vec::new(), Vec::new());
        let mut black = None;
        for (row, length) in tensor.lengths().ok_or_else(|| bug("has no lengths"))?.iter().enumerate() {
            let from = row * row_bytes;
            if *length == 0 {
                // A row without a good source.
                let staged = *black.get_or_insert_with(|| self.stage(&vec![0; spec.bytes()]));
                pixels.push((row, CopySource::Staged(staged - self.staged_from)));
                continue;
            }
            match DeferredRow::read(&tensor.row(row)[..*length])? {
                DeferredRow::Pixels(content) if content.len() != spec.bytes() => {
                    return Err(bug("has a row of another size"));
                }
                DeferredRow::Pixels(_) => pixels.push((row, CopySource::Column(0, from))),
                DeferredRow::Jpeg(bytes, shown) => {
                    let Size { height, width } = shown.picture;
                    let Rect { x, y, width: across, height: down } = shown.view;
                    let is_inside = |first: u32, length: u32, limit: u32| {
                        length > 0 && first.checked_add(length).is_some_and(|end| end <= limit)
                    };
                    if !(is_inside(x, across, width) && is_inside(y, down, height)) {
                        return Err(bug("shows what is not in the image"));
                    }
                    let pitch = (width as usize * 3).next_multiple_of(PITCH_BYTES);
                    let at = self.arena_bytes.next_multiple_of(ALIGN_BYTES);
                    let end = pitch.checked_mul(height as usize).and_then(|bytes| at.checked_add(bytes));
                    self.arena_bytes = end.ok_or_else(too_large)?;
                    let mirrored = u32::from(shown.mirrored);
                    let (row_number, stride) = (narrow(row)?, narrow(pitch)?);
                    crops.push(CropRow {
                        source: at as u64,
                        row: row_number,
                        mirrored,
                        stride,
                        view: [x, y, across, down],
                        upended: u32::from(shown.upended),
                        window: shown.window,
                    });
                    let (length, size) = (bytes.len(), (width, height));
                    undecoded.push(Undecoded { tensor: 0, from, length, size, at, pitch, row, offset: 0 });
                }
            }
        }
        let (table, count) = (self.stage_values(&crops), narrow(crops.len())?);
        Ok(SplitRows { spec: spec.clone(), rows: tensor.rows, pixels, undecoded, table, count })
    }

    /// Reserves memory for the rows of column `tensor`, adds the copies and crops that fill it, and returns its offset.
    pub(super) fn place_split(&mut self, tensor: usize, split: SplitRows) -> Result<usize> {
        let SplitRows { spec, rows, pixels, undecoded, table, count } = split;
        let bytes = spec.bytes();
        let start = self.reserve(rows.checked_mul(bytes).ok_or_else(too_large)?)?;
        let place = |row: usize| start + row * bytes;
        let of_column = |from: CopySource| match from {
            CopySource::Column(_, from) => CopySource::Column(tensor, from),
            CopySource::Staged(_) => from,
        };
        let copies = pixels.into_iter();
        self.copies.extend(copies.map(|(row, from)| Copied {
            from: of_column(from),
            offset: place(row),
            bytes,
        }));
        let undecoded = undecoded.into_iter();
        self.undecoded.extend(undecoded.map(|one| Undecoded { tensor, offset: place(one.row), ..one }));
        if count > 0 {
            let (height, width) = (narrow(spec.shape[0])?, narrow(spec.shape[1])?);
            narrow(spec.shape[0] * spec.shape[1])?; // threads of a row
            let (arena, output) = (Address::NULL, Address(start as u64));
            self.crops.push(CropArguments { arena, crops: table, output, count, height, width, unused: 0 });
        }
        Ok(start)
    }
}
