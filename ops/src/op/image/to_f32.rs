//! `to_f32`: f32 in 0 … 1.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Converts to f32, 0 … 1 (divided by 255), as the first half of torchvision's `ToTensor`.
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
