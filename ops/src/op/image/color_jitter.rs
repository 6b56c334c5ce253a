//! `color_jitter`: random brightness, contrast, saturation and hue.

use serde::{Deserialize, Serialize};

use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Changes brightness, contrast, saturation and hue in random order, drawing as torchvision's `ColorJitter`: the
/// factors are uniform in max(0, 1 − x) … 1 + x, the hue's turn in −x … x; 0 leaves a property alone.
///
/// The arithmetic is Pillow's, as in torchvision's PIL path.
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
/// let chain = Chain::parse("decode_image,center_crop:1,color_jitter:brightness=0.4")?;
/// let image = encode(1, 1, &[100; 3]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert!(row.iter().all(|value| (60..=140).contains(value) && *value == row[0]));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ColorJitter {
    /// ≥ 0; default 0.
    #[serde(default)]
    pub brightness: f64,
    /// ≥ 0; default 0.
    #[serde(default)]
    pub contrast: f64,
    /// ≥ 0; default 0.
    #[serde(default)]
    pub saturation: f64,
    /// 0 … 0.5, in turns; default 0.
    #[serde(default)]
    pub hue: f64,
}

impl ColorJitter {
    /// Creates an op that changes nothing; set amounts with the methods below.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the properties by these amounts, in torchvision's order.
    pub fn of(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        Self { brightness, contrast, saturation, hue }
    }

    /// Brightness factors within max(0, 1 − `by`) … 1 + `by`.
    #[must_use]
    pub fn brightness(self, by: f64) -> Self {
        Self { brightness: by, ..self }
    }

    /// Contrast factors within max(0, 1 − `by`) … 1 + `by`.
    #[must_use]
    pub fn contrast(self, by: f64) -> Self {
        Self { contrast: by, ..self }
    }

    /// Saturation factors within max(0, 1 − `by`) … 1 + `by`.
    #[must_use]
    pub fn saturation(self, by: f64) -> Self {
        Self { saturation: by, ..self }
    }

    /// Hue turns within −`by` … `by`, at most 0.5.
    #[must_use]
    pub fn hue(self, by: f64) -> Self {
        Self { hue: by, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (name, value, most, bounds) in [
            ("brightness", self.brightness, f64::MAX, "a finite number >= 0"),
            ("contrast", self.contrast, f64::MAX, "a finite number >= 0"),
            ("saturation", self.saturation, f64::MAX, "a finite number >= 0"),
            ("hue", self.hue, 0.5, "0 … 0.5"),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::config(format!("{name} must be {bounds}; got {value}")));
            }
        }
        Ok(())
    }

    pub(crate) fn run(&self, pixels: &mut [u8], generator: &mut Generator) {
        let mut order = [0, 1, 2, 3];
        generator.shuffle(&mut order);
        // All four are drawn, so turning one property off does not change the draws of the others.
        let [brightness, contrast, saturation] = [self.brightness, self.contrast, self.saturation]
            .map(|by| (by, generator.uniform((1.0 - by).max(0.0), 1.0 + by)));
        let hue = (self.hue, generator.uniform(-self.hue, self.hue));
        for step in order {
            match step {
                0 if brightness.0 > 0.0 => enhance::brightness(pixels, brightness.1),
                1 if contrast.0 > 0.0 => enhance::contrast(pixels, contrast.1),
                2 if saturation.0 > 0.0 => enhance::saturation(pixels, saturation.1),
                3 if hue.0 > 0.0 => enhance::hue(pixels, hue.1),
                _ => {}
            }
        }
    }
}

impl ImageOp for ColorJitter {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for ColorJitter {
    fn run(&self, pixels: &mut [u8], _: Size, generator: &mut Generator, _: &mut Augmenter) {
        self.run(pixels, generator);
    }
}
