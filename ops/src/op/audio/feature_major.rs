//! `feature_major`: one feature over all frames, then the next.

use serde::{Deserialize, Serialize};

use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Lays features out as [features, time], as Whisper and convolutions over time take them; without it they are
/// [time, features]. It may stand anywhere after the features' op: the layout is given on the way into the row.
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
