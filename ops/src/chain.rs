//! A chain of ops: described by a small value, checked and compiled once, shared by all threads.
//!
//! ```text
//! JSON ─┐
//! text ─┼─▶ ChainSpec(Vec<Op>) ── compile ──▶ Chain ── apply(encoded, seed, scratch, out) ──▶ one row of a slot
//! code ─┘       checks order and parameters      fuses decode + crop + resize + conversion
//! ```
//! Invariants: a compiled chain has one output, fixed or ragged; `apply` is a pure function of its arguments and the
//! last op writes into `out`; after an error the content of `out` is unspecified and `scratch` is ready for the next.

mod parse;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::op::{self, Op};
use crate::plan::{Plan, Row};
use crate::ragged::RaggedRow;
use crate::resources::{Need, Resources};
use crate::scratch::Scratch;
use crate::seed::{Salt, SampleSeed};
use crate::spec::TensorSpec;
use feedstock_base::{Error, Result};

/// The description of a chain: its ops in order.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(transparent)]
pub struct ChainSpec(pub Vec<Op>);

impl ChainSpec {
    /// Reads the command line's form: ops separated by commas, each `name[:value…][:key=value…]`.
    ///
    /// Values are numbers, `true`/`false`, words, `224x288` (height × width), `0.2..1` (a range) or `1/2/3` (a list);
    /// text in quotation marks is a word whatever it holds, and a URI whose only colon is that of its scheme needs
    /// none. The values without a key are the op's first parameters, in the order of its constructor.
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
        parse::ops(text).map(Self)
    }

    /// Returns what its ops refer to, each once: the caller has to load it.
    pub fn needs(&self) -> Vec<Need> {
        op::needs(&self.0)
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
        Ok(Chain { plan: op::compile(&self.0, resources)?, salt: Salt::default() })
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
pub struct Chain {
    plan: Arc<dyn Plan>,
    salt: Salt,
}

impl Chain {
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
        self.plan.output()
    }

    /// The same chain of images, leaving `share` (0 … 1) of those JPEGs that a GPU decodes as they are: its rows are
    /// ragged, and read as `image::DeferredRow`s.
    ///
    /// # Errors
    /// `BadConfig` where the chain is not decode_image, one cut with the filter bilinear, and flips.
    pub fn deferring(&self, share: f64) -> Result<Self> {
        Ok(Self { plan: self.plan.deferring(share)?, salt: self.salt })
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
    pub fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        assert!(!self.output().is_ragged(), "a ragged chain finds its rows' lengths itself");
        assert_eq!(out.len(), self.output().bytes(), "the row must be exactly as long as the chain's output");
        self.run(encoded, seed, scratch, Row::Fixed(out))
    }

    /// As [`apply`](Chain::apply), for a chain whose output is ragged: `out` becomes as long as the sample is.
    ///
    /// # Errors
    /// As [`apply`](Chain::apply).
    ///
    /// # Panics
    /// Where the output is not ragged: that is a defect of the caller.
    pub fn apply_ragged(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut RaggedRow,
    ) -> Result<()> {
        assert!(self.output().is_ragged(), "a fixed chain writes into a row of its length");
        self.run(encoded, seed, scratch, Row::Ragged(out))
    }

    fn run(&self, encoded: &[u8], seed: SampleSeed, scratch: &mut Scratch, row: Row<'_>) -> Result<()> {
        let seed = self.seed(seed);
        guarded(scratch, |scratch| {
            let warnings = self.plan.apply(encoded, seed, scratch, row)?;
            scratch.warnings.add(warnings);
            Ok(())
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
