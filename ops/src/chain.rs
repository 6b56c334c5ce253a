//! A chain of ops: described by a small value, checked and compiled once, shared by all threads.
//!
//! ```text
//! JSON ─┐
//! text ─┼─▶ ChainSpec(Vec<Op>) ── compile ──▶ Chain ── apply(encoded, seed, scratch, out) ──▶ one row of a slot
//! code ─┘       checks order and parameters      fuses decode + crop + resize + conversion
//! ```
//! Invariants: a compiled chain has one output, fixed or ragged; `apply` is a pure function of its arguments and the
//! last op writes into `out`; after an error the content of `out` is unspecified and `scratch` is ready for the next.

mod annotation;
#[cfg(feature = "image")]
mod lists;
mod parse;
#[cfg(feature = "image")]
pub(crate) mod views;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::faults;
use crate::op::{self, Op};
use crate::plan::{Plan, Row};
use crate::ragged::RaggedRow;
use crate::resources::{Need, Resources};
use crate::scratch::Scratch;
use crate::seed::{Salt, SampleSeed};
use crate::spec::TensorSpec;
use feedstock_base::{Error, Result};

/// The description of a chain: its ops in order.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, resize};
///
/// let spec = ChainSpec::from([decode_image(), resize([224, 288])]);
/// let text = r#"[{"op": "decode_image"}, {"op": "resize", "size": [224, 288]}]"#;
/// assert_eq!(serde_json::from_str::<ChainSpec>(text).unwrap(), spec);
/// assert_eq!("decode_image,resize:224x288".parse::<ChainSpec>().unwrap(), spec);
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(transparent)]
pub struct ChainSpec(pub Vec<Op>);

impl ChainSpec {
    /// Parses the command line's form: ops separated by commas, each `name[:value…][:key=value…]`.
    ///
    /// Values are numbers, `true`/`false`, words, `224x288` (height × width), `0.2..1` (a range) or `1/2/3` (a list);
    /// text in quotation marks is a word whatever it holds, and a URI whose only colon is that of its scheme needs
    /// none. The values without a key are the op's first parameters, in the order of its constructor.
    ///
    /// ```
    /// use feedstock_ops::ChainSpec;
    ///
    /// let spec = ChainSpec::parse("decode_image,random_resized_crop:224:scale=0.2..1:filter=bicubic,horizontal_flip")?;
    /// assert_eq!(spec.0[1].name(), "random_resized_crop");
    ///
    /// let error = ChainSpec::parse("decode_image,random_resize_crop:224").unwrap_err();
    /// assert!(error.message().contains("`random_resize_crop` is not an op (did you mean random_resized_crop?)"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the parameter.
    pub fn parse(text: &str) -> Result<Self> {
        parse::ops(text).map(Self)
    }

    /// Parses JSON, a list of objects, with errors that name the op and the parameter.
    ///
    /// ```
    /// use feedstock_ops::ChainSpec;
    ///
    /// let error = ChainSpec::from_json(r#"[{"op": "decode_image"}, {"op": "horizontal_flip", "probability": "x"}]"#);
    /// assert_eq!(error.unwrap_err().message(), r#"op 1 (horizontal_flip): `probability` must be a number; got "x""#);
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for another form, an unknown op or parameter, a value of the wrong type, and a missing parameter.
    pub fn from_json(text: &str) -> Result<Self> {
        parse::ops_of_json(text).map(Self)
    }

    /// Returns what its ops refer to, each once: the caller has to load it.
    ///
    /// ```
    /// use feedstock_ops::ChainSpec;
    ///
    /// let spec = ChainSpec::parse("decode_audio,resample:16000,add_noise:'s3://b/noise'")?;
    /// assert_eq!(spec.needs()[0].uri(), "s3://b/noise");
    /// assert!(ChainSpec::parse("decode_audio,resample:16000")?.needs().is_empty());
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn needs(&self) -> Vec<Need> {
        op::needs(&self.0)
    }

    /// Compiles a chain that refers to nothing: [`compile_with`](Self::compile_with) without resources.
    ///
    /// ```
    /// use feedstock_ops::{ChainSpec, center_crop, decode_image, to_chw};
    ///
    /// let chain = ChainSpec::from([decode_image(), center_crop(224), to_chw()]).compile()?;
    /// assert_eq!(chain.output().shape, [3, 224, 224]);
    ///
    /// let error = ChainSpec::from([center_crop(224)]).compile().unwrap_err();
    /// assert!(error.message().starts_with("op 0 (center_crop) cannot come first"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason.
    pub fn compile(&self) -> Result<Chain> {
        self.compile_with(&Resources::new())
    }

    /// Checks order and parameters, looks up what ops refer to, and fuses what can be fused.
    ///
    /// ```
    /// use feedstock_ops::{ChainSpec, Noise, Resources};
    ///
    /// let spec = ChainSpec::parse("decode_audio,resample:16000,add_noise:'s3://b/noise'")?;
    /// let error = spec.compile().unwrap_err();
    /// assert!(error.message().contains("the noise s3://b/noise is not loaded"));
    ///
    /// let noise = Noise { sample_rate: 16_000, clips: vec![vec![0.1; 400]] };
    /// assert!(spec.compile_with(&Resources::new().with_noise("s3://b/noise", noise))?.output().is_ragged());
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
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
    ///
    /// ```
    /// # use feedstock_ops::{Chain, Salt, SampleSeed};
    /// let image = Chain::parse("decode_image,random_crop:224")?;
    /// let (view, mask) = (image.clone().with_salt(Salt::of_output("view")), image.clone().with_salt(Salt::of_output("mask")));
    /// let sample = SampleSeed::new(7, 0, 42);
    /// assert_ne!(view.seed(sample), mask.seed(sample)); // two independent crops of one image
    ///
    /// let key = Salt::of_key("pair");
    /// assert_eq!(view.with_salt(key).seed(sample), mask.with_salt(key).seed(sample)); // the same crop of both
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    #[must_use]
    pub fn with_salt(self, salt: Salt) -> Self {
        Self { salt, ..self }
    }

    /// Returns the seed that this chain's ops draw from. Code that finishes a row elsewhere continues with it.
    /// [`apply`](Self::apply) derives it itself.
    pub fn seed(&self, sample: SampleSeed) -> SampleSeed {
        sample.salted(self.salt)
    }

    /// Returns the salt of its draws.
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

    /// Returns the tensor that [`Chain::apply`] writes; if it is ragged, [`Chain::apply_ragged`] writes it.
    ///
    /// ```
    /// use feedstock_ops::{Chain, DType};
    ///
    /// let output = Chain::parse("decode_image,resize:224x224,normalize")?.output().clone();
    /// assert_eq!((output.dtype, output.bytes()), (DType::F32, 224 * 224 * 3 * 4));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn output(&self) -> &TensorSpec {
        self.plan.output()
    }

    /// Returns true if the chain decodes images and crops them, so that [`Scratch::note_rows`] saves time from a sample's second
    /// epoch on.
    ///
    /// ```
    /// use feedstock_ops::Chain;
    ///
    /// assert!(Chain::parse("decode_image,random_resized_crop:224")?.shows_parts());
    /// assert!(!Chain::parse("decode_image,resize:224x224")?.shows_parts());
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn shows_parts(&self) -> bool {
        self.plan.shows_parts()
    }

    /// Reads height and width that an image has after decoding, turned by its EXIF if the chain does that, and before any other op. `None`
    /// if the chain does not decode images.
    ///
    /// ```
    /// use feedstock_ops::Chain;
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,resize:224x224")?;
    /// assert_eq!(chain.image_size(&encode(2, 1, &[0; 6]))?, Some([1, 2]));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadSample` for a header that cannot be read, or that is over a limit.
    pub fn image_size(&self, encoded: &[u8]) -> Result<Option<[u32; 2]>> {
        catch_unwind(AssertUnwindSafe(|| self.plan.image_size(encoded)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))
    }

    /// Returns the same chain of images, which leaves the fraction `share` (0 … 1) of the JPEGs that a GPU can decode
    /// encoded. Its rows are ragged, and read as `image::DeferredRow`s.
    ///
    /// ```
    /// use feedstock_ops::Chain;
    ///
    /// let chain = Chain::parse("decode_image,random_resized_crop:224,horizontal_flip")?;
    /// assert!(chain.deferring(0.5)?.output().is_ragged());
    ///
    /// let error = Chain::parse("decode_image,center_crop:224,color_jitter:0.4")?.deferring(0.5).unwrap_err();
    /// assert!(error.message().starts_with("a GPU decodes for chains of decode_image, then random_resized_crop"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` where the chain is not decode_image, one cut with the filter bilinear, and flips.
    pub fn deferring(&self, share: f64) -> Result<Self> {
        Ok(Self { plan: self.plan.deferring(share)?, salt: self.salt })
    }

    /// Runs the chain on one sample's `encoded` bytes; the last op writes into `out`, whose alignment is free.
    ///
    /// ```
    /// use feedstock_ops::{Chain, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,center_crop:1x2,horizontal_flip:1")?;
    /// let image = encode(2, 1, &[255, 0, 0, 0, 0, 255]); // a PNG: red, blue
    /// let mut row = vec![0; chain.output().bytes()];
    /// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
    /// assert_eq!(row, [0, 0, 255, 255, 0, 0]);
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
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
    /// ```
    /// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
    ///
    /// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    /// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    /// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
    /// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
    /// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
    /// # }
    /// let chain = Chain::parse("decode_audio,resample:16000")?;
    /// let (mut scratch, mut row) = (Scratch::new(), RaggedRow::new());
    /// for samples in [320, 800] {
    ///     chain.apply_ragged(&wav(16_000, &vec![0; samples]), SampleSeed::new(7, 0, 0), &mut scratch, &mut row)?;
    ///     assert_eq!((row.length(), row.bytes().len()), (samples, 4 * samples));
    /// }
    /// let error = chain.apply_ragged(b"not audio", SampleSeed::new(7, 0, 1), &mut scratch, &mut row).unwrap_err();
    /// assert_eq!(error.kind(), feedstock_ops::ErrorKind::BadSample);
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
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
            faults::meet(encoded);
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
        Err(panicked(&*panic))
    });
    scratch.end(&outcome);
    outcome
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let what = panic.downcast_ref::<String>().map(String::as_str);
    let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Error::bad_sample(format!(
        "an op panicked ({what}): a defect in feedstock; please report it with this sample"
    ))
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
