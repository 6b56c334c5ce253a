//! The ops: one file for each, and one table.
//!
//! **To add an op**: write its file, with a struct of its parameters, its check and what it does (`ImageOp`, `AudioOp` or
//! `TextOp`); then, here, declare the file and add a line to the table. The enum [`Op`], the op's name, constructor, JSON
//! and schema, its form on the command line and the list of `feedstock ops` follow from that line.
//!
//! ```text
//! this table ─▶ op/{image,audio,text}/*.rs ─▶ compile.rs and step.rs of image, audio, text ─▶ codecs and kernels
//! ```

#[cfg_attr(
    not(any(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "without features there are no ops")
)]
pub(crate) mod info;
#[cfg(feature = "audio")]
pub(crate) mod presets;
#[cfg_attr(
    not(any(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "without features there are no ops")
)]
mod schema;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Plan;
use crate::resources::{Need, Needs, Resources};
use feedstock_base::{Error, Result};
use info::OpInfo;

/// The ops that take a sample's bytes.
const STARTS: &str = "decode_image, decode_audio, tokenize or tokenize_chars";

/// Ops on images.
#[cfg(feature = "image")]
pub(crate) mod image {
    mod adjust_sharpness;
    mod affine;
    mod aug_mix;
    mod auto_augment;
    mod autocontrast;
    mod center_crop;
    mod color_jitter;
    mod decode_image;
    mod equalize;
    mod gaussian_blur;
    mod grayscale;
    mod horizontal_flip;
    mod invert;
    mod normalize;
    mod pad;
    mod pad_to;
    mod perspective;
    mod posterize;
    mod rand_augment;
    mod random_apply;
    mod random_choice;
    mod random_crop;
    mod random_erasing;
    mod random_iou_crop;
    mod random_resized_crop;
    mod random_zoom_out;
    mod resize;
    mod rotate;
    mod scale_jitter;
    mod solarize;
    mod timm_rand_augment;
    mod to_chw;
    mod to_f32;
    mod trivial_augment;
    mod vertical_flip;

    pub(crate) use crate::image::DecodeImage;
    pub use {
        adjust_sharpness::*, affine::*, aug_mix::*, auto_augment::*, autocontrast::*, center_crop::*,
        color_jitter::*, equalize::*, gaussian_blur::*, grayscale::*, horizontal_flip::*, invert::*,
        normalize::*, pad::*, pad_to::*, perspective::*, posterize::*, rand_augment::*, random_apply::*,
        random_choice::*, random_crop::*, random_erasing::*, random_iou_crop::*, random_resized_crop::*,
        random_zoom_out::*, resize::*, rotate::*, scale_jitter::*, solarize::*, timm_rand_augment::*,
        to_chw::*, to_f32::*, trivial_augment::*, vertical_flip::*,
    };
}

/// Ops on audio.
#[cfg(feature = "audio")]
pub(crate) mod audio {
    mod add_noise;
    mod allpass_biquad;
    mod band_biquad;
    mod bandpass_biquad;
    mod bandreject_biquad;
    mod bass_biquad;
    mod decode_audio;
    mod equalizer_biquad;
    mod feature_major;
    mod g711;
    mod global_mvn;
    mod highpass_biquad;
    mod log_mel;
    mod lowpass_biquad;
    mod mfcc;
    mod pad_seconds;
    mod random_crop_seconds;
    mod resample;
    mod reverb;
    mod spec_augment;
    mod speed_perturb;
    mod time_shift;
    mod treble_biquad;
    mod trim_silence;
    mod utterance_mvn;
    mod volume;

    pub(crate) use crate::audio::DecodeAudio;
    pub use {
        add_noise::*, allpass_biquad::*, band_biquad::*, bandpass_biquad::*, bandreject_biquad::*,
        bass_biquad::*, equalizer_biquad::*, feature_major::*, g711::*, global_mvn::*, highpass_biquad::*,
        log_mel::*, lowpass_biquad::*, mfcc::*, pad_seconds::*, random_crop_seconds::*, resample::*,
        reverb::*, spec_augment::*, speed_perturb::*, time_shift::*, treble_biquad::*, trim_silence::*,
        utterance_mvn::*, volume::*,
    };
}

/// Ops on text.
#[cfg(feature = "text")]
pub(crate) mod text {
    mod tokenize;
    mod tokenize_chars;

    pub use {tokenize::*, tokenize_chars::*};
}

/// Defines [`Op`] and the description of each op. A line is `Type::constructor = name(parameters)`: the constructor's
/// parameters may be given without a name on the command line, in that order.
macro_rules! ops {
    ($(
        #[cfg(feature = $feature:literal)]
        $group:ident: $trait:path {
            $(
                #[doc = $summary:literal]
                $op:ident::$new:ident = $name:ident($($parameter:ident: $type:ty),*);
            )+
        }
    )+) => {
        /// The description of one op, as `{"op":"random_resized_crop","size":[224,224]}` in JSON.
        ///
        /// Parameters left out take their defaults; unknown ones are errors.
        #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
        #[serde(tag = "op", rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Op {
            $($(
                #[doc = $summary]
                #[cfg(feature = $feature)]
                $op($group::$op),
            )+)+
        }

        impl Op {
            /// Returns the op's name, as in JSON and on the command line.
            ///
            /// ```
            /// use feedstock_ops::ChainSpec;
            ///
            /// let spec = ChainSpec::parse("decode_image,center_crop:224,normalize").unwrap();
            /// let names: Vec<&str> = spec.0.iter().map(|op| op.name()).collect();
            /// assert_eq!(names, ["decode_image", "center_crop", "normalize"]);
            /// ```
            pub fn name(&self) -> &'static str {
                match *self {
                    $($(#[cfg(feature = $feature)] Self::$op(_) => stringify!($name),)+)+
                }
            }

            /// Returns the ops of this build.
            pub fn all() -> Vec<OpInfo> {
                let all: &[OpInfo] = &[$($(
                    #[cfg(feature = $feature)]
                    OpInfo::of::<$group::$op>(stringify!($name), $summary, &[$(stringify!($parameter)),*]),
                )+)+];
                all.to_vec()
            }

            /// Returns a JSON schema of an op's description.
            ///
            /// It states the names of all parameters, those that are required, and the defaults of the others where a
            /// description holds them. `positional` lists the parameters of the op's constructor, in order.
            /// [`ChainSpec::compile`](crate::ChainSpec::compile) checks types and bounds.
            ///
            /// ```
            /// let schemas = feedstock_ops::Op::json_schema();
            /// let ops = schemas["oneOf"].as_array().map_or(0, Vec::len);
            /// assert_eq!(ops, feedstock_ops::Op::all().len());
            /// ```
            pub fn json_schema() -> Value {
                let all: &[Value] = &[$($(
                    #[cfg(feature = $feature)]
                    schema::of::<$group::$op>(stringify!($name), $summary, &[$(stringify!($parameter)),*]),
                )+)+];
                schema::one_of(all)
            }

            /// True if a chain can start with the op.
            fn takes_bytes(&self) -> bool {
                match *self {
                    $($(
                        #[cfg(feature = $feature)]
                        Self::$op(ref op) => <$group::$op as $trait>::takes_bytes(op),
                    )+)+
                }
            }

            fn refer(&self, _needs: &mut Needs) {
                match *self {
                    $($(
                        #[cfg(feature = $feature)]
                        Self::$op(ref op) => <$group::$op as $trait>::refer(op, _needs),
                    )+)+
                }
            }

            $(
                /// Returns the op, if it is of this group.
                #[cfg(feature = $feature)]
                fn $group(&self) -> Option<&(dyn $trait + 'static)> {
                    match self {
                        $(Self::$op(op) => Some(op),)+
                        #[allow(unreachable_patterns, reason = "without other features there are no other ops")]
                        _ => None,
                    }
                }
            )+
        }

        $($(
            #[cfg(feature = $feature)]
            impl From<$group::$op> for Op {
                fn from(op: $group::$op) -> Self {
                    Self::$op(op)
                }
            }
        )+)+

        /// Compiles a chain by the group of its first op.
        fn compile_by_group(_ops: &[Op], _resources: &Resources) -> Option<Result<Arc<dyn Plan>>> {
            $(
                #[cfg(feature = $feature)]
                if _ops.first().is_some_and(|op| op.$group().is_some()) {
                    let named: Vec<_> =
                        _ops.iter().map(|op| crate::plan::Named { name: op.name(), op: op.$group() }).collect();
                    return Some(crate::$group::compile(&named, _resources));
                }
            )+
            None
        }

        /// Functions that make ops, with the same names.
        pub(crate) mod constructors {
            $(
                #[cfg(feature = $feature)]
                pub(crate) mod $group {
                    use crate::$group::*;
                    use crate::op::Op;
                    $(
                        #[doc = $summary]
                        #[doc = concat!("\n\nSee [`", stringify!($op), "`].")]
                        pub fn $name($($parameter: $type),*) -> Op {
                            $op::$new($($parameter),*).into()
                        }
                    )+
                }
            )+
        }
    };
}

ops! {
    #[cfg(feature = "image")]
    image: crate::image::compile::ImageOp {
        /// Decode a JPEG, PNG or WebP into RGB.
        DecodeImage::new = decode_image();
        /// Resize to a shorter side or an exact size.
        Resize::new = resize(size: impl Into<ResizeTo>);
        /// Cut out the middle.
        CenterCrop::new = center_crop(size: impl Into<Size>);
        /// Cut out a random place.
        RandomCrop::new = random_crop(size: impl Into<Size>);
        /// Cut out a random area and aspect ratio and resize it.
        RandomResizedCrop::new = random_resized_crop(size: impl Into<Size>);
        /// Mirror left and right.
        HorizontalFlip::new = horizontal_flip(probability: f64);
        /// Exchange top and bottom.
        VerticalFlip::new = vertical_flip(probability: f64);
        /// Add pixels on each side.
        Pad::new = pad(padding: impl Into<Padding>);
        /// Add pixels on the right and below up to a size.
        PadTo::new = pad_to(size: impl Into<Size>);
        /// Put onto a larger canvas at random (Liu et al. 2016).
        RandomZoomOut::new = random_zoom_out(probability: f64);
        /// Cut out a random part that overlaps a box (Liu et al. 2016).
        RandomIouCrop::new = random_iou_crop();
        /// Resize by a random factor (Ghiasi et al. 2021).
        ScaleJitter::new = scale_jitter(size: impl Into<Size>);
        /// Turn by a random angle.
        Rotate::new = rotate(degrees: [f64; 2]);
        /// Turn, move, scale and shear at random.
        Affine::new = affine(degrees: [f64; 2]);
        /// Show from a random side.
        Perspective::new = perspective(distortion_scale: f64, probability: f64);
        /// Random brightness, contrast, saturation and hue.
        ColorJitter::of = color_jitter(brightness: f64, contrast: f64, saturation: f64, hue: f64);
        /// Remove the colors at random.
        Grayscale::new = grayscale(probability: f64);
        /// Blur by a Gaussian of random width.
        GaussianBlur::new = gaussian_blur(kernel_size: u32, sigma: [f64; 2]);
        /// Smooth or sharpen at random.
        AdjustSharpness::new = adjust_sharpness(sharpness_factor: f64, probability: f64);
        /// Invert bright values at random.
        Solarize::new = solarize(threshold: f64, probability: f64);
        /// Keep the highest bits of values at random.
        Posterize::new = posterize(bits: u32, probability: f64);
        /// Flatten the histograms at random.
        Equalize::new = equalize(probability: f64);
        /// Stretch each channel to all values at random.
        Autocontrast::new = autocontrast(probability: f64);
        /// Invert the colors at random.
        Invert::new = invert(probability: f64);
        /// AutoAugment (Cubuk et al. 2019).
        AutoAugment::new = auto_augment(policy: AutoAugmentPolicy);
        /// RandAugment (Cubuk et al. 2020).
        RandAugment::new = rand_augment(num_ops: u32, magnitude: u32);
        /// RandAugment of timm.
        TimmRandAugment::new = timm_rand_augment(magnitude: f64);
        /// TrivialAugment Wide (Müller, Hutter 2021).
        TrivialAugment::new = trivial_augment();
        /// AugMix (Hendrycks et al. 2020).
        AugMix::new = aug_mix(severity: u32);
        /// Run several ops at random.
        RandomApply::new = random_apply(ops: impl Into<Vec<Op>>, probability: f64);
        /// Run one of several ops.
        RandomChoice::new = random_choice(ops: impl Into<Vec<Op>>);
        /// Overwrite a random rectangle (Zhong et al. 2017).
        RandomErasing::new = random_erasing(probability: f64);
        /// To f32, minus mean, over standard deviation.
        Normalize::new = normalize(mean: [f32; 3], std: [f32; 3]);
        /// To f32 in 0 … 1.
        ToF32::new = to_f32();
        /// Channels first.
        ToChw::new = to_chw();
    }

    #[cfg(feature = "audio")]
    audio: crate::audio::compile::AudioOp {
        /// Decode an MP3, FLAC, Ogg Vorbis, WAV or AAC audio clip into one channel.
        DecodeAudio::new = decode_audio();
        /// Another sample rate.
        Resample::new = resample(sample_rate: u32);
        /// Cut off quiet beginnings and ends.
        TrimSilence::new = trim_silence(top_db: f64);
        /// Cut out a random stretch.
        RandomCropSeconds::new = random_crop_seconds(seconds: f64);
        /// Make shorter audio clips longer.
        PadSeconds::new = pad_seconds(seconds: f64);
        /// Play faster or slower (Ko et al. 2015).
        SpeedPerturb::new = speed_perturb(factors: impl Into<Vec<f64>>);
        /// A random gain.
        Volume::new = volume(gain_db: [f64; 2]);
        /// Move in time at random.
        TimeShift::new = time_shift(shift: [f64; 2]);
        /// Mix in noise at a signal-to-noise ratio.
        AddNoise::new = add_noise(noise: impl Into<String>, snr_db: [f64; 2]);
        /// Convolve with the impulse response of a room.
        Reverb::new = reverb(responses: impl Into<String>, probability: f64);
        /// Keep frequencies below a cutoff.
        LowpassBiquad::new = lowpass_biquad(cutoff_freq: [f64; 2]);
        /// Keep frequencies above a cutoff.
        HighpassBiquad::new = highpass_biquad(cutoff_freq: [f64; 2]);
        /// Keep frequencies around a center.
        BandpassBiquad::new = bandpass_biquad(central_freq: [f64; 2]);
        /// Remove frequencies around a center.
        BandrejectBiquad::new = bandreject_biquad(central_freq: [f64; 2]);
        /// Shift phases around a center.
        AllpassBiquad::new = allpass_biquad(central_freq: [f64; 2]);
        /// Keep frequencies around a center, with a gentle slope.
        BandBiquad::new = band_biquad(central_freq: [f64; 2]);
        /// Amplify or attenuate frequencies around a center.
        EqualizerBiquad::new = equalizer_biquad(center_freq: [f64; 2], gain: [f64; 2]);
        /// Amplify or attenuate low frequencies.
        BassBiquad::new = bass_biquad(gain: [f64; 2]);
        /// Amplify or attenuate high frequencies.
        TrebleBiquad::new = treble_biquad(gain: [f64; 2]);
        /// Quantize as a telephone call (ITU-T G.711).
        G711::new = g711(law: Law);
        /// Log-mel spectrograms.
        LogMel::new = log_mel(n_mels: usize);
        /// Mel-frequency cepstral coefficients.
        Mfcc::new = mfcc(n_mfcc: usize);
        /// Mask stretches of frequency and time (Park et al. 2019).
        SpecAugment::new = spec_augment();
        /// Each clip to mean 0 and variance 1.
        UtteranceMvn::new = utterance_mvn();
        /// Features to the statistics of a data set.
        GlobalMvn::new = global_mvn(mean: impl Into<Vec<f64>>, std: impl Into<Vec<f64>>);
        /// Features first.
        FeatureMajor::new = feature_major();
    }

    #[cfg(feature = "text")]
    text: crate::text::step::TextOp {
        /// Sub-word tokens by a `tokenizer.json`.
        Tokenize::new = tokenize(tokenizer: impl Into<String>);
        /// One token a character.
        TokenizeChars::new = tokenize_chars(vocabulary: impl Into<Vocabulary>);
    }
}

/// Compiles a chain.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(ops: &[Op], resources: &Resources) -> Result<Arc<dyn Plan>> {
    let Some(first) = ops.first() else {
        return Err(Error::config(format!("the chain has no ops; start it with {STARTS}")));
    };
    if !first.takes_bytes() {
        return Err(Error::config(format!(
            "op 0 ({}) cannot come first: the input is a file's or a cell's bytes; start the chain with {STARTS}",
            first.name()
        )));
    }
    compile_by_group(ops, resources).unwrap_or_else(|| Err(Error::bug("an op is of no group")))
}

/// Compiles the ops after an image's decoder for boxes or keypoints.
///
/// # Errors
/// As [`compile`].
#[cfg(feature = "image")]
pub(crate) fn compile_annotation(ops: &[Op], annotation: &crate::image::Annotation) -> Result<Arc<dyn Plan>> {
    let named: Vec<_> = ops.iter().map(|op| crate::plan::Named { name: op.name(), op: op.image() }).collect();
    crate::image::compile_annotation(annotation, &named)
}

/// Compiles one view of an image, or `count` that differ in their draws. `ops` start with the image's decoder.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
#[cfg(feature = "image")]
pub(crate) fn compile_view(name: &str, ops: &[Op], count: Option<u32>) -> Result<crate::image::CompiledView> {
    let decodes = |op: &&Op| op.takes_bytes() && op.image().is_some();
    if ops.first().filter(decodes).is_none() {
        let first = ops.first().map_or("nothing", Op::name);
        return Err(Error::config(format!(
            "views are of an image; start with decode_image, not with {first}"
        )));
    }
    let named: Vec<_> = ops.iter().map(|op| crate::plan::Named { name: op.name(), op: op.image() }).collect();
    crate::image::CompiledView::new(name, &named, count)
}

/// Returns what the ops refer to, each once.
pub(crate) fn needs(ops: &[Op]) -> Vec<Need> {
    let mut needs = Needs::default();
    ops.iter().for_each(|op| op.refer(&mut needs));
    needs.list()
}
