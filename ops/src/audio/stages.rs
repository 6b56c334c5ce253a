//! A compiled chain of ops on audio.

use super::decode::DecodeAudio;
use super::step::{Extractor, FeatureOp, WaveOp};
use crate::spec::TensorSpec;

/// A compiled chain of ops on audio. Next to each op is its index in the chain, which seeds its generator.
pub(super) struct Stages {
    pub(super) decode: DecodeAudio,
    pub(super) waves: Vec<(usize, Box<dyn WaveOp>)>,
    pub(super) extractor: Option<Box<dyn Extractor>>,
    pub(super) features: Vec<(usize, Box<dyn FeatureOp>)>,
    pub(super) feature_major: bool,
    pub(super) output: TensorSpec,
}
