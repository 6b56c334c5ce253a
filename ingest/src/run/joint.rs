//! Joint maps: images and masks of a sample, which must have one size, and boxes and keypoints, which follow the image. Boxes
//! draw the crop of `random_iou_crop` for all of them.

use crate::lists::{numbers, write_kept};
use crate::memory::row::RowPlace;
use crate::run::job::Map;
use crate::value::{unusable, value};
use crate::{Error, ErrorKind, Result};
use arrow::record_batch::RecordBatch;
use feedstock_ops::SampleSeed;

/// Compares an image or a mask with the first one of its joint map, both encoded. An image whose header cannot be read is
/// left to its own map, which names it.
///
/// # Errors
/// `BadSample` if they differ in size.
pub(super) fn check_size(own: (&Map, &[u8]), partner: (&Map, &[u8])) -> Result<()> {
    let size = |(map, encoded): (&Map, &[u8])| map.chain.image_size(encoded).ok().flatten();
    let (Some([own_height, own_width]), Some([height, width])) = (size(own), size(partner)) else {
        return Ok(());
    };
    if [own_height, own_width] == [height, width] {
        return Ok(());
    }
    let (own, partner) = (&own.0.column, &partner.0.column);
    Err(Error::new(
        ErrorKind::BadSample,
        format!(
            "'{own}' is {own_height}×{own_width} (height × width), and '{partner}', which is mapped jointly, \
             {height}×{width}"
        ),
    ))
}

/// An error, and the column of the joint map that is at fault.
pub(super) struct Fault<'a> {
    pub(super) column: &'a str,
    pub(super) error: Error,
}

impl<'a> Fault<'a> {
    /// Names the column of `map` in the error.
    fn of(map: &'a Map, error: Error) -> Self {
        Self { column: &map.column, error: error.context(format!("'{}'", map.column)) }
    }

    fn bad_value(map: &'a Map, problem: &str) -> Self {
        Self::of(map, unusable(problem))
    }
}

/// The crop that the boxes of one row have drawn, so that the maps of a joint map draw it once.
#[derive(Default)]
pub(super) struct DrawnCrop(Option<(usize, SampleSeed)>);

impl DrawnCrop {
    /// Returns the seed that `map` draws from: with the crop that boxes draw for its `random_iou_crop`.
    ///
    /// # Errors
    /// `BadSample` for lists that are not boxes and for an image whose header cannot be read, with the name of the column.
    pub(super) fn seed_of<'a>(
        &mut self,
        maps: &'a [Map],
        map: &Map,
        row: (&RecordBatch, usize),
        seed: SampleSeed,
    ) -> Result<SampleSeed, Fault<'a>> {
        let Some(index) = map.crop_boxes else { return Ok(seed) };
        if let Some((drawn, seed)) = self.0
            && drawn == index
        {
            return Ok(seed);
        }
        let boxes = &maps[index];
        let size = image_size(maps, boxes, row)?;
        let found =
            numbers(row.0, &boxes.column, row.1).map_err(|problem| Fault::bad_value(boxes, &problem))?;
        let drawn = boxes.chain.draw_crop(found.list(), size, seed);
        let drawn = drawn.map_err(|error| Fault::of(boxes, error))?;
        self.0 = Some((index, drawn));
        Ok(drawn)
    }
}

/// Returns height and width of the image that a map of boxes or keypoints follows.
///
/// # Errors
/// `BadSample` for an image whose header cannot be read, with the name of its column.
fn image_size<'a>(
    maps: &'a [Map],
    map: &'a Map,
    (rows, row): (&RecordBatch, usize),
) -> Result<[u32; 2], Fault<'a>> {
    let Some(image) = map.partner.map(|partner| &maps[partner]) else {
        return Err(Fault::of(map, Error::bug("it has no image to follow")));
    };
    let encoded = value(rows, &image.column, row).map_err(|problem| Fault::bad_value(image, problem))?;
    let size = image.chain.image_size(encoded).map_err(|error| Fault::of(image, error))?;
    size.ok_or_else(|| Fault::of(image, Error::bug("it is not an image")))
}

/// Writes boxes, keypoints, the values along boxes, or the matrix of the geometry of one row of a block, all of which follow an image
/// of the same row.
///
/// # Errors
/// `BadSample` for lists that are not boxes or keypoints, with the name of the column, and for an image whose header cannot be
/// read.
pub(super) fn write_annotation<'a>(
    maps: &'a [Map],
    map: &'a Map,
    (rows, row): (&RecordBatch, usize),
    seed: SampleSeed,
    out: RowPlace<'_>,
) -> Result<(), Fault<'a>> {
    let size = image_size(maps, map, (rows, row))?;
    let out = match out {
        RowPlace::Ragged(out) => out,
        RowPlace::Fixed(out) => {
            let written = map.chain.transform(size, seed, out);
            return written.map_err(|error| Fault::of(map, error));
        }
    };
    let list_of = map.along.map_or(map, |boxes| &maps[boxes]);
    let found = numbers(rows, &list_of.column, row).map_err(|problem| Fault::bad_value(list_of, &problem))?;
    let about = |error: Error| Fault::of(list_of, error);
    if map.along.is_none() {
        return map.chain.annotate(found.list(), size, seed, out).map_err(about);
    }
    let kept = map.chain.kept(found.list(), size, seed).map_err(about)?;
    let boxes = found.list().values.len() / BOX_NUMBERS;
    write_kept((rows, &map.column, row), map.chain.output().dtype, (&kept, boxes), out)
        .map_err(|problem| Fault::bad_value(map, &problem))
}

/// Numbers of a box.
const BOX_NUMBERS: usize = 4;
