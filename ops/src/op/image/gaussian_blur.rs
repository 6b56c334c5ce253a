//! `gaussian_blur`: smooths the image.

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::augmenter::Augmenter;
use crate::image::blur::{self, MAX_KERNEL_SIZE};
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The largest standard deviation, in pixels.
const MAX_SIGMA: f64 = 1e3;

/// Blurs the image by a Gaussian whose standard deviation is drawn uniformly from `sigma`, as torchvision's `GaussianBlur`. The
/// image is mirrored at its outermost pixels. To blur some images only, put it into `random_apply`.
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
/// let chain = Chain::parse("decode_image,resize:1x3,gaussian_blur:3:1..1")?;
/// let image = encode(3, 1, &[[0; 3], [100; 3], [0; 3]].concat());
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [[55; 3], [45; 3], [55; 3]].concat()); // 0 0 is mirrored: 100 0 100
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GaussianBlur {
    /// The side of the kernel in pixels, an odd number, 1 … 511.
    pub kernel_size: u32,
    /// Least and greatest standard deviation, in pixels; one number is both. Default 0.1 … 2.
    #[serde(default = "default_sigma", deserialize_with = "crate::check::range")]
    pub sigma: [f64; 2],
}

fn default_sigma() -> [f64; 2] {
    [0.1, 2.0]
}

impl GaussianBlur {
    /// Blurs with a kernel of `kernel_size` pixels and a standard deviation within `sigma`, `[least, greatest]`.
    pub fn new(kernel_size: u32, sigma: [f64; 2]) -> Self {
        Self { kernel_size, sigma }
    }
}

impl ImageOp for GaussianBlur {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        let size = self.kernel_size;
        if size.is_multiple_of(2) || size > MAX_KERNEL_SIZE {
            return Err(Error::config(format!(
                "kernel_size must be an odd number, 1 … {MAX_KERNEL_SIZE}; got {size}"
            )));
        }
        check_range("sigma", self.sigma, f64::MIN_POSITIVE, MAX_SIGMA)?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for GaussianBlur {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        let sigma = generator.uniform(self.sigma[0], self.sigma[1]);
        blur::gaussian(pixels, size, (self.kernel_size, sigma), augmenter);
    }

    fn copies_image(&self) -> bool {
        true
    }
}
