//! `to_f32`: f32 in 0 … 1.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Converts to f32, 0 … 1 (divided by 255), as the first half of torchvision's `ToTensor`.
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
/// let chain = Chain::parse("decode_image,center_crop:1,to_f32")?;
/// let image = encode(1, 1, &[0, 51, 255]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert!(f32s(&row).iter().zip([0.0, 0.2, 1.0]).all(|(a, b)| (a - b).abs() < 1e-6));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToF32 {}

impl ToF32 {
    /// Returns the op; it has no parameters.
    pub fn new() -> Self {
        Self {}
    }
}

impl ImageOp for ToF32 {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        compiler.convert_to_f32()
    }
}
