//! Masks of classes, which must have the size of their image: the same crop of both would else show different parts.

use crate::run::job::Map;
use crate::{Error, ErrorKind, Result};

/// Finds the image of each mask: the first map of another kind of image that draws the same random numbers.
pub(crate) fn pair_masks(maps: &mut [Map]) {
    for mask in 0..maps.len() {
        if maps[mask].chain.is_mask() {
            let salt = maps[mask].chain.salt();
            let is_image = |map: &Map| map.chain.salt() == salt && map.chain.shows_images();
            maps[mask].image = maps.iter().position(is_image);
        }
    }
}

/// Compares a mask with its image, both encoded.
///
/// # Errors
/// `BadSample` if they differ in size, or for a header that cannot be read.
pub(super) fn check_mask(mask: (&Map, &[u8]), image: (&Map, &[u8])) -> Result<()> {
    let size = |(map, encoded): (&Map, &[u8])| map.chain.image_size(encoded);
    let (Some(of_mask), Some(of_image)) = (size(mask)?, size(image)?) else { return Ok(()) };
    if of_mask == of_image {
        return Ok(());
    }
    let [[mask_height, mask_width], [height, width]] = [of_mask, of_image];
    Err(Error::new(
        ErrorKind::BadSample,
        format!(
            "the mask is {mask_height}×{mask_width} (height × width), its image in column '{}' {height}×{width}",
            image.0.column
        ),
    ))
}
