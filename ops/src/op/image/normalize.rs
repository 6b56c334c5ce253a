//! `normalize`: the mean and standard deviation of each channel.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::{Error, Result};

/// The mean of ImageNet's training images per channel, in 0 … 1: what torchvision's models expect.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// The standard deviation of ImageNet's training images per channel, in 0 … 1.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// Converts to f32 as (value / 255 − mean) / std per channel.
///
/// The result is within 2·10⁻⁶ of torchvision's `ToTensor` and `Normalize`, which round at each step.
///
/// ```
/// use feedstock_ops::{Chain, SampleSeed, Scratch};
///
/// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
/// #     let mut out = Vec::new();
/// #     let mut encoder = png::Encoder::new(&mut out, width, height);
/// #     encoder.set_color(png::ColorType::Rgb);
/// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
/// #     out
/// # }
/// # fn f32s(bytes: &[u8]) -> Vec<f32> {
/// #     bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
/// # }
/// let chain = Chain::parse("decode_image,center_crop:1,normalize:mean=0.5/0.5/0.5:std=0.5/0.5/0.5")?;
/// let image = encode(1, 1, &[0, 51, 255]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
/// assert!(f32s(&row).iter().zip([-1.0, -0.6, 1.0]).all(|(a, b)| close(*a, b)));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Normalize {
    /// Per channel, in 0 … 1; default [`IMAGENET_MEAN`].
    #[serde(default = "imagenet_mean")]
    pub mean: [f32; 3],
    /// Per channel, in 0 … 1; default [`IMAGENET_STD`].
    #[serde(default = "imagenet_std")]
    pub std: [f32; 3],
}

fn imagenet_mean() -> [f32; 3] {
    IMAGENET_MEAN
}

fn imagenet_std() -> [f32; 3] {
    IMAGENET_STD
}

impl Normalize {
    /// Normalizes with `mean` and `std` per channel, in 0 … 1.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        Self { mean, std }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// `BadConfig` for a mean that is not finite or a deviation that is not positive.
    pub fn check(&self) -> Result<()> {
        if self.mean.iter().all(|x| x.is_finite()) && self.std.iter().all(|x| x.is_finite() && *x > 0.0) {
            return Ok(());
        }
        Err(Error::config(format!(
            "mean must be finite and std above 0, both on the scale 0 … 1; got {:?} and {:?}",
            self.mean, self.std
        )))
    }

    /// Returns, per channel, the factor for a byte and the number that is then added.
    pub fn scale_and_bias(&self) -> ([f32; 3], [f32; 3]) {
        #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
        let single = |value: f64| value as f32;
        let scale = self.std.map(|std| single(1.0 / (255.0 * f64::from(std))));
        let of = |channel: usize| single(-f64::from(self.mean[channel]) / f64::from(self.std[channel]));
        (scale, [of(0), of(1), of(2)])
    }
}

impl Default for Normalize {
    fn default() -> Self {
        Self::new(IMAGENET_MEAN, IMAGENET_STD)
    }
}

impl ImageOp for Normalize {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.normalize(self.scale_and_bias())
    }
}
