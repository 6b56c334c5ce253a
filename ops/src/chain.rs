//! A chain of ops: described by a small value, checked and compiled once, shared by all threads.
//!
//! ```text
//! JSON ─┐
//! text ─┼─▶ ChainSpec(Vec<Op>) ── compile ──▶ Chain ── apply(encoded, seed, scratch, out) ──▶ one row of a slot
//! code ─┘       checks order and parameters      fuses decode + crop + resize + conversion
//! ```
//! Invariants: a compiled chain has one output, fixed or ragged; `apply` is a pure function of its arguments and the
//! last op writes into `out`; after an error the content of `out` is unspecified and `scratch` is ready for the next.

mod info;
mod parse;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ragged::RaggedRow;
use crate::resources::{Need, Resources};
use crate::scratch::Scratch;
use crate::seed::{Salt, SampleSeed};
use crate::spec::TensorSpec;
use feedstock_base::{Error, Result};

#[cfg(feature = "audio")]
use crate::audio;
#[cfg(feature = "image")]
use crate::image;
#[cfg(feature = "text")]
use crate::text;

pub use info::OpInfo;

/// Defines [`Op`] and what is known of each op: its name, the sentence that describes it, its parameters,
/// and those that may be given without a name on the command line.
macro_rules! ops {
    ($(
        #[doc = $summary:literal]
        #[cfg(feature = $feature:literal)]
        $variant:ident($parameters:ty) = $name:literal [$($unnamed:literal),*],
    )+) => {
        /// The description of one op, as `{"op":"random_resized_crop","size":[224,224]}` in JSON.
        ///
        /// Parameters left out take their defaults; unknown ones are errors.
        #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
        #[serde(tag = "op", rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Op {
            $(#[doc = $summary] #[cfg(feature = $feature)] $variant($parameters),)+
        }

        impl Op {
            /// The op's name, as in JSON and on the command line.
            pub fn name(&self) -> &'static str {
                match *self {
                    $(#[cfg(feature = $feature)] Self::$variant(_) => $name,)+
                }
            }

            /// Returns the ops of this build.
            pub fn all() -> Vec<OpInfo> {
                let all: &[OpInfo] = &[$(
                    #[cfg(feature = $feature)] OpInfo::of::<$parameters>($name, $summary, &[$($unnamed),*])
                ),+];
                all.to_vec()
            }
        }
    };
}

ops! {
    /// Decode a JPEG, PNG or WebP into RGB.
    #[cfg(feature = "image")]
    DecodeImage(image::DecodeImage) = "decode_image" [],
    /// Resize to a shorter side or an exact size.
    #[cfg(feature = "image")]
    Resize(image::Resize) = "resize" ["size"],
    /// Cut out the middle.
    #[cfg(feature = "image")]
    CenterCrop(image::CenterCrop) = "center_crop" ["size"],
    /// Cut out a random place.
    #[cfg(feature = "image")]
    RandomCrop(image::RandomCrop) = "random_crop" ["size"],
    /// Cut out a random area and aspect ratio and resize it.
    #[cfg(feature = "image")]
    RandomResizedCrop(image::RandomResizedCrop) = "random_resized_crop" ["size"],
    /// Mirror left and right.
    #[cfg(feature = "image")]
    HorizontalFlip(image::HorizontalFlip) = "horizontal_flip" ["probability"],
    /// Random brightness, contrast, saturation and hue.
    #[cfg(feature = "image")]
    ColorJitter(image::ColorJitter) = "color_jitter" ["brightness", "contrast", "saturation", "hue"],
    /// RandAugment (Cubuk et al. 2020).
    #[cfg(feature = "image")]
    RandAugment(image::RandAugment) = "rand_augment" ["num_ops", "magnitude"],
    /// TrivialAugment Wide (Müller, Hutter 2021).
    #[cfg(feature = "image")]
    TrivialAugment(image::TrivialAugment) = "trivial_augment" [],
    /// Overwrite a random rectangle (Zhong et al. 2017).
    #[cfg(feature = "image")]
    RandomErasing(image::RandomErasing) = "random_erasing" ["probability"],
    /// To f32, minus mean, over standard deviation.
    #[cfg(feature = "image")]
    Normalize(image::Normalize) = "normalize" ["mean", "std"],
    /// To f32 in 0 … 1.
    #[cfg(feature = "image")]
    ToF32(image::ToF32) = "to_f32" [],
    /// Channels first.
    #[cfg(feature = "image")]
    ToChw(image::ToChw) = "to_chw" [],
    /// Decode an MP3, FLAC, Ogg Vorbis, WAV or AAC clip into one channel.
    #[cfg(feature = "audio")]
    DecodeAudio(audio::DecodeAudio) = "decode_audio" [],
    /// Another sample rate.
    #[cfg(feature = "audio")]
    Resample(audio::Resample) = "resample" ["sample_rate"],
    /// Cut off quiet beginnings and ends.
    #[cfg(feature = "audio")]
    TrimSilence(audio::TrimSilence) = "trim_silence" ["top_db"],
    /// Cut out a random stretch.
    #[cfg(feature = "audio")]
    RandomCropSeconds(audio::RandomCropSeconds) = "random_crop_seconds" ["seconds"],
    /// Make shorter clips longer.
    #[cfg(feature = "audio")]
    PadSeconds(audio::PadSeconds) = "pad_seconds" ["seconds"],
    /// Play faster or slower (Ko et al. 2015).
    #[cfg(feature = "audio")]
    SpeedPerturb(audio::SpeedPerturb) = "speed_perturb" ["factors"],
    /// A random gain.
    #[cfg(feature = "audio")]
    Volume(audio::Volume) = "volume" ["gain_db"],
    /// Mix in noise at a signal-to-noise ratio.
    #[cfg(feature = "audio")]
    AddNoise(audio::AddNoise) = "add_noise" ["noise", "snr_db"],
    /// Log-mel spectrograms.
    #[cfg(feature = "audio")]
    LogMel(audio::LogMel) = "log_mel" ["n_mels"],
    /// Mel-frequency cepstral coefficients.
    #[cfg(feature = "audio")]
    Mfcc(audio::Mfcc) = "mfcc" ["n_mfcc"],
    /// Mask stretches of frequency and time (Park et al. 2019).
    #[cfg(feature = "audio")]
    SpecAugment(audio::SpecAugment) = "spec_augment" [],
    /// Each clip to mean 0 and variance 1.
    #[cfg(feature = "audio")]
    UtteranceMvn(audio::UtteranceMvn) = "utterance_mvn" [],
    /// Features to the statistics of a data set.
    #[cfg(feature = "audio")]
    GlobalMvn(audio::GlobalMvn) = "global_mvn" ["mean", "std"],
    /// Features first.
    #[cfg(feature = "audio")]
    FeatureMajor(audio::FeatureMajor) = "feature_major" [],
    /// Sub-word tokens by a `tokenizer.json`.
    #[cfg(feature = "text")]
    Tokenize(text::Tokenize) = "tokenize" ["tokenizer"],
    /// One token a character.
    #[cfg(feature = "text")]
    TokenizeChars(text::TokenizeChars) = "tokenize_chars" ["vocabulary"],
}

/// The description of a chain: its ops in order.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(transparent)]
pub struct ChainSpec(pub Vec<Op>);

impl ChainSpec {
    /// Reads the command line's form: ops separated by commas, each `name[:value…][:key=value…]`.
    ///
    /// Values are numbers, `true`/`false`, words, `224x288` (height × width), `0.2..1` (a range) or `1/2/3` (a
    /// list); what stands in quotation marks is a word whatever it holds, and a URI whose only colon is that of its
    /// scheme needs none. The values without a key are the op's first parameters, in the order of its constructor.
    ///
    /// ```
    /// use feedstock_ops::ChainSpec;
    /// # fn main() -> feedstock_ops::Result<()> {
    /// ChainSpec::parse("decode_image,random_resized_crop:224:scale=0.2..1:filter=bicubic,horizontal_flip")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the parameter.
    pub fn parse(text: &str) -> Result<Self> {
        parse::chain(text)
    }

    /// What its ops refer to and somebody has to load, each once.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::new();
        #[cfg(feature = "audio")]
        needs.extend(audio::needs(&self.0));
        #[cfg(feature = "text")]
        needs.extend(text::needs(&self.0));
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// [`compile_with`](Self::compile_with) nothing: for chains that refer to nothing.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn compile(&self) -> Result<Chain> {
        self.compile_with(&Resources::new())
    }

    /// Checks order and parameters, looks up what ops refer to, and fuses what can be fused.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn compile_with(&self, resources: &Resources) -> Result<Chain> {
        Ok(Chain::new(self.plan(resources)?))
    }

    #[cfg_attr(
        not(any(feature = "audio", feature = "text")),
        expect(unused_variables, reason = "no op refers")
    )]
    fn plan(&self, resources: &Resources) -> Result<Plan> {
        match self.0.first() {
            #[cfg(feature = "image")]
            Some(Op::DecodeImage(_)) => image::ImagePlan::compile(&self.0).map(Plan::Image),
            #[cfg(feature = "audio")]
            Some(Op::DecodeAudio(_)) => audio::AudioPlan::compile(&self.0, resources).map(Plan::Audio),
            #[cfg(feature = "text")]
            Some(Op::Tokenize(_) | Op::TokenizeChars(_)) => {
                text::TextPlan::compile(&self.0, resources).map(Plan::Text)
            }
            None => Err(Error::config(format!("the chain has no ops; start it with {STARTS}"))),
            #[allow(unreachable_patterns, reason = "without features there are no ops")]
            Some(op) => Err(Error::config(format!(
                "op 0 ({}) cannot come first: the input is a file's or a cell's bytes; start the chain with \
                     {STARTS}",
                op.name()
            ))),
        }
    }
}

/// The ops that take bytes.
const STARTS: &str = "decode_image, decode_audio, tokenize or tokenize_chars";

impl FromStr for ChainSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl From<Vec<Op>> for ChainSpec {
    fn from(ops: Vec<Op>) -> Self {
        Self(ops)
    }
}

impl<const N: usize> From<[Op; N]> for ChainSpec {
    fn from(ops: [Op; N]) -> Self {
        Self(ops.into())
    }
}

impl FromIterator<Op> for ChainSpec {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        Self(ops.into_iter().collect())
    }
}

/// A compiled chain; cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Chain {
    plan: Arc<Plan>,
    salt: Salt,
}

/// One variant per kind of sample.
enum Plan {
    #[cfg(feature = "image")]
    Image(image::ImagePlan),
    /// The chain of pictures, which leaves some to a GPU.
    #[cfg(feature = "image")]
    Deferring(Chain, image::Deferring),
    #[cfg(feature = "audio")]
    Audio(audio::AudioPlan),
    #[cfg(feature = "text")]
    Text(text::TextPlan),
}

impl Chain {
    fn new(plan: Plan) -> Self {
        Self { plan: Arc::new(plan), salt: Salt::default() }
    }

    /// Separates the draws of the chain from those of chains with another salt. Chains with equal salts draw the same. Default:
    /// no salt.
    #[must_use]
    pub fn with_salt(self, salt: Salt) -> Self {
        Self { salt, ..self }
    }

    /// The seed that this chain's ops draw from: what finishes a row elsewhere continues with it.
    /// [`apply`](Self::apply) derives it itself.
    pub fn seed(&self, sample: SampleSeed) -> SampleSeed {
        sample.salted(self.salt)
    }

    /// The salt of its draws.
    pub fn salt(&self) -> Salt {
        self.salt
    }

    /// Parses the command line's form ([`ChainSpec::parse`]) and compiles it.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn parse(text: &str) -> Result<Self> {
        ChainSpec::parse(text)?.compile()
    }

    /// The tensor that [`Chain::apply`] or, where it is ragged, [`Chain::apply_ragged`] writes.
    pub fn output(&self) -> &TensorSpec {
        match *self.plan {
            #[cfg(feature = "image")]
            Plan::Image(ref plan) => plan.output(),
            #[cfg(feature = "image")]
            Plan::Deferring(_, ref deferring) => deferring.output(),
            #[cfg(feature = "audio")]
            Plan::Audio(ref plan) => plan.output(),
            #[cfg(feature = "text")]
            Plan::Text(ref plan) => plan.output(),
        }
    }

    /// The same chain of pictures, leaving `share` (0 … 1) of those JPEGs that a GPU decodes as they are: its rows are
    /// ragged, and read as [`DeferredRow`](crate::image::DeferredRow)s.
    ///
    /// # Errors
    /// `BadConfig` where the chain is not decode_image, one cut with the filter bilinear, and flips.
    #[cfg(feature = "image")]
    pub fn deferring(&self, share: f64) -> Result<Self> {
        match *self.plan {
            Plan::Image(ref plan) => {
                let deferring = image::Deferring::new(plan, share)?;
                let plan = Arc::new(Plan::Deferring(self.clone(), deferring));
                Ok(Self { plan, salt: self.salt })
            }
            _ => Err(Error::config("only pictures are decoded by a GPU")),
        }
    }

    /// Runs the chain on one sample's `encoded` bytes; the last op writes into `out`, whose alignment is free.
    ///
    /// # Errors
    /// `BadSample` where the bytes cannot be decoded, exceed a limit or do not fit the ops; the content of `out` is
    /// then unspecified, and `scratch` is ready for the next sample.
    ///
    /// # Panics
    /// Where the output is ragged, or `out` is not exactly [`output`](Chain::output)`.bytes()` long: that is a defect
    /// of the caller.
    #[cfg_attr(not(feature = "image"), allow(unused_variables, reason = "there may be no ops"))]
    pub fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        assert!(!self.output().is_ragged(), "a ragged chain finds its rows' lengths itself");
        assert_eq!(out.len(), self.output().bytes(), "the row must be exactly as long as the chain's output");
        let seed = self.seed(seed);
        guarded(scratch, |scratch| match *self.plan {
            #[cfg(feature = "image")]
            Plan::Image(ref plan) => {
                let warnings = plan.apply(encoded, seed, scratch, out)?;
                scratch.warnings.add(warnings);
                Ok(())
            }
            #[cfg(feature = "image")]
            Plan::Deferring(..) => unreachable!("deferred rows are ragged"),
            #[cfg(feature = "audio")]
            Plan::Audio(ref plan) => apply_audio(plan, encoded, seed, scratch, audio::Row::Fixed(out)),
            #[cfg(feature = "text")]
            Plan::Text(_) => unreachable!("token ids are ragged"),
        })
    }

    /// As [`apply`](Chain::apply), for a chain whose output is ragged: `out` becomes as long as the sample is.
    ///
    /// # Errors
    /// As [`apply`](Chain::apply).
    ///
    /// # Panics
    /// Where the output is not ragged: that is a defect of the caller.
    #[cfg_attr(not(feature = "audio"), allow(unused_variables, reason = "there may be no ragged ops"))]
    pub fn apply_ragged(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut RaggedRow,
    ) -> Result<()> {
        assert!(self.output().is_ragged(), "a fixed chain writes into a row of its length");
        let seed = self.seed(seed);
        guarded(scratch, |scratch| match *self.plan {
            #[cfg(feature = "image")]
            Plan::Image(_) => unreachable!("pictures have a fixed size"),
            #[cfg(feature = "image")]
            Plan::Deferring(ref chain, ref deferring) => match *chain.plan {
                Plan::Image(ref plan) => {
                    let warnings = deferring.apply(plan, encoded, seed, scratch, out)?;
                    scratch.warnings.add(warnings);
                    Ok(())
                }
                _ => unreachable!("only chains of pictures defer"),
            },
            #[cfg(feature = "audio")]
            Plan::Audio(ref plan) => apply_audio(plan, encoded, seed, scratch, audio::Row::Ragged(out)),
            #[cfg(feature = "text")]
            Plan::Text(ref plan) => plan.apply(encoded, scratch, out),
        })
    }
}

/// Runs ops on bytes from outside and turns a panic into a bad sample, so that `on_error` applies.
fn guarded(scratch: &mut Scratch, run: impl FnOnce(&mut Scratch) -> Result<()>) -> Result<()> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(scratch))).unwrap_or_else(|panic| {
        scratch.take_warnings();
        scratch.free(); // its buffers may be half written
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::bad_sample(format!(
            "an op panicked ({what}): a defect in feedstock; please report it with this sample"
        )))
    });
    scratch.end(&outcome);
    outcome
}

/// Runs a chain of audio, and keeps its warnings for the caller.
#[cfg(feature = "audio")]
fn apply_audio(
    plan: &audio::AudioPlan,
    encoded: &[u8],
    seed: SampleSeed,
    scratch: &mut Scratch,
    row: audio::Row<'_>,
) -> Result<()> {
    let warnings = plan.apply(encoded, seed, scratch, row)?;
    scratch.warnings.add(warnings);
    Ok(())
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("output", self.output()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_panic_of_an_op_is_a_bad_sample_and_leaves_fresh_scratch() {
        let mut scratch = Scratch::new();
        let error = guarded(&mut scratch, |scratch| {
            scratch.warnings.add([crate::Warning::EndUnknown].into_iter().collect());
            panic!("row {}", 7)
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSample);
        assert!(error.message().contains("an op panicked (row 7)"), "{error}");
        assert!(scratch.take_warnings().is_empty());
        guarded(&mut scratch, |_| Ok(())).unwrap();
    }
}
