//! A compiled chain of speech ops, and how one clip runs through it.
//!
//! ```text
//! decode ─▶ waveform, its rate ─▶ resample, trim, crop, pad, speed, volume, noise ─▶ row
//!                                                     └─▶ log_mel or mfcc ─▶ masks, normalisation ─▶ row
//! ```
//! Trims and crops only narrow the range that later ops see. The op that makes features writes into the caller's
//! row, where those after it work in place; `feature_major` turns them on the way into the row. A thread keeps two
//! waveforms, the decoder's and the resampler's, and one clip's features where they are not made in the row:
//! 1.3 MB for 5 s at 48 kHz.

use std::ops::Range;
use std::sync::Arc;

use super::AudioDecoder;
use super::add_noise::AddNoise;
use super::decode::{DecodeAudio, Decoded};
use super::feature_major::transpose;
use super::global_mvn::GlobalMvn;
use super::log_mel::MelSpectrogram;
use super::mfcc::Cepstrum;
use super::pad_seconds::PadSeconds;
use super::parameters::{MAX_ELEMENTS, check_seconds, samples};
use super::random_crop_seconds::RandomCropSeconds;
use super::resample::{Resampler, resampled_length};
use super::spec_augment::SpecAugment;
use super::spectrum::SpectrumScratch;
use super::speed_perturb::SpeedPerturb;
use super::trim_silence::TrimSilence;
use super::utterance_mvn::UtteranceMvn;
use super::volume::Volume;
use crate::buffer::fit;
use crate::chain::Op;
use crate::ragged::RaggedRow;
use crate::resources::{Need, Noise, Resources};
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// A thread's decoder and buffers.
#[derive(Default)]
pub(crate) struct AudioScratch {
    decoder: AudioDecoder,
    resampler: Resampler,
    pub(super) wave: Vec<f32>,
    other: Vec<f32>,
    features: Vec<f32>,
    mels: Vec<f32>,
    spectrum: SpectrumScratch,
    sums: Vec<f64>,
}

impl AudioScratch {
    pub(crate) fn kept_bytes(&self) -> usize {
        let waves: usize =
            [&self.wave, &self.other, &self.features, &self.mels].into_iter().map(Vec::capacity).sum();
        waves * size_of::<f32>()
            + self.sums.capacity() * size_of::<f64>()
            + self.decoder.kept_bytes()
            + self.resampler.kept_bytes()
    }
}

/// Where a chain's result goes.
pub(crate) enum Row<'a> {
    /// Into a row of the output's fixed size; any alignment.
    Fixed(&'a mut [u8]),
    /// Into a row that becomes as long as the clip.
    Ragged(&'a mut RaggedRow),
}

impl Row<'_> {
    /// Lets `fill` write `elements`, in `spare` where the row is not aligned.
    fn write(
        self,
        length: usize,
        elements: usize,
        spare: &mut Vec<f32>,
        fill: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let bytes = match self {
            Self::Ragged(row) => return fill(row.f32s(length, elements)),
            Self::Fixed(bytes) => bytes,
        };
        if bytes.len() != elements * size_of::<f32>() {
            let needed = bytes.len();
            return Err(Error::bug(format!(
                "a row of {needed} bytes cannot hold {elements} elements of f32"
            )));
        }
        // SAFETY: any bits are an f32.
        if let ([], row, []) = unsafe { bytes.align_to_mut::<f32>() } {
            return fill(row);
        }
        fit(spare, elements);
        spare.resize(elements, 0.0);
        fill(&mut spare[..elements])?;
        for (bytes, x) in bytes.chunks_exact_mut(size_of::<f32>()).zip(&*spare) {
            bytes.copy_from_slice(&x.to_ne_bytes());
        }
        Ok(())
    }
}

/// A compiled chain of speech ops.
pub(crate) struct AudioPlan {
    pub(super) decode: DecodeAudio,
    pub(super) waves: Vec<(usize, WaveStep)>,
    pub(super) extract: Option<Extract>,
    features: Vec<(usize, FeatureStep)>,
    pub(super) feature_major: bool,
    output: TensorSpec,
}

/// An op on the waveform; beside it stands its index in the chain, which seeds its generator.
pub(super) enum WaveStep {
    Resample(u32),
    Trim(TrimSilence),
    Crop(RandomCropSeconds),
    Pad(PadSeconds),
    Speed(SpeedPerturb),
    Volume(Volume),
    Noise(AddNoise, Arc<Noise>),
    Mvn(UtteranceMvn),
}

/// The op that makes features.
pub(super) enum Extract {
    LogMel(MelSpectrogram),
    Mfcc(Cepstrum),
}

/// An op on features.
enum FeatureStep {
    SpecAugment(SpecAugment),
    UtteranceMvn(UtteranceMvn),
    GlobalMvn(Vec<(f32, f32)>),
}

impl Extract {
    pub(super) fn mel(&self) -> &MelSpectrogram {
        match self {
            Self::LogMel(mel) => mel,
            Self::Mfcc(cepstrum) => &cepstrum.mel,
        }
    }

    /// Features of a frame.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::LogMel(mel) => mel.n_mels(),
            Self::Mfcc(cepstrum) => cepstrum.n_mfcc(),
        }
    }
}

/// Samples that a clip can have at one place of the chain.
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

/// What compiling has seen so far.
struct Compiler<'a> {
    resources: &'a Resources,
    sample_rate: Option<u32>,
    lengths: Lengths,
    waves: Vec<(usize, WaveStep)>,
    extract: Option<Extract>,
    features: Vec<(usize, FeatureStep)>,
    feature_major: bool,
}

impl Compiler<'_> {
    /// The rate that every clip has here.
    fn rate(&self, why: &str) -> Result<u32> {
        self.sample_rate.ok_or_else(|| {
            Error::config(format!("{why}, and clips have rates of their own; put resample:16000 before it"))
        })
    }

    fn wave(&mut self, index: usize, step: WaveStep) -> Result<()> {
        if self.extract.is_some() {
            return Err(Error::config("works on waveforms; put it before log_mel or mfcc"));
        }
        self.waves.push((index, step));
        Ok(())
    }

    fn feature(&mut self, index: usize, step: impl FnOnce(usize) -> Result<FeatureStep>) -> Result<()> {
        let Some(extract) = &self.extract else {
            return Err(Error::config("works on features; put it after log_mel or mfcc"));
        };
        self.features.push((index, step(extract.width())?));
        Ok(())
    }

    /// `seconds` in samples here, if the rate is known.
    fn samples(&self, seconds: f64) -> Result<Option<usize>> {
        let count = self.sample_rate.map(|rate| samples(seconds, rate));
        match count {
            Some(count) if count > MAX_ELEMENTS => Err(Error::config(format!(
                "{seconds} s are {count} samples here, over {MAX_ELEMENTS}; ask for less"
            ))),
            count => Ok(count),
        }
    }

    fn extract(&mut self, extract: impl FnOnce(u32) -> Result<Extract>) -> Result<()> {
        if self.extract.is_some() {
            return Err(Error::config("the features are made already; log_mel or mfcc comes once"));
        }
        self.extract = Some(extract(self.rate("its filters depend on the sample rate")?)?);
        Ok(())
    }

    fn resample(&mut self, to: u32) {
        let from = self.sample_rate.replace(to);
        let map = |length: usize| -> Option<usize> {
            usize::try_from(resampled_length(length as u64, from?, to)).ok()
        };
        self.lengths =
            Lengths { least: map(self.lengths.least).unwrap_or(1), most: self.lengths.most.and_then(map) };
    }

    fn crop_or_pad(&mut self, count: Option<usize>, crop: bool, pad: bool) {
        let Lengths { least, most } = self.lengths;
        self.lengths = match count {
            Some(n) => {
                let least = if crop { least.min(n) } else { least };
                let most = if crop { Some(most.map_or(n, |most| most.min(n))) } else { most };
                let pad = |length: usize| if pad { length.max(n) } else { length };
                Lengths { least: pad(least), most: most.map(pad) }
            }
            // In samples it depends on the clip's rate.
            None => Lengths { least: 1, most: None },
        };
    }

    fn add(&mut self, index: usize, op: &Op) -> Result<()> {
        match op {
            Op::DecodeAudio(_) => Err(Error::config("the clip is decoded already; decode_audio comes once")),
            Op::Resample(op) => {
                op.check()?;
                self.resample(op.sample_rate);
                self.wave(index, WaveStep::Resample(op.sample_rate))
            }
            Op::TrimSilence(op) => {
                op.check()?;
                self.lengths.least = 1;
                self.wave(index, WaveStep::Trim(op.clone()))
            }
            Op::RandomCropSeconds(op) => {
                check_seconds(op.seconds)?;
                self.crop_or_pad(self.samples(op.seconds)?, true, false);
                self.wave(index, WaveStep::Crop(op.clone()))
            }
            Op::PadSeconds(op) => {
                op.check()?;
                self.crop_or_pad(self.samples(op.seconds)?, op.truncate, true);
                self.wave(index, WaveStep::Pad(op.clone()))
            }
            Op::SpeedPerturb(op) => {
                op.check()?;
                let most = self.lengths.most.and_then(|most| op.longest(most));
                self.lengths = Lengths { least: 1, most };
                self.wave(index, WaveStep::Speed(op.clone()))
            }
            Op::Volume(op) => {
                op.check()?;
                self.wave(index, WaveStep::Volume(op.clone()))
            }
            Op::AddNoise(op) => {
                op.check()?;
                let rate = self.rate("the noise is loaded at the waveform's rate")?;
                let noise = self.resources.noise(&op.noise).ok_or_else(|| {
                    Error::config(format!("the noise {} is not loaded; compile with its resources", op.noise))
                })?;
                op.check_noise(noise, rate)?;
                self.wave(index, WaveStep::Noise(op.clone(), Arc::clone(noise)))
            }
            Op::LogMel(op) => self.extract(|rate| Ok(Extract::LogMel(MelSpectrogram::new(op, rate)?))),
            Op::Mfcc(op) => self.extract(|rate| Ok(Extract::Mfcc(Cepstrum::new(op, rate)?))),
            Op::UtteranceMvn(op) => {
                op.check()?;
                if self.extract.is_none() {
                    return self.wave(index, WaveStep::Mvn(op.clone()));
                }
                self.feature(index, |_| Ok(FeatureStep::UtteranceMvn(op.clone())))
            }
            Op::GlobalMvn(op) => self.feature(index, |width| Ok(FeatureStep::GlobalMvn(op.scales(width)?))),
            Op::SpecAugment(op) => {
                op.check()?;
                self.feature(index, |_| Ok(FeatureStep::SpecAugment(op.clone())))
            }
            Op::FeatureMajor(_) => {
                if self.extract.is_none() {
                    return Err(Error::config("works on features; put it after log_mel or mfcc"));
                }
                self.feature_major = true;
                Ok(())
            }
            #[allow(unreachable_patterns, reason = "without other features there are no other ops")]
            _ => Err(Error::config("does not work on speech")),
        }
    }

    fn output(&self) -> Result<TensorSpec> {
        let fixed = self.lengths.fixed();
        let Some(extract) = &self.extract else {
            let output = TensorSpec::new(DType::F32, [fixed.unwrap_or(0)], Layout::T);
            return Ok(if fixed.is_some() { output } else { output.ragged(0) });
        };
        let frames = fixed.map(|samples| extract.mel().count(samples));
        if frames == Some(0) {
            return Err(Error::config(format!(
                "every clip is {} samples long, too short for a frame; one takes {}",
                self.lengths.least,
                extract.mel().least_samples()
            )));
        }
        let (length, width) = (frames.unwrap_or(0), extract.width());
        if length.checked_mul(width).is_none_or(|elements| elements > MAX_ELEMENTS) {
            return Err(Error::config(format!(
                "a row would be {length} × {width}, over {MAX_ELEMENTS} elements; crop clips or lengthen hop_length"
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

/// What the ops of a speech chain refer to.
pub(crate) fn needs(ops: &[Op]) -> Vec<Need> {
    let mut sample_rate = None;
    let mut needs = Vec::new();
    for op in ops {
        match (op, sample_rate) {
            (Op::Resample(op), _) => sample_rate = Some(op.sample_rate),
            // Without a rate the chain does not compile, and says why.
            (Op::AddNoise(op), Some(sample_rate)) => {
                needs.push(Need::Noise { uri: op.noise.clone(), sample_rate });
            }
            _ => {}
        }
    }
    needs
}

impl AudioPlan {
    /// `ops` starts with `decode_audio`.
    pub(crate) fn compile(ops: &[Op], resources: &Resources) -> Result<Self> {
        let at = |index: usize, op: &Op| {
            let place = format!("op {index} ({})", op.name());
            move |error: Error| error.context(place)
        };
        let Some((Op::DecodeAudio(decode), rest)) = ops.split_first() else {
            return Err(Error::bug("a speech chain is compiled from its decode_audio on"));
        };
        decode.check().map_err(at(0, &ops[0]))?;
        let mut compiler = Compiler {
            resources,
            sample_rate: None,
            lengths: Lengths { least: 1, most: None },
            waves: Vec::new(),
            extract: None,
            features: Vec::new(),
            feature_major: false,
        };
        for (index, op) in (1..).zip(rest) {
            compiler.add(index, op).map_err(at(index, op))?;
        }
        let output = compiler.output()?;
        let Compiler { waves, extract, features, feature_major, .. } = compiler;
        Ok(Self { decode: decode.clone(), waves, extract, features, feature_major, output })
    }

    pub(crate) fn output(&self) -> &TensorSpec {
        &self.output
    }

    pub(crate) fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: Row<'_>,
    ) -> Result<Warnings> {
        let to = match self.waves.first() {
            Some((_, WaveStep::Resample(to))) => Some(*to),
            _ => None,
        };
        let op = self.within_memory(encoded, scratch)?;
        let scratch = &mut scratch.audio;
        let Decoded { sample_rate, mut halved, warnings } =
            scratch.decoder.decode(&op, encoded, to, &mut scratch.wave)?;
        if scratch.wave.is_empty() || sample_rate == 0 {
            return Err(Error::bad_sample("decode_audio: the clip has no samples"));
        }
        let decoded_rate = if halved.is_some() { sample_rate / 2 } else { sample_rate };
        let mut clip = Clip { sample_rate: decoded_rate, view: 0..scratch.wave.len(), scratch };
        for (index, step) in &self.waves {
            clip.step(step, *index, seed)?;
            if let (WaveStep::Resample(to), Some(samples)) = (step, halved.take()) {
                // Of an odd number of samples, half are half a sample more.
                clip.shorten(resampled_length(samples, sample_rate, *to));
            }
        }
        let Clip { view, scratch, .. } = clip;
        let AudioScratch { wave, other, features, mels, spectrum, sums, .. } = scratch;
        let wave = &wave[view];
        let Some(extract) = &self.extract else {
            row.write(wave.len(), wave.len(), other, |out| {
                out.copy_from_slice(wave);
                Ok(())
            })?;
            return Ok(warnings);
        };
        let (frames, width) = (frames(extract, wave.len())?, extract.width());
        let mut fill = |out: &mut [f32]| {
            match extract {
                Extract::LogMel(mel) => mel.run(wave, out, spectrum)?,
                Extract::Mfcc(cepstrum) => cepstrum.run(wave, out, mels, spectrum)?,
            }
            for (index, step) in &self.features {
                match step {
                    FeatureStep::SpecAugment(op) => op.run(out, width, &mut seed.op(*index)),
                    FeatureStep::UtteranceMvn(op) => op.run_features(out, width, sums),
                    FeatureStep::GlobalMvn(scales) => GlobalMvn::run(scales, out),
                }
            }
            Ok(())
        };
        if !self.feature_major {
            row.write(frames, frames * width, other, fill)?;
            return Ok(warnings);
        }
        fit(features, frames * width);
        features.resize(frames * width, 0.0);
        fill(features)?;
        row.write(frames, frames * width, other, |out| {
            transpose(features, width, out);
            Ok(())
        })?;
        Ok(warnings)
    }
}

/// Frames of a clip of `samples`, at least one.
fn frames(extract: &Extract, samples: usize) -> Result<usize> {
    let frames = extract.mel().count(samples);
    if frames == 0 {
        return Err(Error::bad_sample(format!(
            "the clip is {samples} samples long where features are made of it, too short for a frame: one takes {}; \
             drop short clips with a filter on duration, or lengthen them with pad_seconds",
            extract.mel().least_samples()
        )));
    }
    if frames.checked_mul(extract.width()).is_none_or(|elements| elements > MAX_ELEMENTS) {
        return Err(Error::bad_sample(format!(
            "the clip makes {frames} frames of {} features, over {MAX_ELEMENTS} elements; crop it or lengthen \
             hop_length",
            extract.width()
        )));
    }
    Ok(frames)
}

/// One clip on its way: `scratch.wave` within `view`.
struct Clip<'a> {
    scratch: &'a mut AudioScratch,
    sample_rate: u32,
    view: Range<usize>,
}

impl Clip<'_> {
    fn step(&mut self, step: &WaveStep, index: usize, seed: SampleSeed) -> Result<()> {
        let rate = self.sample_rate;
        match step {
            WaveStep::Resample(to) => {
                self.sample_rate = *to;
                self.resample(rate, *to).map_err(|error| error.context("resample"))
            }
            WaveStep::Speed(op) => {
                let (from, to) = op.draw(&mut seed.op(index));
                self.resample(from, to).map_err(|error| error.context("speed_perturb"))
            }
            WaveStep::Trim(op) => {
                let AudioScratch { wave, sums, .. } = &mut *self.scratch;
                let kept = op.keep(&wave[self.view.clone()], rate, sums);
                self.narrow(kept);
                Ok(())
            }
            WaveStep::Crop(op) => {
                self.narrow(op.keep(self.view.len(), rate, &mut seed.op(index)));
                Ok(())
            }
            WaveStep::Pad(op) => self.pad(op),
            WaveStep::Volume(op) => {
                op.run(self.wave(), &mut seed.op(index));
                Ok(())
            }
            WaveStep::Noise(op, noise) => {
                op.run(self.wave(), noise, &mut seed.op(index));
                Ok(())
            }
            WaveStep::Mvn(op) => {
                op.run_wave(self.wave());
                Ok(())
            }
        }
    }

    /// Keeps at most the first `samples`.
    fn shorten(&mut self, samples: u128) {
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        self.narrow(0..self.view.len().min(samples));
    }

    fn wave(&mut self) -> &mut [f32] {
        &mut self.scratch.wave[self.view.clone()]
    }

    /// Keeps a part of what is left.
    fn narrow(&mut self, kept: Range<usize>) {
        self.view = self.view.start + kept.start..self.view.start + kept.end;
    }

    fn resample(&mut self, from: u32, to: u32) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let most = MAX_ELEMENTS as u128 * u128::from(from) / u128::from(to);
        if self.view.len() as u128 > most {
            return Err(Error::bad_sample(format!(
                "{} samples from {from} to {to} Hz are over {MAX_ELEMENTS} samples",
                self.view.len()
            )));
        }
        let AudioScratch { resampler, wave, other, .. } = &mut *self.scratch;
        resampler.run(&wave[self.view.clone()], from, to, other)?;
        std::mem::swap(wave, other);
        self.view = 0..self.scratch.wave.len();
        Ok(())
    }

    fn pad(&mut self, op: &PadSeconds) -> Result<()> {
        let length = samples(op.seconds, self.sample_rate);
        if length > MAX_ELEMENTS {
            let rate = self.sample_rate;
            return Err(Error::bad_sample(format!(
                "pad_seconds: {} s at {rate} Hz are over {MAX_ELEMENTS} samples; resample first",
                op.seconds
            )));
        }
        let wave = &mut self.scratch.wave;
        wave.truncate(self.view.end);
        if self.view.start > 0 {
            wave.drain(..self.view.start);
        }
        op.run(wave, self.sample_rate);
        self.view = 0..wave.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainSpec;

    fn output(text: &str) -> Result<TensorSpec> {
        let ops = ChainSpec::parse(text).unwrap().0;
        AudioPlan::compile(&ops, &Resources::new()).map(|plan| plan.output)
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
            // The clip's own rate: lengths differ.
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
