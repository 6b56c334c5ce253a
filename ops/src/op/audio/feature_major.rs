//! `feature_major`: one feature over all frames, then the next.

use serde::{Deserialize, Serialize};

use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Lays features out as [features, time], as Whisper and convolutions over time take them; without it they are
/// [time, features]. It may come anywhere after the op that makes features: the layout is applied when the row is written.
///
/// ```
/// use feedstock_ops::Chain;
///
/// let chain = Chain::parse("decode_audio,resample:16000,log_mel:80,feature_major")?;
/// assert_eq!(chain.output().shape_at(100), [80, 100]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FeatureMajor {}

impl FeatureMajor {
    /// Returns the op; it has no parameters.
    pub fn new() -> Self {
        Self {}
    }
}

impl AudioOp for FeatureMajor {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        compiler.feature_major()
    }
}
