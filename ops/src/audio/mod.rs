//! Audio: decoding, waveforms and features.
//!
//! An audio clip between ops is one channel of f32 in −1 … 1 and its sample rate, until `log_mel` or `mfcc` makes
//! frames of features from it (`plan.rs`). The ops are in `op/audio/`, one file each.
//!
//! ```text
//! op/audio/*.rs ── compile.rs: AudioOp ──▶ step.rs: kinds of steps ──▶ stages.rs ──▶ plan.rs ─▶ row
//! ```

pub(crate) mod biquad;
pub(crate) mod clip;
pub(crate) mod compile;
pub(crate) mod convolution;
pub(crate) mod decode;
mod format;
mod header;
mod id3;
pub(crate) mod limits;
pub(crate) mod logarithm;
mod magic;
pub(crate) mod mel;
pub(crate) mod mel_spectrogram;
pub(crate) mod parameters;
mod plan;
pub(crate) mod resample;
mod row;
mod scratch;
pub(crate) mod spectrum;
mod stages;
pub(crate) mod step;
pub(crate) mod sums;
mod transpose;
mod unsupported;
pub(crate) mod wave_memory;
pub(crate) mod window;
mod working;

pub(crate) use plan::compile;

pub use crate::op::audio::*;
pub use crate::op::constructors::audio::*;
pub use crate::op::presets::*;
pub use decode::{DecodeAudio, decode_channels, decode_mono, decode_mono_warned};
pub use format::AudioFormat;
pub use header::{AUDIO_HEADER_VERSION, AudioHeader, leading_tag_bytes, read_audio_header};
pub use mel::{MelNorm, MelScale};
pub use spectrum::PadMode;
pub use unsupported::unsupported_codec;
pub use window::Window;
