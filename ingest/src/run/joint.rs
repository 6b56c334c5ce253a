//! Joint maps: images and masks of a sample, which must have one size, and boxes and keypoints, which follow the image. Boxes
//! draw the crop of `random_iou_crop` for all of them.

use crate::lists::{numbers, write_kept};
use crate::memory::row::RowPlace;
use crate::run::job::Map;
use crate::value::value;
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

/// The crop that the boxes of one row have drawn, so that the maps of a joint map draw it once.
#[derive(Default)]
pub(super) struct DrawnCrop(Option<(usize, SampleSeed)>);

impl DrawnCrop {
    /// Returns the seed that `map` draws from: with the crop that boxes draw for its `random_iou_crop`.
    ///
    /// # Errors
    /// `BadSample` for lists that are not boxes and for an image whose header cannot be read, with the name of the column.
    pub(super) fn seed_of(
        &mut self,
        maps: &[Map],
        map: &Map,
        row: (&RecordBatch, usize),
        seed: SampleSeed,
    ) -> Result<SampleSeed> {
        let Some(index) = map.crop_boxes else { return Ok(seed) };
        if let Some((drawn, seed)) = self.0
            && drawn == index
        {
            return Ok(seed);
        }
        let boxes = &maps[index];
        let size = image_size(maps, boxes, row)?;
        let found = numbers(row.0, &boxes.column, row.1).map_err(|problem| bad(boxes, &problem))?;
        let drawn = boxes.chain.draw_crop(found.list(), size, seed);
        let drawn = drawn.map_err(|error| error.context(format!("'{}'", boxes.column)))?;
        self.0 = Some((index, drawn));
        Ok(drawn)
    }
}

/// Returns height and width of the image that a map of boxes or keypoints follows.
///
/// # Errors
/// `BadSample` for an image whose header cannot be read, with the name of its column.
fn image_size(maps: &[Map], map: &Map, (rows, row): (&RecordBatch, usize)) -> Result<[u32; 2]> {
    let Some(image) = map.partner.map(|partner| &maps[partner]) else {
        return Err(Error::bug(format!("'{}' has no image to follow", map.output)));
    };
    let encoded = value(rows, &image.column, row).map_err(|problem| bad(image, problem))?;
    let size =
        image.chain.image_size(encoded).map_err(|error| error.context(format!("'{}'", image.column)))?;
    size.ok_or_else(|| Error::bug(format!("'{}' is not an image", image.column)))
}

/// Writes boxes, keypoints, the values along boxes, or the matrix of the geometry of one row of a block, all of which follow an image
/// of the same row.
///
/// # Errors
/// `BadSample` for lists that are not boxes or keypoints, with the name of the column, and for an image whose header cannot be
/// read.
pub(super) fn write_annotation(
    maps: &[Map],
    map: &Map,
    (rows, row): (&RecordBatch, usize),
    seed: SampleSeed,
    out: RowPlace<'_>,
) -> Result<()> {
    let size = image_size(maps, map, (rows, row))?;
    let out = match out {
        RowPlace::Ragged(out) => out,
        RowPlace::Fixed(out) => {
            let written = map.chain.transform(size, seed, out);
            return written.map_err(|error| error.context(format!("'{}'", map.column)));
        }
    };
    let list_of = map.along.map_or(map, |boxes| &maps[boxes]);
    let found = numbers(rows, &list_of.column, row).map_err(|problem| bad(list_of, &problem))?;
    let about = |error: Error| error.context(format!("'{}'", list_of.column));
    if map.along.is_none() {
        return map.chain.annotate(found.list(), size, seed, out).map_err(about);
    }
    let kept = map.chain.kept(found.list(), size, seed).map_err(about)?;
    let boxes = found.list().values.len() / BOX_NUMBERS;
    write_kept((rows, &map.column, row), map.chain.output().dtype, (&kept, boxes), out)
        .map_err(|problem| bad(map, &problem))
}

/// Numbers of a box.
const BOX_NUMBERS: usize = 4;

fn bad(map: &Map, problem: &str) -> Error {
    Error::bad_sample(format!("'{}': {problem}; correct the file or set on_error=skip", map.column))
}
