//! Tests of the public API of `feedstock-ops`.
//!
//! They are one program, since several would each compile and link the same libraries again. Tests that count allocations are
//! separate programs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests fail by panicking"
)]

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../support/speech.rs"]
mod speech;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "audio")]
mod audio_chain;
#[cfg(feature = "audio")]
mod audio_decode;
#[cfg(feature = "audio")]
mod bad_audio;
#[cfg(feature = "image")]
mod bad_pictures;
#[cfg(feature = "image")]
mod chain;
#[cfg(feature = "audio")]
mod checked;
#[cfg(feature = "image")]
mod damaged_images;
#[cfg(feature = "image")]
mod deferred;
#[cfg(all(feature = "audio", feature = "image"))]
mod encoder_delay;
#[cfg(feature = "image")]
mod golden;
#[cfg(feature = "audio")]
mod golden_audio;
#[cfg(all(feature = "audio", feature = "image"))]
mod hostile_samples;
#[cfg(all(feature = "audio", feature = "image"))]
mod limits;
#[cfg(feature = "image")]
mod lists;
#[cfg(feature = "image")]
mod modes;
#[cfg(all(feature = "audio", feature = "image"))]
mod op_info;
#[cfg(feature = "image")]
mod partial_decode;
#[cfg(feature = "image")]
mod row_index;
#[cfg(feature = "image")]
mod scaled_decode;
#[cfg(all(feature = "image", feature = "datafusion"))]
mod sql;
#[cfg(feature = "text")]
mod text;
#[cfg(feature = "audio")]
mod unproven_ends;
#[cfg(feature = "audio")]
mod unsupported_codecs;
#[cfg(feature = "image")]
mod views;
