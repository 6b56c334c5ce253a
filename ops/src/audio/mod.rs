//! Speech: decoding, waveforms and features.
//!
//! A clip between ops is one channel of f32 in −1 … 1 and its sample rate, until `log_mel` or `mfcc` makes frames of
//! features of it (`plan.rs`). Every op has a file, named like it, with its description (what [`Op`](crate::Op)
//! serialises), its constructor and its kernel.

mod add_noise;
mod decode;
mod feature_major;
mod global_mvn;
mod header;
mod log_mel;
mod logarithm;
mod mel;
mod mfcc;
mod pad_seconds;
mod parameters;
mod plan;
mod random_crop_seconds;
mod resample;
mod spec_augment;
mod spectrum;
mod speed_perturb;
mod sums;
mod trim_silence;
mod utterance_mvn;
mod volume;
mod window;
mod working;

pub(crate) use {
    decode::AudioDecoder,
    plan::{AudioPlan, AudioScratch, Row, needs},
};

pub use add_noise::{AddNoise, add_noise};
pub use decode::{DecodeAudio, decode_audio, decode_channels, decode_mono, decode_mono_warned};
pub use feature_major::{FeatureMajor, feature_major};
pub use global_mvn::{GlobalMvn, global_mvn};
pub use header::{AUDIO_HEADER_VERSION, AudioFormat, AudioHeader, leading_tag_bytes, read_audio_header};
pub use log_mel::{FloorBy, Log, LogMel, log_mel, log_mel_librosa, log_mel_torchaudio, log_mel_whisper};
pub use mel::{MelNorm, MelScale};
pub use mfcc::{Mfcc, mfcc};
pub use pad_seconds::{PadSeconds, pad_seconds};
pub use random_crop_seconds::{RandomCropSeconds, random_crop_seconds};
pub use resample::{Resample, resample};
pub use spec_augment::{MaskValue, Mean, SpecAugment, spec_augment};
pub use spectrum::PadMode;
pub use speed_perturb::{SpeedPerturb, speed_perturb};
pub use trim_silence::{TrimSilence, trim_silence};
pub use utterance_mvn::{UtteranceMvn, utterance_mvn};
pub use volume::{Volume, volume};
pub use window::Window;
