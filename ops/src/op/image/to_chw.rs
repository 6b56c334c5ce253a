//! `to_chw`: channels first.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Lays the result out as channel × height × width, as torch's convolutions take it.
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
