//! Joint maps: images and masks of a sample, which must have one size. Else the same crop would show different parts of them.

use crate::run::job::Map;
use crate::{Error, ErrorKind, Result};

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
