//! Spoken sentences.
//!
//! ```text
//! (seed, index) ─▶ role (language, speaker, split), length
//!                    │
//!                    ▼
//!               sentence ─▶ utterance ─▶ tract ─┬▶ room ─▶ MP3
//!                    └────▶ espeak-ng ──────────┘
//! ```

mod cast;
mod espeak;
mod length;
mod locale;
mod mp3;
mod narrator;
pub(crate) mod options;
mod phone;
mod room;
mod sentence;
mod speaker;
mod tract;
mod utterance;

pub(crate) use cast::Role;
pub use cast::Split;

pub use locale::Locale;
pub use narrator::{Clip, Narrator, clip};

/// Sample rate of every audio clip in Hz, as in Common Voice.
pub(crate) const SAMPLE_RATE: u32 = 48_000;
