//! `random_erasing`: overwrite a random rectangle (Zhong et al., arXiv 1708.04896).

use serde::{Deserialize, Serialize};

use crate::check::{check_probability, check_range};
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Rect, Size};
use crate::image::in_place::PixelOp;
use crate::image::step::FloatOp;
use crate::seed::Generator;
use crate::spec::Layout;
use feedstock_base::{Error, Result};

/// Tries to find a rectangle that fits; torchvision's number.
const TRIES: usize = 10;

/// Overwrites a random rectangle, drawing as torchvision's `RandomErasing`: the area is uniform in `scale` × the
/// image's, height over width log-uniform in `ratio`; after ten misses the image stays.
///
/// It works on the tensor that the ops before it make: bytes before `to_f32`/`normalize`, f32 after it.
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
/// let chain = Chain::parse("decode_image,center_crop:16,random_erasing:1:value=255")?;
/// let image = encode(16, 16, &[9; 16 * 16 * 3]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// let erased = row.iter().filter(|value| **value == 255).count();
/// assert!((3 * 4..3 * 100).contains(&erased)); // 2 % to 33 % of 256 pixels
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomErasing {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
    /// The rectangle's share of the area; default 0.02 … 0.33.
    #[serde(default = "default_scale")]
    pub scale: [f64; 2],
    /// Height over width; default 0.3 … 3.3.
    #[serde(default = "default_ratio")]
    pub ratio: [f64; 2],
    /// What the rectangle is filled with; default 0.
    #[serde(default)]
    pub value: EraseValue,
}

/// What [`RandomErasing`] writes; in JSON a number, three numbers, or `"random"`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(untagged, expecting = "expected a number, three numbers as 1/2/3, or random")]
pub enum EraseValue {
    /// One value, in the units of the tensor.
    Constant(f32),
    /// A value per channel.
    Channels([f32; 3]),
    /// Noise per element: standard normal in f32 tensors, uniform in bytes.
    Noise(Noise),
}

/// The word `random`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// Noise per element.
    Random,
}

impl Default for EraseValue {
    fn default() -> Self {
        Self::Constant(0.0)
    }
}

fn half() -> f64 {
    0.5
}

fn default_scale() -> [f64; 2] {
    [0.02, 0.33]
}

fn default_ratio() -> [f64; 2] {
    [0.3, 3.3]
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self::new(half())
    }
}

impl RandomErasing {
    /// Erases with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability, scale: default_scale(), ratio: default_ratio(), value: EraseValue::default() }
    }

    /// The rectangle's share of the area, `[least, most]`.
    #[must_use]
    pub fn scale(self, scale: [f64; 2]) -> Self {
        Self { scale, ..self }
    }

    /// Height over width, `[least, most]`.
    #[must_use]
    pub fn ratio(self, ratio: [f64; 2]) -> Self {
        Self { ratio, ..self }
    }

    /// What the rectangle is filled with.
    #[must_use]
    pub fn value(self, value: EraseValue) -> Self {
        Self { value, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_probability(self.probability)?;
        check_range("scale", self.scale, f64::MIN_POSITIVE, 1.0)?;
        check_range("ratio", self.ratio, 1e-3, 1e3)
    }

    pub(crate) fn check_u8(&self) -> Result<()> {
        let fits = |value: f32| (0.0..=255.0).contains(&value) && value.fract() == 0.0;
        match self.value {
            EraseValue::Constant(value) if !fits(value) => Err(bad_byte(value)),
            EraseValue::Channels(values) => {
                values.into_iter().find(|&value| !fits(value)).map_or(Ok(()), |value| Err(bad_byte(value)))
            }
            _ => Ok(()),
        }
    }

    fn rect(&self, size: Size, generator: &mut Generator) -> Option<Rect> {
        if !generator.chance(self.probability) {
            return None;
        }
        let area = f64::from(size.height) * f64::from(size.width);
        let log_ratio = self.ratio.map(libm::log);
        for _ in 0..TRIES {
            let erased = area * generator.uniform(self.scale[0], self.scale[1]);
            let ratio = libm::exp(generator.uniform(log_ratio[0], log_ratio[1]));
            let h = (erased * ratio).sqrt().round_ties_even();
            let w = (erased / ratio).sqrt().round_ties_even();
            if h < f64::from(size.height) && w < f64::from(size.width) {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a u32")]
                let (height, width) = (h as u32, w as u32);
                let y = generator.below(size.height - height + 1);
                let x = generator.below(size.width - width + 1);
                return Some(Rect { x, y, width, height });
            }
        }
        None
    }

    /// On dense RGB bytes.
    pub(crate) fn run_u8(&self, pixels: &mut [u8], size: Size, generator: &mut Generator) {
        let Some(rect) = self.rect(size, generator) else { return };
        for row in 0..rect.height as usize {
            let start = ((rect.y as usize + row) * size.width as usize + rect.x as usize) * 3;
            for pixel in pixels[start..start + rect.width as usize * 3].chunks_exact_mut(3) {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "checked bytes"
                    )]
                    {
                        *value = match self.value {
                            EraseValue::Constant(value) => value as u8,
                            EraseValue::Channels(values) => values[channel] as u8,
                            EraseValue::Noise(_) => (generator.next_u64() >> 56) as u8,
                        };
                    }
                }
            }
        }
    }

    /// On f32 in the machine's byte order.
    pub(crate) fn run_f32(&self, out: &mut [u8], size: Size, layout: Layout, generator: &mut Generator) {
        let Some(rect) = self.rect(size, generator) else { return };
        let (height, width) = (size.height as usize, size.width as usize);
        for channel in 0..3 {
            for y in rect.y as usize..(rect.y + rect.height) as usize {
                for x in rect.x as usize..(rect.x + rect.width) as usize {
                    let element = if layout == Layout::Chw {
                        (channel * height + y) * width + x
                    } else {
                        (y * width + x) * 3 + channel
                    };
                    #[expect(clippy::cast_possible_truncation, reason = "noise in single precision")]
                    let value = match self.value {
                        EraseValue::Constant(value) => value,
                        EraseValue::Channels(values) => values[channel],
                        EraseValue::Noise(_) => generator.normal() as f32,
                    };
                    out[element * 4..element * 4 + 4].copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
    }
}

fn bad_byte(value: f32) -> Error {
    Error::config(format!(
        "value {value} is not a byte; before to_f32 and normalize the tensor holds whole numbers 0 … 255"
    ))
}

impl ImageOp for RandomErasing {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        if compiler.is_f32() {
            return compiler.floats(self.clone());
        }
        self.check_u8()?;
        if compiler.is_gray() && matches!(self.value, EraseValue::Channels([r, g, b]) if r != g || g != b) {
            return Err(Error::config(
                "the image has one channel (mode=\"gray\"); value must be one number or \"random\"",
            ));
        }
        compiler.pixels(self.clone())
    }
}

impl PixelOp for RandomErasing {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, _: &mut Augmenter) {
        self.run_u8(pixels, size, generator);
    }
}

impl FloatOp for RandomErasing {
    fn run(&self, out: &mut [u8], size: Size, layout: Layout, generator: &mut Generator) {
        self.run_f32(out, size, layout, generator);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::seed::SampleSeed;

    #[test]
    fn distributions_follow_torchvision() {
        let op = RandomErasing::new(1.0);
        let (mut areas, mut logs) = (Vec::new(), Vec::new());
        for id in 0..20_000 {
            let rect = op.rect(Size::from(224), &mut SampleSeed::new(2, 0, id).op(3)).unwrap();
            areas.push(f64::from(rect.width) * f64::from(rect.height) / 224_f64.powi(2));
            logs.push((f64::from(rect.height) / f64::from(rect.width)).ln());
        }
        let reference = &golden::references()["draws"]["random_erasing"];
        golden::assert_same_distribution(&areas, &reference["area"], "area");
        golden::assert_same_distribution(&logs, &reference["log_ratio"], "log ratio");
    }

    #[test]
    fn probability_is_kept_and_bytes_and_floats_erase_the_same_rectangle() {
        let size = Size { height: 20, width: 30 };
        let (bytes_op, float_op) =
            (RandomErasing::default().value(EraseValue::Constant(7.0)), RandomErasing::default());
        let mut erased = 0;
        for id in 0..1000 {
            let seed = SampleSeed::new(3, 0, id);
            let mut bytes = vec![9; size.rgb_bytes()];
            bytes_op.run_u8(&mut bytes, size, &mut seed.op(0));
            let mut floats = 9_f32.to_ne_bytes().repeat(size.rgb_bytes());
            float_op.run_f32(&mut floats, size, Layout::Hwc, &mut seed.op(0));
            for (byte, float) in bytes.iter().zip(floats.chunks_exact(4)) {
                let float = f32::from_ne_bytes(float.try_into().unwrap());
                assert_eq!(*byte == 7, float == 0.0);
            }
            erased += u32::from(bytes.contains(&7));
        }
        // 500 expected, σ ≈ 16.
        assert!(erased.abs_diff(500) < 80, "{erased}");
    }
}
