//! `resize`: Pillow's antialiased resampling, within one level of Pillow.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Filter, MAX_SIDE, Size};
use crate::image::step::Resizing;
use crate::seed::Generator;
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
    /// The longest side of the result, if `size` is the shorter side: where that would be longer, the image becomes smaller;
    /// default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u32>,
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
        Self { size: size.into(), filter: Filter::default(), max_size: None }
    }

    /// The resampling filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    /// The longest side of the result, above the shorter side that it is resized to.
    #[must_use]
    pub fn max_size(self, pixels: u32) -> Self {
        Self { max_size: Some(pixels), ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match (self.size, self.max_size) {
            (ResizeTo::Shorter(side), Some(most)) if most <= side => {
                Err(Error::config(format!("max_size must be above size, {side}; got {most}")))
            }
            (ResizeTo::Exact(_), Some(_)) => {
                Err(Error::config("max_size needs a size of one number, the shorter side"))
            }
            (ResizeTo::Shorter(side), _) => Size::from(side).check(),
            (ResizeTo::Exact(sides), None) => Size::from(sides).check(),
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
        let (shorter, longer) = match self.max_size {
            Some(most) if longer > most.into() => {
                let side = u64::from(most) * u64::from(shorter) / longer;
                (u32::try_from(side).unwrap_or(most).max(1), u64::from(most))
            }
            _ => (shorter, longer),
        };
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
    fn target(&self, image: Size, _: &mut Generator) -> Result<Size> {
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
        // torchvision's `_compute_resized_output_size((height, width), [256], max_size=300)`.
        let op = op.max_size(300);
        assert_eq!(op.target(Size { height: 350, width: 400 }).unwrap(), Size { height: 256, width: 292 });
        assert_eq!(op.target(Size { height: 350, width: 500 }).unwrap(), Size { height: 210, width: 300 });
        assert_eq!(op.target(Size { height: 900, width: 401 }).unwrap(), Size { height: 300, width: 133 });
        assert_eq!(op.target(Size { height: 1, width: 60_000 }).unwrap(), Size { height: 1, width: 300 });
        assert_eq!(
            op.max_size(256).check().unwrap_err().message(),
            "max_size must be above size, 256; got 256"
        );
        assert!(Resize::new([8, 8]).max_size(9).check().is_err());
    }
}
