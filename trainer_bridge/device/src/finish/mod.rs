//! The finish of a column on the device: its description, and its compiled form for batches.

mod mixing;

pub use mixing::{Drawn, Mixing, MixupCutmix};

use crate::element::Real;
use crate::kernels::{BY_DATA_SET, BY_UTTERANCE, Mask};
use feedstock_base::{Error, ErrorKind, Result};
use feedstock_ops::audio::{GlobalMvn, MaskValue, SpecAugment, UtteranceMvn};
use feedstock_ops::image::{HorizontalFlip, Normalize};
use feedstock_ops::{DType, Generator, Layout, Salt, SampleSeed, TensorSpec};
use serde::{Deserialize, Serialize};

/// The last steps of a mapped column, run on the device (in host memory if there is none), so that only bytes cross the bus.
/// Results equal those of the same ops at the chain's end, rounded to the requested type.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "finish", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finish {
    /// For images: u8, height × width × 3, or several views of that size.
    Picture(PictureFinish),
    /// For log-mel features: f32, frames × features or features × frames.
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

/// The memory layout of images. Their shape is rows × 3 × height × width either way, with an axis of views after the rows.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PictureLayout {
    /// One plane per channel: NCHW.
    #[default]
    Planes,
    /// The channels of a pixel are adjacent: torch's `channels_last`, NHWC in memory.
    ChannelsLast,
}

/// Turns images into a model's input: mirrored, normalised and mixed, in its type and layout.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PictureFinish {
    /// The element type. Default f32.
    pub dtype: FinishType,
    /// The memory layout. Default planes.
    pub layout: PictureLayout,
    /// Mean and standard deviation of each channel. Default ImageNet's.
    pub normalize: Normalize,
    /// Mirrors each image with this probability, drawn as by a `horizontal_flip` after the chain's last op. Default 0.
    pub flip: f64,
    /// Mixes pairs of rows (mixup, CutMix). Default none.
    pub mix: Option<MixupCutmix>,
}

/// The statistics that normalise features.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeatureNorm {
    /// Those of each audio clip: mean 0 and variance 1 of each feature over its frames.
    UtteranceMvn(UtteranceMvn),
    /// Those of the whole data set.
    GlobalMvn(GlobalMvn),
}

/// Turns features into a model's input: normalised and masked, in its type. Padding stays unchanged.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FeatureFinish {
    /// The element type. Default f32.
    pub dtype: FinishType,
    /// The statistics to normalise with. Default none.
    pub normalize: Option<FeatureNorm>,
    /// Masks stretches of time and bands of features, drawn as by a `spec_augment` after the chain's last op (and after
    /// `normalize`, if there is one). Default none.
    pub spec_augment: Option<SpecAugment>,
}

/// The source of a finish's random draws: the op that it would be in its column's chain.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    /// The salt of the column's chain.
    pub salt: Salt,
    /// The index of the op.
    pub op: usize,
}

impl Draws {
    fn generator(self, sample: SampleSeed) -> Generator {
        sample.salted(self.salt).op(self.op)
    }
}

/// A finish compiled for its column.
#[derive(Debug, Clone)]
pub enum Compiled {
    /// For images.
    Picture(CompiledPicture),
    /// For features.
    Features(CompiledFeatures),
}

/// A [`PictureFinish`] compiled for its column.
#[derive(Debug, Clone)]
pub struct CompiledPicture {
    /// The element type.
    pub real: Real,
    /// The memory layout.
    pub layout: PictureLayout,
    /// Pixels of a column.
    pub height: usize,
    /// Pixels of a line.
    pub width: usize,
    /// The number of images of a row, which is the axis after the rows; `None`: one, without that axis.
    pub views: Option<usize>,
    /// The factor of each channel's bytes.
    pub scale: [f32; 3],
    /// The summand of each channel, added after scaling.
    pub bias: [f32; 3],
    /// How rows are mixed, if at all.
    pub mixing: Option<Mixing>,
    flip: f64,
    /// Of each image of a row.
    draws: Vec<Draws>,
}

/// A [`FeatureFinish`] compiled for its column.
#[derive(Debug, Clone)]
pub struct CompiledFeatures {
    /// The element type.
    pub real: Real,
    /// Features of a frame.
    pub features: usize,
    /// Whether rows are features × frames instead of frames × features.
    pub feature_major: bool,
    /// 0 for none, [`BY_UTTERANCE`] or [`BY_DATA_SET`].
    pub normalize: u32,
    /// Whether variances are normalised, too.
    pub normalize_vars: bool,
    /// The term added to the variance.
    pub epsilon: f64,
    /// Scale and bias of each feature, for statistics of the data set.
    pub scales: Vec<(f32, f32)>,
    /// The masks, if any.
    pub spec_augment: Option<SpecAugment>,
    draws: Draws,
}

impl Compiled {
    /// Returns how it mixes rows, if at all.
    pub fn mixing(&self) -> Option<&Mixing> {
        match self {
            Self::Picture(finish) => finish.mixing.as_ref(),
            Self::Features(_) => None,
        }
    }
}

impl Finish {
    /// Compiles the finish for a column whose chain makes `spec`. `draws` are those of the op after the chain's last.
    ///
    /// ```
    /// use feedstock_device::finish::{Draws, Finish, PictureFinish};
    /// use feedstock_ops::{DType, Layout, Salt, TensorSpec};
    ///
    /// let finish = Finish::Picture(PictureFinish::default());
    /// let draws = Draws { salt: Salt::default(), op: 2 };
    /// assert!(finish.compile("image", &TensorSpec::new(DType::U8, [224, 224, 3], Layout::Hwc), draws).is_ok());
    ///
    /// let features = TensorSpec::new(DType::F32, [0, 80], Layout::Tf).ragged(0);
    /// let error = finish.compile("audio", &features, draws).unwrap_err();
    /// assert!(error.message().contains("audio"));
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if the chain's output does not fit, or a parameter is outside its range.
    pub fn compile(&self, column: &str, spec: &TensorSpec, draws: Draws) -> Result<Compiled> {
        let misfit = |wanted: &str| {
            Error::new(
                ErrorKind::BadConfig,
                format!(
                    "finish of '{column}': it takes {wanted}, but the chain makes {:?} {:?} ({:?}); leave the ops that \
                     finish does out of the chain",
                    spec.dtype, spec.shape, spec.layout
                ),
            )
        };
        match self {
            Self::Picture(finish) => match (spec.dtype, spec.layout, spec.shape.as_slice()) {
                (DType::U8, Layout::Hwc, &[height, width, 3]) => {
                    finish.compile(column, (height, width), (None, vec![draws])).map(Compiled::Picture)
                }
                (DType::U8, Layout::Hwc, &[views, height, width, 3]) => {
                    let numbers = (0..u32::MAX).take(views);
                    let of = |number| Draws { salt: Salt::of_view(column, number), ..draws };
                    let draws = (Some(views), numbers.map(of).collect());
                    finish.compile(column, (height, width), draws).map(Compiled::Picture)
                }
                _ => Err(misfit("u8 images, height × width × 3")),
            },
            Self::Features(finish) => match (spec.dtype, spec.layout, spec.shape.as_slice()) {
                (DType::F32, Layout::Tf, &[_, features]) | (DType::F32, Layout::Ft, &[features, _]) => {
                    finish.compile(spec, features, draws).map(Compiled::Features)
                }
                _ => Err(misfit("f32 features, frames × features or features × frames")),
            },
        }
    }
}

impl PictureFinish {
    fn compile(
        &self,
        column: &str,
        (height, width): (usize, usize),
        (views, draws): (Option<usize>, Vec<Draws>),
    ) -> Result<CompiledPicture> {
        self.normalize.check()?;
        if !(0.0..=1.0).contains(&self.flip) {
            let message = format!("finish of '{column}': flip must be 0 … 1; got {}", self.flip);
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        if self.mix.is_some() && views.is_some() {
            let message = format!(
                "finish of '{column}': mix mixes rows of one image, and this one has several views; leave mix out"
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let (scale, bias) = self.normalize.scale_and_bias();
        let mixing = self.mix.as_ref().map(|mix| mix.compile((height, width))).transpose()?;
        let (real, layout, flip) = (self.dtype.real(), self.layout, self.flip);
        Ok(CompiledPicture { real, layout, height, width, views, scale, bias, mixing, flip, draws })
    }
}

impl CompiledPicture {
    /// Returns whether each image of the row of this seed is mirrored.
    pub fn mirrored(&self, seed: SampleSeed) -> impl ExactSizeIterator<Item = bool> {
        let flip = HorizontalFlip::new(self.flip);
        self.draws.iter().map(move |draws| self.flip > 0.0 && flip.draw(&mut draws.generator(seed)))
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
    /// Returns the number of masks per row, the same for every row.
    pub fn masks_per_row(&self) -> u32 {
        self.spec_augment.as_ref().map_or(0, |op| op.freq_masks + op.time_masks)
    }

    /// Returns the masks of a row of `frames` frames. An empty audio clip has the same number of masks, all empty.
    ///
    /// ```
    /// use feedstock_device::finish::{Compiled, Draws, FeatureFinish, Finish};
    /// use feedstock_ops::{DType, Layout, Salt, SampleSeed, TensorSpec, audio::SpecAugment};
    ///
    /// let mut finish = FeatureFinish::default();
    /// finish.spec_augment = Some(SpecAugment::default()); // two masks of time, two of features
    /// let spec = TensorSpec::new(DType::F32, [0, 80], Layout::Tf).ragged(0);
    /// let compiled = Finish::Features(finish).compile("audio", &spec, Draws { salt: Salt::default(), op: 3 })?;
    /// let Compiled::Features(features) = compiled else { unreachable!() };
    /// let masks = features.masks(SampleSeed::new(7, 0, 42), 500);
    /// assert_eq!((masks.len(), features.masks_per_row()), (4, 4));
    /// assert!(masks.iter().all(|mask| mask.start <= mask.end && mask.end <= 500));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
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

    /// Returns the value that fills masks, or `None` if it is the row's mean.
    pub fn mask_value(&self) -> Option<f32> {
        match self.spec_augment.as_ref().map(|op| op.value) {
            Some(MaskValue::Constant(value)) => Some(value),
            _ => None,
        }
    }
}
