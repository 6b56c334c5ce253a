//! The interface of an op on audio, and the compilation of a chain of such ops.

use super::decode::DecodeAudio;
use super::parameters::{MAX_ELEMENTS, samples};
use super::resample::resampled_length;
use super::stages::Stages;
use super::step::{Extractor, FeatureOp, WaveOp};
use crate::plan::{Named, at};
use crate::resources::{Needs, Resources};
use crate::spec::{DType, Layout, TensorSpec};
use feedstock_base::{Error, Result};

/// An op on audio.
pub(crate) trait AudioOp {
    /// Checks the parameters, and adds the op's steps to the chain.
    ///
    /// # Errors
    /// `BadConfig` with the reason.
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()>;

    /// Returns the options of the op that decodes; `None` for all others.
    fn decoder(&self) -> Option<&DecodeAudio> {
        None
    }

    /// Whether the op takes a sample's bytes, so that a chain can start with it.
    fn takes_bytes(&self) -> bool {
        self.decoder().is_some()
    }

    /// Lists the op's resources, and follows the sample rate.
    fn refer(&self, _: &mut Needs) {}
}

/// The range of samples that an audio clip can have at one point of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    least: usize,
    most: Option<usize>,
}

impl Lengths {
    fn fixed(self) -> Option<usize> {
        self.most.filter(|&most| most == self.least)
    }
}

/// The state of a chain after the ops added so far.
pub(crate) struct Compiler<'a> {
    index: usize,
    resources: &'a Resources,
    sample_rate: Option<u32>,
    lengths: Lengths,
    waves: Vec<(usize, Box<dyn WaveOp>)>,
    extractor: Option<Box<dyn Extractor>>,
    features: Vec<(usize, Box<dyn FeatureOp>)>,
    feature_major: bool,
}

impl<'a> Compiler<'a> {
    /// Returns the resources that the chain is compiled with.
    pub(crate) fn resources(&self) -> &'a Resources {
        self.resources
    }

    /// Returns the sample rate that every audio clip has here.
    ///
    /// # Errors
    /// `BadConfig` if audio clips have different rates. `why` is the reason why that is wrong.
    pub(crate) fn rate(&self, why: &str) -> Result<u32> {
        self.sample_rate.ok_or_else(|| {
            Error::config(format!(
                "{why}, and audio clips have different rates; put resample:16000 before it"
            ))
        })
    }

    /// Whether an op that makes features was added.
    pub(crate) fn has_features(&self) -> bool {
        self.extractor.is_some()
    }

    /// Adds an op on waveforms.
    pub(crate) fn wave(&mut self, op: impl WaveOp + 'static) -> Result<()> {
        if self.has_features() {
            return Err(Error::config("works on waveforms; put it before log_mel or mfcc"));
        }
        self.waves.push((self.index, Box::new(op)));
        Ok(())
    }

    /// Adds an op on features. `op` gets the number of features.
    pub(crate) fn feature<T: FeatureOp + 'static>(
        &mut self,
        op: impl FnOnce(usize) -> Result<T>,
    ) -> Result<()> {
        let width = self.width()?;
        self.features.push((self.index, Box::new(op(width)?)));
        Ok(())
    }

    /// Lays features out as `[features, frames]`.
    pub(crate) fn feature_major(&mut self) -> Result<()> {
        self.width()?;
        self.feature_major = true;
        Ok(())
    }

    fn width(&self) -> Result<usize> {
        let extractor = self.extractor.as_ref();
        let width = extractor.map(|extractor| extractor.width());
        width.ok_or_else(|| Error::config("works on features; put it after log_mel or mfcc"))
    }

    /// Adds the op that makes features. `extractor` gets the sample rate.
    pub(crate) fn extract<T: Extractor + 'static>(
        &mut self,
        extractor: impl FnOnce(u32) -> Result<T>,
    ) -> Result<()> {
        if self.has_features() {
            return Err(Error::config("the features are made already; log_mel or mfcc comes once"));
        }
        let rate = self.rate("its filters depend on the sample rate")?;
        self.extractor = Some(Box::new(extractor(rate)?));
        Ok(())
    }

    /// Returns `seconds` in samples at this point, if the rate is known.
    pub(crate) fn samples(&self, seconds: f64) -> Result<Option<usize>> {
        let count = self.sample_rate.map(|rate| samples(seconds, rate));
        match count {
            Some(count) if count > MAX_ELEMENTS => Err(Error::config(format!(
                "{seconds} s are {count} samples here, over {MAX_ELEMENTS}; ask for less"
            ))),
            count => Ok(count),
        }
    }

    /// Notes that audio clips have the sample rate `to` from here on.
    pub(crate) fn resample(&mut self, to: u32) {
        let from = self.sample_rate.replace(to);
        let map = |length: usize| -> Option<usize> {
            usize::try_from(resampled_length(length as u64, from?, to)).ok()
        };
        self.lengths =
            Lengths { least: map(self.lengths.least).unwrap_or(1), most: self.lengths.most.and_then(map) };
    }

    /// Notes that audio clips become shorter, by different numbers of samples.
    pub(crate) fn shortens(&mut self) {
        self.lengths.least = 1;
    }

    /// Notes that audio clips become longer or shorter. `longest` returns the longest result of a number of samples.
    pub(crate) fn stretches(&mut self, longest: impl FnOnce(usize) -> Option<usize>) {
        self.lengths = Lengths { least: 1, most: self.lengths.most.and_then(longest) };
    }

    /// Notes that audio clips become `count` samples long if they are longer (`crop`) or shorter (`pad`).
    pub(crate) fn crop_or_pad(&mut self, count: Option<usize>, crop: bool, pad: bool) {
        let Lengths { least, most } = self.lengths;
        self.lengths = match count {
            Some(n) => {
                let least = if crop { least.min(n) } else { least };
                let most = if crop { Some(most.map_or(n, |most| most.min(n))) } else { most };
                let pad = |length: usize| if pad { length.max(n) } else { length };
                Lengths { least: pad(least), most: most.map(pad) }
            }
            // The number of samples depends on the audio clip's rate.
            None => Lengths { least: 1, most: None },
        };
    }

    fn output(&self) -> Result<TensorSpec> {
        let fixed = self.lengths.fixed();
        let Some(extract) = &self.extractor else {
            let output = TensorSpec::new(DType::F32, [fixed.unwrap_or(0)], Layout::T);
            return Ok(if fixed.is_some() { output } else { output.ragged(0) });
        };
        let frames = fixed.map(|samples| extract.count(samples));
        if frames == Some(0) {
            return Err(Error::config(format!(
                "every audio clip is {} samples long, too short for a frame; one takes {}",
                self.lengths.least,
                extract.least_samples()
            )));
        }
        let (length, width) = (frames.unwrap_or(0), extract.width());
        if length.checked_mul(width).is_none_or(|elements| elements > MAX_ELEMENTS) {
            return Err(Error::config(format!(
                "a row would be {length} × {width}, over {MAX_ELEMENTS} elements; crop audio clips or lengthen hop_length"
            )));
        }
        let (shape, layout, axis) = if self.feature_major {
            ([width, length], Layout::Ft, 1)
        } else {
            ([length, width], Layout::Tf, 0)
        };
        let output = TensorSpec::new(DType::F32, shape, layout);
        Ok(if frames.is_some() { output } else { output.ragged(axis) })
    }
}

/// Compiles a chain that starts with `decode_audio`.
pub(super) fn stages(ops: &[Named<'_, dyn AudioOp>], resources: &Resources) -> Result<Stages> {
    let Some((decode, rest)) = ops.split_first().and_then(|(first, rest)| Some((first.op?.decoder()?, rest)))
    else {
        return Err(Error::bug("a chain of audio is compiled from its decode_audio on"));
    };
    decode.check().map_err(at(0, ops[0].name))?;
    let mut compiler = Compiler {
        index: 0,
        resources,
        sample_rate: None,
        lengths: Lengths { least: 1, most: None },
        waves: Vec::new(),
        extractor: None,
        features: Vec::new(),
        feature_major: false,
    };
    for (index, Named { name, op }) in (1..).zip(rest) {
        compiler.index = index;
        let added =
            op.map_or_else(|| Err(Error::config("does not work on audio")), |op| op.compile(&mut compiler));
        added.map_err(at(index, name))?;
    }
    let output = compiler.output()?;
    let Compiler { waves, extractor, features, feature_major, .. } = compiler;
    Ok(Stages { decode: decode.clone(), waves, extractor, features, feature_major, output })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainSpec;

    fn output(text: &str) -> Result<TensorSpec> {
        ChainSpec::parse(text)?.compile().map(|chain| chain.output().clone())
    }

    #[test]
    fn lengths_are_fixed_where_crop_and_pad_meet() {
        let shape = |text: &str| {
            let spec = output(&format!("decode_audio,{text}")).unwrap();
            (spec.shape.clone(), spec.layout, spec.ragged_axis)
        };
        let (t, tf, ft) = (Layout::T, Layout::Tf, Layout::Ft);
        for (text, expected) in [
            ("resample:16000", (vec![0], t, Some(0))),
            ("resample:16000,pad_seconds:1", (vec![0], t, Some(0))),
            ("resample:16000,random_crop_seconds:1", (vec![0], t, Some(0))),
            ("resample:16000,random_crop_seconds:1,pad_seconds:1", (vec![16_000], t, None)),
            ("resample:16000,random_crop_seconds:1,pad_seconds:2", (vec![32_000], t, None)),
            ("resample:16000,random_crop_seconds:2,pad_seconds:1", (vec![0], t, Some(0))),
            ("resample:16000,pad_seconds:1,random_crop_seconds:0.5", (vec![8000], t, None)),
            ("resample:16000,pad_seconds:1:truncate=true", (vec![16_000], t, None)),
            ("resample:16000,pad_seconds:1:truncate=true,resample:24000", (vec![24_000], t, None)),
            ("resample:16000,pad_seconds:1:truncate=true,speed_perturb", (vec![0], t, Some(0))),
            ("resample:16000,pad_seconds:1:truncate=true,trim_silence", (vec![0], t, Some(0))),
            // Audio clips keep their own rates, so lengths differ.
            ("pad_seconds:1:truncate=true", (vec![0], t, Some(0))),
            ("pad_seconds:1:truncate=true,resample:16000", (vec![0], t, Some(0))),
            ("resample:16000,log_mel:80", (vec![0, 80], tf, Some(0))),
            ("resample:16000,log_mel:80,feature_major", (vec![80, 0], ft, Some(1))),
            ("resample:16000,pad_seconds:30:truncate=true,log_mel,feature_major", (vec![80, 3000], ft, None)),
            ("resample:16000,pad_seconds:30:truncate=true,mfcc:13", (vec![2401, 13], tf, None)),
        ] {
            assert_eq!(shape(text), expected, "{text}");
        }
    }
}
