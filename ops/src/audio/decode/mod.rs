//! `decode_audio`: decodes MP3, FLAC, Ogg Vorbis, WAV and AAC into one channel of f32.
//!
//! ```text
//! bytes ─▶ sniff by magic bytes ─▶ header and limits ─▶ frames ─▶ mean of the channels, trimmed ─▶ out: Vec<f32>
//!          (ID3 tags skipped)       (before any allocation)   └─ a lost frame is silence of its length
//! ```
//! symphonia decodes the frames. This module finds their positions for MP3, WAV and the edit lists of MP4, and symphonia
//! for the rest. Intact MP3s that are resampled to less than half their rate are decoded here, at half of it
//! (`layer3/`).
//!
//! - **Gapless as ffmpeg**: the encoder's delay and padding are cut off where LAME or libavformat wrote them (MP3), by
//!   the last page's granule (Ogg), by the edit list (M4A). An MP3 without such a tag keeps the decoder's delay, in
//!   ffmpeg as here.
//! - **Alignment is kept**: damaged or overwritten frames become silence of the same length, while ffmpeg and mpg123 close
//!   the gap. Their share of the audio clip is bounded by `max_lost_share`. A missing end counts as lost.
//! - **Ends that the container cannot prove**: an MP3 without a count of its frames (CBR without a Xing, Info or VBRI
//!   tag), ADTS, FLAC without a count of its samples, or Ogg without the end-of-stream flag may have lost its end
//!   without a trace. The audio clip then ends with its last whole frame or page, as in libsndfile and ffmpeg.
//! - **Bytes**: equal audio clips give equal samples in every thread and at every time. Lossless formats are bit-identical
//!   on all machines. For lossy ones, symphonia's tables and transforms may differ in their last bits.
//! - **Not supported**: HE-AAC (its lower half is decoded if the header does not state it), the delay that only iTunes' tag
//!   states, free-format MP3, layers I and II, more than two channels of Opus.

pub(super) mod adts;
mod decoded;
mod decoder;
mod faac;
mod flac;
pub(super) mod flac_format;
mod layer3;
mod mono;
mod mp3;
pub(super) mod mp4;
mod mp4_boxes;
mod mp4_tables;
pub(super) mod mpeg;
pub(super) mod ogg;
pub(super) mod ogg_pages;
mod options;
#[cfg(not(feature = "opus"))]
#[path = "no_opus.rs"]
mod opus;
#[cfg(feature = "opus")]
mod opus;
pub(super) mod sniff;
mod stream;
mod vorbis;
pub(super) mod wav;

pub(crate) use decoded::Decoded;
pub(crate) use decoder::AudioDecoder;

pub use decoder::{decode_channels, decode_mono, decode_mono_warned};
pub use options::DecodeAudio;
