//! `to_f32`: f32 in 0 … 1.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Converts to f32, 0 … 1 (divided by 255), as the first half of torchvision's `ToTensor`.
///
/// ```
/// use feedstock_ops::{ChainSpec, DType, center_crop, decode_image, to_f32};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), to_f32()]).compile()?;
/// assert_eq!(chain.output().shape, [32, 32, 3]);
/// assert_eq!(chain.output().dtype, DType::F32);
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
