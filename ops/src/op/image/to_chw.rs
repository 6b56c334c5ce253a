//! `to_chw`: channels first.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Lays the result out as channel × height × width, as torch's convolutions take it.
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
/// let chain = Chain::parse("decode_image,center_crop:1x2,to_chw")?;
/// let image = encode(2, 1, &[1, 2, 3, 4, 5, 6]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(chain.output().shape, [3, 1, 2]);
/// assert_eq!(row, [1, 4, 2, 5, 3, 6]); // red, green, blue
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToChw {}

impl ToChw {
    /// Returns the op; it has no parameters.
    pub fn new() -> Self {
        Self {}
    }
}

impl ImageOp for ToChw {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        compiler.channels_first();
        Ok(())
    }
}
