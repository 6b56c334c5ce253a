//! `resize`: Pillow's antialiased resampling, within one level of Pillow.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Filter, MAX_SIDE, Size};
use crate::image::step::Resizing;
use feedstock_base::{Error, Result};

/// Resizes to a shorter side (keeping the aspect ratio) or to an exact size.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, resize};
///
/// let chain = ChainSpec::from([decode_image(), resize([224, 288])]).compile()?;
/// assert_eq!(chain.output().shape, [224, 288, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Resize {
    /// A number is the shorter side, `[height, width]` is exact, as in torchvision.
    pub size: ResizeTo,
    /// The resampling filter; default bilinear.
    #[serde(default)]
    pub filter: Filter,
}

/// What [`Resize`] resizes to.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(untagged, expecting = "expected the shorter side in pixels, or height and width as 224x288")]
pub enum ResizeTo {
    /// The shorter side in pixels; the longer is ⌊shorter · long / short⌋, as torchvision.
    Shorter(u32),
    /// `[height, width]`.
    Exact([u32; 2]),
}

impl From<u32> for ResizeTo {
    fn from(side: u32) -> Self {
        Self::Shorter(side)
    }
}

impl From<[u32; 2]> for ResizeTo {
    fn from(sides: [u32; 2]) -> Self {
        Self::Exact(sides)
    }
}

impl Resize {
    /// Resizes to a shorter side, or to an exact `[height, width]`.
    pub fn new(size: impl Into<ResizeTo>) -> Self {
        Self { size: size.into(), filter: Filter::default() }
    }

    /// The resampling filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.size {
            ResizeTo::Shorter(side) => Size::from(side).check(),
            ResizeTo::Exact(sides) => Size::from(sides).check(),
        }
    }

    /// The size of an image after this op.
    pub(crate) fn target(&self, picture: Size) -> Result<Size> {
        let shorter = match self.size {
            ResizeTo::Exact(sides) => return Ok(sides.into()),
            ResizeTo::Shorter(side) => side,
        };
        let (short, long) =
            (u64::from(picture.height.min(picture.width)), u64::from(picture.height.max(picture.width)));
        let longer = u64::from(shorter) * long / short;
        let longer = u32::try_from(longer).ok().filter(|&side| side <= MAX_SIDE).ok_or_else(|| {
            Error::bad_sample(format!(
                "resize: a {long}×{short} image would become {longer} px long, over {MAX_SIDE}; its aspect ratio \
                 is unusable"
            ))
        })?;
        Ok(if picture.width <= picture.height {
            Size { height: longer, width: shorter }
        } else {
            Size { height: shorter, width: longer }
        })
    }
}

impl ImageOp for Resize {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        let size = match self.size {
            ResizeTo::Exact(sides) => Some(sides.into()),
            ResizeTo::Shorter(_) => compiler.size().map(|size| self.target(size)).transpose()?,
        };
        compiler.resize(size, self.clone())
    }
}

impl Resizing for Resize {
    fn target(&self, image: Size) -> Result<Size> {
        self.target(image)
    }

    fn filter(&self) -> Filter {
        self.filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_side_truncates_as_torchvision() {
        let op = Resize::new(256);
        assert_eq!(op.target(Size { height: 350, width: 400 }).unwrap(), Size { height: 256, width: 292 });
        assert_eq!(op.target(Size { height: 400, width: 350 }).unwrap(), Size { height: 292, width: 256 });
        assert!(op.target(Size { height: 1, width: 60_000 }).is_err());
    }
}
