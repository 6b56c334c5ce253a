//! A chain of ops: described by a small value, checked and compiled once, shared by all threads.
//!
//! ```text
//! JSON ─┐
//! text ─┼─▶ ChainSpec(Vec<Op>) ── compile ──▶ Chain ── apply(encoded, seed, scratch, out) ──▶ one row of a slot
//! code ─┘       checks order and parameters      fuses decode + crop + resize + conversion
//! ```
//! Invariants: a compiled chain has a fixed output shape; `apply` is a pure function of its arguments and the last
//! op writes into `out`; after an error the content of `out` is unspecified and `scratch` is ready for the next.

mod parse;

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;

#[cfg(feature = "image")]
use crate::image;

/// The description of one op, as `{"op":"random_resized_crop","size":[224,224]}` in JSON.
///
/// Parameters left out take their defaults; unknown ones are errors.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Op {
    /// Decode a JPEG, PNG or WebP into RGB.
    #[cfg(feature = "image")]
    DecodeImage(image::DecodeImage),
    /// Resize to a shorter side or an exact size.
    #[cfg(feature = "image")]
    Resize(image::Resize),
    /// Cut out the middle.
    #[cfg(feature = "image")]
    CenterCrop(image::CenterCrop),
    /// Cut out a random place.
    #[cfg(feature = "image")]
    RandomCrop(image::RandomCrop),
    /// Cut out a random area and aspect ratio and resize it.
    #[cfg(feature = "image")]
    RandomResizedCrop(image::RandomResizedCrop),
    /// Mirror left and right.
    #[cfg(feature = "image")]
    HorizontalFlip(image::HorizontalFlip),
    /// Random brightness, contrast, saturation and hue.
    #[cfg(feature = "image")]
    ColorJitter(image::ColorJitter),
    /// RandAugment (Cubuk et al. 2020).
    #[cfg(feature = "image")]
    RandAugment(image::RandAugment),
    /// TrivialAugment Wide (Müller, Hutter 2021).
    #[cfg(feature = "image")]
    TrivialAugment(image::TrivialAugment),
    /// Overwrite a random rectangle (Zhong et al. 2017).
    #[cfg(feature = "image")]
    RandomErasing(image::RandomErasing),
    /// To f32, minus mean, over standard deviation.
    #[cfg(feature = "image")]
    Normalize(image::Normalize),
    /// To f32 in 0 … 1.
    #[cfg(feature = "image")]
    ToF32(image::ToF32),
    /// Channels first.
    #[cfg(feature = "image")]
    ToChw(image::ToChw),
}

impl Op {
    /// The op's name, as in JSON and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "image")]
            Self::DecodeImage(_) => "decode_image",
            #[cfg(feature = "image")]
            Self::Resize(_) => "resize",
            #[cfg(feature = "image")]
            Self::CenterCrop(_) => "center_crop",
            #[cfg(feature = "image")]
            Self::RandomCrop(_) => "random_crop",
            #[cfg(feature = "image")]
            Self::RandomResizedCrop(_) => "random_resized_crop",
            #[cfg(feature = "image")]
            Self::HorizontalFlip(_) => "horizontal_flip",
            #[cfg(feature = "image")]
            Self::ColorJitter(_) => "color_jitter",
            #[cfg(feature = "image")]
            Self::RandAugment(_) => "rand_augment",
            #[cfg(feature = "image")]
            Self::TrivialAugment(_) => "trivial_augment",
            #[cfg(feature = "image")]
            Self::RandomErasing(_) => "random_erasing",
            #[cfg(feature = "image")]
            Self::Normalize(_) => "normalize",
            #[cfg(feature = "image")]
            Self::ToF32(_) => "to_f32",
            #[cfg(feature = "image")]
            Self::ToChw(_) => "to_chw",
            #[cfg(not(feature = "image"))]
            _ => "unknown",
        }
    }
}

/// The description of a chain: its ops in order.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(transparent)]
pub struct ChainSpec(pub Vec<Op>);

impl ChainSpec {
    /// Reads the command line's form: ops separated by commas, each `name[:value…][:key=value…]`.
    ///
    /// Values are numbers, `true`/`false`, words, `224x288` (height × width), `0.2..1` (a range) or `1/2/3` (a
    /// list); the values without a key are the op's first parameters, in the order of its constructor.
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

    /// Checks order and parameters and fuses what can be fused.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn compile(&self) -> Result<Chain> {
        #[cfg(feature = "image")]
        if let Some(Op::DecodeImage(_)) = self.0.first() {
            return Ok(Chain(Arc::new(Plan::Image(image::ImagePlan::compile(&self.0)?))));
        }
        Err(match self.0.first() {
            None => Error::config("the chain has no ops; start it with decode_image"),
            Some(op) => Error::config(format!(
                "op 0 ({}) cannot come first: the input is encoded bytes; start the chain with decode_image",
                op.name()
            )),
        })
    }
}

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
pub struct Chain(Arc<Plan>);

/// One variant per kind of sample.
enum Plan {
    #[cfg(feature = "image")]
    Image(image::ImagePlan),
}

impl Chain {
    /// Parses the command line's form ([`ChainSpec::parse`]) and compiles it.
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn parse(text: &str) -> Result<Self> {
        ChainSpec::parse(text)?.compile()
    }

    /// The tensor that [`Chain::apply`] writes.
    pub fn output(&self) -> &TensorSpec {
        match &*self.0 {
            #[cfg(feature = "image")]
            Plan::Image(plan) => plan.output(),
            #[cfg(not(feature = "image"))]
            _ => unreachable!("a chain is compiled from ops, and there are none"),
        }
    }

    /// Runs the chain on one sample's `encoded` bytes; the last op writes into `out`, whose alignment is free.
    ///
    /// # Errors
    /// `BadSample` where the bytes cannot be decoded, exceed a limit or do not fit the ops; the content of `out` is
    /// then unspecified, and `scratch` is ready for the next sample.
    ///
    /// # Panics
    /// Where `out` is not exactly [`output`](Chain::output)`.bytes()` long: that is a defect of the caller.
    #[cfg_attr(not(feature = "image"), expect(unused_variables, reason = "no ops"))]
    pub fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        assert_eq!(out.len(), self.output().bytes(), "the row must be exactly as long as the chain's output");
        match &*self.0 {
            #[cfg(feature = "image")]
            Plan::Image(plan) => plan.apply(encoded, seed, &mut scratch.image, out),
            #[cfg(not(feature = "image"))]
            _ => unreachable!("a chain is compiled from ops, and there are none"),
        }
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("output", self.output()).finish_non_exhaustive()
    }
}
