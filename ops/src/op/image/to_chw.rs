//! `to_chw`: channels first.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use feedstock_base::Result;

/// Lays the result out as channel × height × width, as torch's convolutions take it.
///
/// ```
/// use feedstock_ops::{ChainSpec, center_crop, decode_image, to_chw};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), to_chw()]).compile()?;
/// assert_eq!(chain.output().shape, [3, 32, 32]);
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
