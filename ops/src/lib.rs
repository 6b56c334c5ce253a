//! Bytes to tensors: decoding and augmentation as pure functions of (bytes, parameters, seed), written into
//! memory that the caller provides.
//!
//! ```text
//! a picture's bytes ─▶ decode_image ─▶ random_resized_crop ─▶ horizontal_flip ─▶ out: &mut [u8], a row of a slot
//!                      └── one fused stage: only the crop is decoded ──┘
//! a clip's bytes ─▶ decode_audio ─▶ resample ─▶ add_noise … ─▶ log_mel ─▶ spec_augment ─▶ a row as long as the clip
//!                   └─────── waveform: f32, its rate ────────┘ └─ frames × features ─┘
//! a sentence ─▶ tokenize or tokenize_chars ─▶ a row as long as the sentence has tokens
//! ```
//! A [`ChainSpec`] describes a chain (JSON, the command line, or the constructors below); compiled once into a
//! [`Chain`], it is shared by all threads. Each thread keeps a [`Scratch`] with its codec handles and buffers, so
//! that ops allocate nothing per sample once the buffers have grown. No I/O, no async, no global state: what ops refer
//! to by URI (noise, a tokenizer) is listed by [`ChainSpec::needs`] and comes as [`Resources`].
//!
//! ```
//! # #[cfg(feature = "image")] {
//! use feedstock_ops::{ChainSpec, decode_image, horizontal_flip, random_resized_crop};
//!
//! # fn main() -> feedstock_ops::Result<()> {
//! let chain = ChainSpec::from([decode_image(), random_resized_crop(224), horizontal_flip(0.5)]).compile()?;
//! assert_eq!(chain.output().shape, [224, 224, 3]);
//! let same: ChainSpec = "decode_image,random_resized_crop:224,horizontal_flip".parse()?;
//! assert_eq!(same.compile()?.output(), chain.output());
//! # Ok(())
//! # }
//! # main().unwrap() }
//! ```
//! Rows of speech and text are *ragged*: their lengths differ, unless audio clips are cropped and padded to one.
//!
//! ```
//! # #[cfg(feature = "audio")] {
//! use feedstock_ops::audio::PadSeconds;
//! use feedstock_ops::{ChainSpec, decode_audio, log_mel, resample};
//!
//! # fn main() -> feedstock_ops::Result<()> {
//! let chain = ChainSpec::from([decode_audio(), resample(16_000), log_mel(80)]).compile()?;
//! assert_eq!((chain.output().is_ragged(), chain.output().shape_at(500)), (true, vec![500, 80]));
//! let padded = PadSeconds::new(30.0).truncate(true).into();
//! let chain = ChainSpec::from([decode_audio(), resample(16_000), padded, log_mel(80)]).compile()?;
//! assert_eq!(chain.output().shape, [3000, 80]);
//! # Ok(())
//! # }
//! # main().unwrap() }
//! ```
//!
//! Costs: 224×224×3 u8 is 147 KiB a sample, `cargo bench -p feedstock-ops --bench decode_chain` prints what the fused
//! chain makes compared with bare libjpeg-turbo; 5 s of 80 log-mel bins every 10 ms are 156 KiB, `--bench speech_chain`
//! prints the chain compared with bare symphonia.

/// The version of the ops. Raise it when any op's pixels, samples, tokens or random draws change: a rank and a worker of
/// different versions would put different bytes into one batch, so they refuse each other. Cursors contain it in the
/// hash of their ops, so a run that resumes with different ops logs that.
///
/// Releases without a version count as 1.
pub const OPS_VERSION: u32 = 3;

#[cfg(any(feature = "audio", feature = "image"))]
mod buffer;
mod chain;
#[cfg(any(feature = "audio", feature = "image"))]
mod check;
#[cfg(test)]
#[cfg_attr(
    not(all(feature = "audio", feature = "image")),
    allow(dead_code, reason = "each kind of op uses a part")
)]
mod golden;
mod image_list;
#[cfg(any(feature = "audio", feature = "image", feature = "text"))]
mod limits;
mod number_list;
mod op;
#[cfg_attr(
    not(all(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "each kind of op uses a part")
)]
mod plan;
mod ragged;
#[cfg_attr(
    not(all(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "each kind of op uses a part")
)]
mod resources;
#[cfg_attr(
    not(all(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "each kind of op uses a part")
)]
mod scratch;
mod seed;
mod spec;
mod warning;
#[cfg_attr(
    not(all(feature = "audio", feature = "image", feature = "text")),
    allow(dead_code, reason = "each kind of op uses a part")
)]
mod working;

#[cfg(feature = "audio")]
pub mod audio;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
#[path = "no_faults.rs"]
mod faults;
#[cfg(feature = "image")]
pub mod image;
#[cfg(feature = "text")]
pub mod text;

#[cfg(all(feature = "datafusion", feature = "image"))]
mod sql;

pub use chain::{Chain, ChainSpec};
pub use feedstock_base::{Error, ErrorKind, Result};
pub use image_list::ImageList;
pub use number_list::NumberList;
pub use op::Op;
pub use op::info::OpInfo;
pub use ragged::RaggedRow;
pub use resources::{Need, Noise, Resources};
pub use scratch::{DECODER_MEMORY, Scratch};
pub use seed::{BoxCrop, Generator, Salt, SampleSeed};
pub use spec::{DType, Layout, TensorSpec};
pub use warning::{Warning, Warnings};

#[cfg(feature = "audio")]
pub use op::constructors::audio::*;
#[cfg(feature = "image")]
pub use op::constructors::image::*;
#[cfg(feature = "text")]
pub use op::constructors::text::*;
#[cfg(feature = "audio")]
pub use op::presets::*;

#[cfg(all(feature = "datafusion", feature = "image"))]
pub use sql::sql_functions;
