//! Language, speaker and split of each audio clip, by index, without making any audio.

use super::length::Lengths;
use super::locale::Locale;
use crate::draw::{Draw, mix_seed};
use std::fmt;

/// Average number of audio clips per speaker.
const CLIPS_PER_SPEAKER: u64 = 12;
/// Minimum number of speakers per language, so that each split can have its own.
const FEWEST_SPEAKERS: u64 = 10;
/// Out of 100 audio clips, the number that listeners rejected, and the number that too few have heard.
const INVALIDATED: u64 = 4;
const OTHER: u64 = 8;
const REFUSED_OR_UNHEARD: u64 = INVALIDATED + OTHER;

/// The split of an audio clip. The first three together are the validated audio clips; they share no speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Split {
    /// Four fifths of the validated speakers.
    Train,
    /// One tenth of the validated speakers.
    Dev,
    /// One tenth of the validated speakers.
    Test,
    /// Rejected by listeners.
    Invalidated,
    /// Heard by too few listeners.
    Other,
}

impl Split {
    /// All splits.
    pub const ALL: [Self; 5] = [Self::Train, Self::Dev, Self::Test, Self::Invalidated, Self::Other];

    /// Returns the name of its TSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Dev => "dev",
            Self::Test => "test",
            Self::Invalidated => "invalidated",
            Self::Other => "other",
        }
    }

    /// Returns whether listeners approved it.
    pub fn is_validated(self) -> bool {
        matches!(self, Self::Train | Self::Dev | Self::Test)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Speaker, language, split and number of an audio clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) locale: Locale,
    pub(crate) speaker: u64,
    pub(crate) split: Split,
    pub(crate) ms: u32,
}

/// The speakers of a data set, and the assignment of audio clips to them.
#[derive(Debug, Clone)]
pub(crate) struct Cast {
    seed: u64,
    locales: Vec<Locale>,
    speakers: u64,
    lengths: Lengths,
}

impl Cast {
    pub(crate) fn new(seed: u64, samples: u64, locales: &[Locale], mean_seconds: f64) -> Self {
        let share = samples / (locales.len() as u64 * CLIPS_PER_SPEAKER);
        let lengths = Lengths::new(seed, mean_seconds);
        Self { seed, locales: locales.to_vec(), speakers: share.max(FEWEST_SPEAKERS), lengths }
    }

    /// Returns the role of audio clip `index`.
    pub(crate) fn role(&self, index: u64) -> Role {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of languages")]
        let locale = self.locales[(index % self.locales.len() as u64) as usize];
        let mut draw = Draw::new(mix_seed(self.seed ^ 0x726f_6c65, index));
        // As among volunteers, a few speakers have many audio clips, and most have few.
        let u = draw.real(0.0, 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below the number of speakers"
        )]
        let speaker = ((u * u * self.speakers as f32) as u64).min(self.speakers - 1);
        let split = match draw.below(100) {
            ..INVALIDATED => Split::Invalidated,
            INVALIDATED..REFUSED_OR_UNHEARD => Split::Other,
            _ => match speaker % 10 {
                4 => Split::Dev,
                7 => Split::Test,
                _ => Split::Train,
            },
        };
        Role { locale, speaker, split, ms: self.lengths.ms(index) }
    }
}
