//! What becomes of a column on the device: a description, and what a batch needs of it.

mod mixing;

pub use mixing::{Drawn, Mixing, MixupCutmix};

use crate::element::Real;
use crate::kernels::{BY_DATA_SET, BY_UTTERANCE, Mask};
use feedstock_base::{Error, ErrorKind, Result};
use feedstock_ops::audio::{GlobalMvn, MaskValue, SpecAugment, UtteranceMvn};
use feedstock_ops::image::{HorizontalFlip, Normalize};
use feedstock_ops::{DType, Generator, Layout, Salt, SampleSeed, TensorSpec};
use serde::{Deserialize, Serialize};

/// The last steps of a mapped column, done on the device (in host memory where there is none), so that only bytes cross the
/// bus. Results are those of the same ops at the chain's end, rounded to the type that is asked for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "finish", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finish {
    /// Of pictures: u8, height × width × 3.
    Picture(PictureFinish),
    /// Of log-mel features: f32, frames × features, or features × frames.
    Features(FeatureFinish),
}

/// An element type that finishing makes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FinishType {
    /// Single precision.
    #[default]
    #[serde(rename = "float32")]
    F32,
    /// IEEE half precision.
    #[serde(rename = "float16")]
    F16,
    /// The upper half of a float.
    #[serde(rename = "bfloat16")]
    BF16,
}

impl FinishType {
    fn real(self) -> Real {
        match self {
            Self::F32 => Real::F32,
            Self::F16 => Real::F16,
            Self::BF16 => Real::BF16,
        }
    }
}

/// How pictures lie in memory; their shape is rows × 3 × height × width either way.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PictureLayout {
    /// One plane a channel: NCHW.
    #[default]
    Planes,
    /// Channels of a pixel side by side: torch's `channels_last`, NHWC in memory.
    ChannelsLast,
}

/// Pictures as a model takes them: mirrored, normalised, mixed, in its type and layout.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PictureFinish {
    /// The element type; default f32.
    pub dtype: FinishType,
    /// The order in memory; default planes.
    pub layout: PictureLayout,
    /// Default ImageNet's mean and standard deviation.
    pub normalize: Normalize,
    /// Mirrors each picture with this probability, drawn as by `horizontal_flip` behind the chain's last op. Default 0.
    pub flip: f64,
    /// Mixes pairs of rows (mixup, CutMix). Default not.
    pub mix: Option<MixupCutmix>,
}

/// Statistics that features are normalised with.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeatureNorm {
    /// Of each clip: mean 0 and variance 1 of each feature over its own frames.
    UtteranceMvn(UtteranceMvn),
    /// Of the whole data set.
    GlobalMvn(GlobalMvn),
}

/// Features as a model takes them: normalised, masked, in its type. Padding stays as it is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FeatureFinish {
    /// The element type; default f32.
    pub dtype: FinishType,
    /// Default not.
    pub normalize: Option<FeatureNorm>,
    /// Masks stretches of time and bands of features, drawn as by `spec_augment` behind the chain's last op (and behind
    /// `normalize`, if there is one). Default not.
    pub spec_augment: Option<SpecAugment>,
}

/// Where a finish draws from: the op that it would be in its column's chain.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    /// Of the column's chain.
    pub salt: Salt,
    /// The index of the op.
    pub op: usize,
}

impl Draws {
    fn generator(self, sample: SampleSeed) -> Generator {
        sample.salted(self.salt).op(self.op)
    }
}

/// A finish that fits its column.
#[derive(Debug, Clone)]
pub enum Compiled {
    /// Of pictures.
    Picture(CompiledPicture),
    /// Of features.
    Features(CompiledFeatures),
}

/// A [`PictureFinish`] that fits its column.
#[derive(Debug, Clone)]
pub struct CompiledPicture {
    /// The element type.
    pub real: Real,
    /// The order in memory.
    pub layout: PictureLayout,
    /// Pixels of a column.
    pub height: usize,
    /// Pixels of a line.
    pub width: usize,
    /// What each channel, as a byte, is multiplied with.
    pub scale: [f32; 3],
    /// What is added then.
    pub bias: [f32; 3],
    /// How rows are mixed, if they are.
    pub mixing: Option<Mixing>,
    flip: f64,
    draws: Draws,
}

/// A [`FeatureFinish`] that fits its column.
#[derive(Debug, Clone)]
pub struct CompiledFeatures {
    /// The element type.
    pub real: Real,
    /// Features of a frame.
    pub features: usize,
    /// Rows are features × frames, else frames × features.
    pub feature_major: bool,
    /// 0 for none, [`BY_UTTERANCE`] or [`BY_DATA_SET`].
    pub normalize: u32,
    /// Variances are normalised, too.
    pub normalize_vars: bool,
    /// The least standard deviation.
    pub epsilon: f64,
    /// Scale and bias of each feature, where they are of the data set.
    pub scales: Vec<(f32, f32)>,
    /// What is masked, if anything is.
    pub spec_augment: Option<SpecAugment>,
    draws: Draws,
}

impl Compiled {
    /// How it mixes rows, if it does.
    pub fn mixing(&self) -> Option<&Mixing> {
        match self {
            Self::Picture(finish) => finish.mixing.as_ref(),
            Self::Features(_) => None,
        }
    }
}

impl Finish {
    /// For a column whose chain makes `spec`; `draws` are those of the op after the chain's last.
    ///
    /// # Errors
    /// `BadConfig` where the chain makes something else, or a parameter is out of its range.
    pub fn compile(&self, column: &str, spec: &TensorSpec, draws: Draws) -> Result<Compiled> {
        let misfit = |wanted: &str| {
            Error::new(
                ErrorKind::BadConfig,
                format!(
                    "finish of '{column}': it takes {wanted}, and the chain makes {:?} {:?} ({:?}); leave the ops that \
                     finish does out of the chain",
                    spec.dtype, spec.shape, spec.layout
                ),
            )
        };
        match self {
            Self::Picture(finish) => match (spec.dtype, spec.layout, spec.shape.as_slice()) {
                (DType::U8, Layout::Hwc, &[height, width, 3]) => {
                    finish.compile(column, (height, width), draws).map(Compiled::Picture)
                }
                _ => Err(misfit("pictures of u8, height × width × 3")),
            },
            Self::Features(finish) => match (spec.dtype, spec.layout, spec.shape.as_slice()) {
                (DType::F32, Layout::Tf, &[_, features]) | (DType::F32, Layout::Ft, &[features, _]) => {
                    finish.compile(spec, features, draws).map(Compiled::Features)
                }
                _ => Err(misfit("features of f32, frames × features or features × frames")),
            },
        }
    }
}

impl PictureFinish {
    fn compile(
        &self,
        column: &str,
        (height, width): (usize, usize),
        draws: Draws,
    ) -> Result<CompiledPicture> {
        self.normalize.check()?;
        if !(0.0..=1.0).contains(&self.flip) {
            let message = format!("finish of '{column}': flip {} is outside 0 … 1", self.flip);
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let (scale, bias) = self.normalize.scale_and_bias();
        let mixing = self.mix.as_ref().map(|mix| mix.compile((height, width))).transpose()?;
        let (real, layout, flip) = (self.dtype.real(), self.layout, self.flip);
        Ok(CompiledPicture { real, layout, height, width, scale, bias, mixing, flip, draws })
    }
}

impl CompiledPicture {
    /// Whether the row of this seed is mirrored.
    pub fn is_mirrored(&self, seed: SampleSeed) -> bool {
        self.flip > 0.0 && HorizontalFlip::new(self.flip).draw(&mut self.draws.generator(seed))
    }
}

impl FeatureFinish {
    fn compile(&self, spec: &TensorSpec, features: usize, draws: Draws) -> Result<CompiledFeatures> {
        let mut compiled = CompiledFeatures {
            real: self.dtype.real(),
            features,
            feature_major: spec.layout == Layout::Ft,
            normalize: 0,
            normalize_vars: true,
            epsilon: 0.0,
            scales: Vec::new(),
            spec_augment: self.spec_augment.clone(),
            draws: Draws { op: draws.op + usize::from(self.normalize.is_some()), ..draws },
        };
        match &self.normalize {
            Some(FeatureNorm::UtteranceMvn(op)) => {
                op.check()?;
                compiled.normalize = BY_UTTERANCE;
                (compiled.normalize_vars, compiled.epsilon) = (op.normalize_vars, op.epsilon);
            }
            Some(FeatureNorm::GlobalMvn(op)) => {
                compiled.normalize = BY_DATA_SET;
                compiled.scales = op.scales(features)?;
            }
            None => {}
        }
        self.spec_augment.iter().try_for_each(SpecAugment::check)?;
        Ok(compiled)
    }
}

impl CompiledFeatures {
    /// Masks of a row: as many for each.
    pub fn masks_per_row(&self) -> u32 {
        self.spec_augment.as_ref().map_or(0, |op| op.freq_masks + op.time_masks)
    }

    /// The masks of a row of `frames` frames: as many as every row has, an empty clip's are empty.
    pub fn masks(&self, seed: SampleSeed, frames: u32) -> Vec<Mask> {
        let Some(op) = &self.spec_augment else { return Vec::new() };
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let mut masks = Vec::with_capacity(self.masks_per_row() as usize);
        op.draw(frames as usize, self.features, &mut self.draws.generator(seed), |is_time, range| {
            let (start, end) = (number(range.start), number(range.end));
            masks.push(Mask { is_time: u32::from(is_time), start, end });
        });
        masks
    }

    /// What masks are filled with, unless it is the row's mean.
    pub fn mask_value(&self) -> Option<f32> {
        match self.spec_augment.as_ref().map(|op| op.value) {
            Some(MaskValue::Constant(value)) => Some(value),
            _ => None,
        }
    }
}
