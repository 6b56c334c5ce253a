//! `random_zoom_out`: puts the image onto a larger canvas (Liu et al., arXiv 1512.02325).

use serde::{Deserialize, Serialize};

use crate::check::{check_probability, check_range};
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::{Fill, PaddingMode};
use crate::image::geometry::{Rect, Size};
use crate::image::step::Crop;
use crate::seed::Generator;
use feedstock_base::Result;

/// With `probability`, puts the image at a random place of a larger canvas, as torchvision's `RandomZoomOut`. Both sides grow by one
/// factor. Images differ in size after it, so a resize or crop has to follow.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, random_zoom_out, resize};
///
/// let chain = ChainSpec::from([decode_image(), random_zoom_out(0.5), resize([300, 300])]);
/// assert_eq!("decode_image,random_zoom_out,resize:300x300".parse::<ChainSpec>()?, chain);
/// assert_eq!(chain.compile()?.output().shape, [300, 300, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomZoomOut {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
    /// Least and greatest factor of the sides, 1 or more; default 1 … 4.
    #[serde(default = "default_range")]
    pub side_range: [f64; 2],
    /// The value of added pixels, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
}

fn half() -> f64 {
    0.5
}

fn default_range() -> [f64; 2] {
    [1.0, 4.0]
}

impl RandomZoomOut {
    /// Zooms out with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability, side_range: default_range(), fill: Fill::default() }
    }

    /// The factor of the sides, `[least, greatest]`.
    #[must_use]
    pub fn side_range(self, side_range: [f64; 2]) -> Self {
        Self { side_range, ..self }
    }

    /// Sets the value of added pixels.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }
}

impl ImageOp for RandomZoomOut {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        check_range("side_range", self.side_range, 1.0, 100.0)?;
        compiler.crop(None, self.clone())
    }
}

impl Crop for RandomZoomOut {
    fn is_idle(&self, _: Size, generator: &mut Generator) -> bool {
        !generator.chance(self.probability)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 100 × a u32 side")]
    fn padded(&self, image: Size, generator: &mut Generator) -> Result<(Size, [u32; 2])> {
        if !generator.chance(self.probability) {
            return Ok((image, [0, 0]));
        }
        let factor = generator.uniform(self.side_range[0], self.side_range[1]);
        let larger = |side: u32| ((f64::from(side) * factor) as u32).max(side);
        let canvas = Size { height: larger(image.height), width: larger(image.width) };
        let mut offset = |room: u32| (f64::from(room) * generator.unit()) as u32;
        let left = offset(canvas.width - image.width);
        let top = offset(canvas.height - image.height);
        Ok((canvas, [top, left]))
    }

    fn rect(&self, padded: Size, _: &mut Generator) -> Rect {
        Rect::of(padded)
    }

    fn padding(&self) -> (PaddingMode, Fill) {
        (PaddingMode::Constant, self.fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn the_image_is_anywhere_on_a_canvas_of_its_shape() {
        let op = RandomZoomOut::new(0.5).side_range([2.0, 3.0]);
        let image = Size { height: 30, width: 60 };
        let draws: Vec<_> = (0..2000)
            .map(|sample| op.padded(image, &mut SampleSeed::new(1, 0, sample).op(1)).unwrap())
            .collect();
        let larger: Vec<_> = draws.iter().filter(|(size, _)| *size != image).collect();
        // 1,000 expected, σ ≈ 22.
        assert!(larger.len().abs_diff(1000) < 130, "{}", larger.len());
        let mut most = [0, 0];
        for (size, [top, left]) in &larger {
            assert!((120..=180).contains(&size.width) && size.width / 2 >= size.height - 1, "{size:?}");
            assert!(top + 30 <= size.height && left + 60 <= size.width);
            most = [most[0].max(*top), most[1].max(*left)];
        }
        assert!(most[0] > 50 && most[1] > 100, "{most:?}");
    }
}
