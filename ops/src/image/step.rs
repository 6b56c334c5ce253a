//! The kinds of steps that ops on images become. A plan knows these kinds; it does not know the ops.

use super::fill::{Fill, PaddingMode};
use super::geometry::{Filter, Rect, Size};
use super::in_place::InPlace;
use super::warp::{Interpolation, Mapping, WarpStyle};
use crate::seed::Generator;
use crate::spec::Layout;
use feedstock_base::Result;

/// A step on 8-bit RGB.
pub(super) enum Step {
    Crop(Box<dyn Crop>),
    Resize(Box<dyn Resizing>),
    ResizedCrop(Box<dyn ResizedCrop>),
    CropByBoxes(Box<dyn CropByBoxes>),
    Turn(Box<dyn Turn>),
    InPlace(InPlace),
}

impl Step {
    /// True for steps that change the size.
    pub(super) fn is_geometry(&self) -> bool {
        !matches!(self, Self::InPlace(_))
    }
}

/// Cuts a rectangle out, after padding.
pub(crate) trait Crop: Send + Sync {
    /// True if the op returns this image unchanged, and does not cut boxes off at its edges either. A crop or padding that only
    /// happens to change no size cuts them off. The generator is a new one, as that of `padded`.
    fn is_idle(&self, image: Size, generator: &mut Generator) -> bool {
        let _ = (image, generator);
        false
    }

    /// Returns the size of `image` after padding, and where the image is in it: `[y, x]`.
    ///
    /// # Errors
    /// `BadSample` for an image that is too small or too large.
    fn padded(&self, image: Size, generator: &mut Generator) -> Result<(Size, [u32; 2])>;

    /// Returns the rectangle in the padded image. The generator is a new one, as that of `padded`.
    fn rect(&self, padded: Size, generator: &mut Generator) -> Rect;

    /// Returns what the padding shows, and its value if that is one.
    fn padding(&self) -> (PaddingMode, Fill);
}

/// Resizes the whole image.
pub(crate) trait Resizing: Send + Sync {
    /// Returns the size after resizing.
    ///
    /// # Errors
    /// `BadSample` for a size that no image may have.
    fn target(&self, image: Size, generator: &mut Generator) -> Result<Size>;

    fn filter(&self) -> Filter;
}

/// Cuts a rectangle out and resizes it.
pub(crate) trait ResizedCrop: Send + Sync {
    /// Returns the rectangle in an image of this size.
    fn draw(&self, image: Size, generator: &mut Generator) -> Rect;

    /// Returns the size of the result.
    fn size(&self) -> Size;

    fn filter(&self) -> Filter;
}

/// Cuts a rectangle out that depends on the sample's boxes. These draw it, and the seed holds the result for all chains that follow.
pub(crate) trait CropByBoxes: Send + Sync {
    /// Returns the rectangle in an image of this size, whose boxes are given as left, top, right, bottom; `None`: the whole image.
    fn draw(&self, image: Size, boxes: &[[f64; 4]], generator: &mut Generator) -> Option<Rect>;
}

/// Turns the image, and makes it large enough to show all of it.
pub(crate) trait Turn: Send + Sync {
    /// Returns which places the result shows, and its size.
    ///
    /// # Errors
    /// `BadSample` for a size that no image may have.
    fn draw(&self, image: Size, generator: &mut Generator) -> Result<(Mapping, Size)>;

    fn style(&self) -> WarpStyle;
}

/// An op that resizes or turns, by the nearest pixel.
pub(super) struct ByNearest<T>(pub(super) T);

impl<T: Resizing> Resizing for ByNearest<T> {
    fn target(&self, image: Size, generator: &mut Generator) -> Result<Size> {
        self.0.target(image, generator)
    }

    fn filter(&self) -> Filter {
        Filter::Nearest
    }
}

impl<T: ResizedCrop> ResizedCrop for ByNearest<T> {
    fn draw(&self, image: Size, generator: &mut Generator) -> Rect {
        self.0.draw(image, generator)
    }

    fn size(&self) -> Size {
        self.0.size()
    }

    fn filter(&self) -> Filter {
        Filter::Nearest
    }
}

impl<T: Turn> Turn for ByNearest<T> {
    fn draw(&self, image: Size, generator: &mut Generator) -> Result<(Mapping, Size)> {
        self.0.draw(image, generator)
    }

    fn style(&self) -> WarpStyle {
        WarpStyle { interpolation: Interpolation::Nearest, ..self.0.style() }
    }
}

/// Changes the converted image in place, f32 in the machine's byte order.
pub(crate) trait FloatOp: Send + Sync {
    fn run(&self, out: &mut [u8], size: Size, layout: Layout, generator: &mut Generator);
}
