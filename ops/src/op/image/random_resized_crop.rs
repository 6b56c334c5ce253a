//! `random_resized_crop`: a random area and aspect ratio, resized (Szegedy et al. 2015, "Inception" cropping).

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Filter, Rect, Size};
use crate::image::step::ResizedCrop;
use crate::seed::Generator;
use feedstock_base::Result;

/// Tries before the central fallback; torchvision's number.
const TRIES: usize = 10;

/// Cuts out a random rectangle and resizes it, drawing as torchvision's `RandomResizedCrop.get_params`: the area is
/// uniform in `scale` × the image's, the aspect ratio log-uniform in `ratio`; after ten misses the largest central crop
/// within `ratio` is taken.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, random_resized_crop};
///
/// let chain = ChainSpec::from([decode_image(), random_resized_crop(224)]).compile()?;
/// assert_eq!(chain.output().shape, [224, 224, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomResizedCrop {
    /// Height and width of the result.
    pub size: Size,
    /// The crop's share of the image's area; default 0.08 … 1.
    #[serde(default = "default_scale")]
    pub scale: [f64; 2],
    /// Width over height of the crop; default 3/4 … 4/3.
    #[serde(default = "default_ratio")]
    pub ratio: [f64; 2],
    /// The resampling filter; default bilinear.
    #[serde(default)]
    pub filter: Filter,
}

fn default_scale() -> [f64; 2] {
    [0.08, 1.0]
}

fn default_ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}

impl RandomResizedCrop {
    /// Resizes the crop to `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), scale: default_scale(), ratio: default_ratio(), filter: Filter::default() }
    }

    /// The crop's share of the image's area, `[least, most]`.
    #[must_use]
    pub fn scale(self, scale: [f64; 2]) -> Self {
        Self { scale, ..self }
    }

    /// Width over height of the crop, `[least, most]`.
    #[must_use]
    pub fn ratio(self, ratio: [f64; 2]) -> Self {
        Self { ratio, ..self }
    }

    /// The resampling filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.size.check()?;
        check_range("scale", self.scale, f64::MIN_POSITIVE, 1.0)?;
        check_range("ratio", self.ratio, 1e-3, 1e3)
    }

    /// Draws the rectangle within an image of this size, as [`Chain::apply`](crate::Chain::apply) does with the op's
    /// own generator.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded and range-checked")]
    pub fn draw(&self, picture: Size, generator: &mut Generator) -> Rect {
        let (height, width) = (f64::from(picture.height), f64::from(picture.width));
        let log_ratio = self.ratio.map(libm::log);
        for _ in 0..TRIES {
            let area = height * width * generator.uniform(self.scale[0], self.scale[1]);
            let ratio = libm::exp(generator.uniform(log_ratio[0], log_ratio[1]));
            let w = (area * ratio).sqrt().round_ties_even();
            let h = (area / ratio).sqrt().round_ties_even();
            if (1.0..=width).contains(&w) && (1.0..=height).contains(&h) {
                let (w, h) = (w as u32, h as u32);
                let y = generator.below(picture.height - h + 1);
                let x = generator.below(picture.width - w + 1);
                return Rect { x, y, width: w, height: h };
            }
        }
        let [least, most] = self.ratio;
        let (mut w, mut h) = (picture.width, picture.height);
        if width / height < least {
            h = ((width / least).round_ties_even() as u32).clamp(1, picture.height);
        } else if width / height > most {
            w = ((height * most).round_ties_even() as u32).clamp(1, picture.width);
        }
        Rect { x: (picture.width - w) / 2, y: (picture.height - h) / 2, width: w, height: h }
    }
}

impl ImageOp for RandomResizedCrop {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.resized_crop(self.clone())
    }
}

impl ResizedCrop for RandomResizedCrop {
    fn draw(&self, image: Size, generator: &mut Generator) -> Rect {
        self.draw(image, generator)
    }

    fn size(&self) -> Size {
        self.size
    }

    fn filter(&self) -> Filter {
        self.filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::seed::SampleSeed;

    #[test]
    fn distributions_follow_torchvision() {
        let op = RandomResizedCrop::new(224);
        let picture = Size { height: 300, width: 400 };
        let (mut areas, mut logs, mut centres) = (Vec::new(), Vec::new(), Vec::new());
        for id in 0..20_000 {
            let rect = op.draw(picture, &mut SampleSeed::new(1, 0, id).op(1));
            assert!(rect.x + rect.width <= 400 && rect.y + rect.height <= 300);
            areas.push(f64::from(rect.width) * f64::from(rect.height) / 120_000.0);
            logs.push((f64::from(rect.width) / f64::from(rect.height)).ln());
            centres.push((f64::from(rect.x) + f64::from(rect.width) / 2.0) / 400.0);
        }
        let reference = &golden::references()["draws"]["random_resized_crop"];
        golden::assert_same_distribution(&areas, &reference["area"], "area");
        golden::assert_same_distribution(&logs, &reference["log_ratio"], "log ratio");
        golden::assert_same_distribution(&centres, &reference["centre"], "centre");
    }

    #[test]
    fn extreme_shapes_take_the_central_fallback() {
        let op = RandomResizedCrop::new(224).scale([1.0, 1.0]);
        let rect = op.draw(Size { height: 10, width: 1000 }, &mut SampleSeed::new(1, 0, 0).op(1));
        assert_eq!(rect, Rect { x: 493, y: 0, width: 13, height: 10 });
        let rect = op.draw(Size { height: 1, width: 1 }, &mut SampleSeed::new(1, 0, 0).op(1));
        assert_eq!(rect.size(), Size::from(1));
    }
}
