//! Clips by index: the sentence, who says it, and the MP3.

use super::cast::{Cast, Role};
use super::espeak::Espeak;
use super::length::LONGEST_MS;
use super::locale::Locale;
use super::sentence::sentence;
use super::speaker::{Speaker, hex};
use super::utterance::Track;
use super::{SAMPLE_RATE, Split, mp3, room, tract};
use crate::Result;
use crate::common_voice_options::{CommonVoiceOptions, Voice};
use crate::draw::{Draw, mix_seed};

/// The first clip's number in file names: eight digits, as Common Voice's.
const FIRST_NUMBER: u64 = 17_000_000;
/// Samples of a millisecond.
const PER_MS: usize = SAMPLE_RATE as usize / 1000;
/// Silence before and after speech, in milliseconds and at most this share of the clip each.
const AROUND_MS: (f32, f32) = (150.0, 700.0);
const AROUND_SHARE: f32 = 0.15;

/// One finished clip and its line of the TSV, in the columns of Common Voice 17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip {
    /// 0 … samples − 1.
    pub index: u64,
    /// Its language.
    pub locale: Locale,
    /// Which TSV names it.
    pub split: Split,
    /// Who speaks: 128 hexadecimal digits.
    pub client_id: String,
    /// File name, `common_voice_<locale>_<number>.mp3`; unique over the data set.
    pub path: String,
    /// 64 hexadecimal digits.
    pub sentence_id: String,
    /// What is said: no tab, no line break; sometimes quotation marks, rarely no words.
    pub sentence: String,
    /// Mostly empty.
    pub sentence_domain: String,
    /// Listeners who approved.
    pub up_votes: u32,
    /// Listeners who refused.
    pub down_votes: u32,
    /// `twenties` …, or empty.
    pub age: String,
    /// `male_masculine`, `female_feminine`, or empty.
    pub gender: String,
    /// In words, or empty.
    pub accents: String,
    /// Length of the signal, in milliseconds, exactly.
    pub duration_ms: u32,
    /// 48 kHz mono MP3 at 64 kb/s.
    pub mp3: Vec<u8>,
}

/// Makes clips one at a time; each thread has its own.
pub struct Narrator {
    seed: u64,
    cast: Cast,
    espeak: Option<Espeak>,
    speech: Vec<f32>,
    samples: Vec<f32>,
}

impl Narrator {
    /// A narrator for `options`; only `samples`, `seed`, `locales`, `voice` and `mean_seconds` matter to it.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range, or espeak-ng is asked for and not there.
    pub fn new(options: &CommonVoiceOptions) -> Result<Self> {
        options.check()?;
        let espeak = (options.voice_used()? == Voice::Espeak).then(Espeak::new);
        let cast = options.cast();
        Ok(Self { seed: options.seed, cast, espeak, speech: Vec::new(), samples: Vec::new() })
    }

    /// Clip `index`, the same for every call and thread.
    ///
    /// # Errors
    /// `BadConfig` if espeak-ng fails; `Bug` if the encoder refuses the samples.
    pub fn clip(&mut self, index: u64) -> Result<Clip> {
        let role = self.cast.role(index);
        let speaker = Speaker::new(self.seed, role.locale, role.speaker);
        let mut draw = Draw::new(mix_seed(self.seed, index));
        let around = |draw: &mut Draw| draw.real(AROUND_MS.0, AROUND_MS.1).min(AROUND_SHARE * role.ms as f32);
        let (lead_ms, tail_ms) = (around(&mut draw), around(&mut draw));
        let speech_ms = role.ms as f32 - lead_ms - tail_ms;
        let text = sentence(&mut draw, role.locale, speech_ms * speaker.rate);
        let facts = Facts::new(&mut draw, role);
        let sentence_id = hex(&mut draw, 4);
        let duration_ms = self.say(&mut draw, role, &speaker, &text, (lead_ms, speech_ms))?;
        Ok(Clip {
            index,
            locale: role.locale,
            split: role.split,
            client_id: speaker.client_id,
            path: format!("common_voice_{}_{}.mp3", role.locale, FIRST_NUMBER + index),
            sentence_id,
            sentence: text,
            sentence_domain: facts.domain.to_owned(),
            up_votes: facts.up_votes,
            down_votes: facts.down_votes,
            age: speaker.age.to_owned(),
            gender: speaker.gender.to_owned(),
            accents: speaker.accent.to_owned(),
            duration_ms,
            mp3: mp3::encode(&self.samples)?,
        })
    }

    /// Fills `samples`; returns its milliseconds.
    fn say(
        &mut self,
        draw: &mut Draw,
        role: Role,
        speaker: &Speaker,
        text: &str,
        (lead_ms, speech_ms): (f32, f32),
    ) -> Result<u32> {
        let mut ms = role.ms;
        if let Some(espeak) = &self.espeak {
            self.speech = espeak.say(role.locale, speaker, text, speech_ms)?;
            // espeak-ng keeps no exact time: what is too long makes the clip longer, up to the limit.
            #[expect(clippy::cast_possible_truncation, reason = "at most 12000")]
            self.speech.truncate(milliseconds(LONGEST_MS as f32 - 2.0 * lead_ms));
            #[expect(clippy::cast_possible_truncation, reason = "at most 12000")]
            let needed = (self.speech.len().div_ceil(PER_MS) + milliseconds(1.5 * lead_ms) / PER_MS) as u32;
            ms = ms.max(needed);
        } else {
            self.speech.clear();
            self.speech.resize(milliseconds(speech_ms), 0.0);
            let track = Track::new(draw, role.locale, speaker, text, speech_ms);
            tract::say(&track, speaker, draw, &mut self.speech);
        }
        self.samples.clear();
        self.samples.resize(ms as usize * PER_MS, 0.0);
        room::record(draw, speaker, &self.speech, milliseconds(lead_ms), &mut self.samples);
        Ok(ms)
    }

    /// The samples of the last clip before encoding: 48 kHz, mono, −1 … 1.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 12000 ms")]
fn milliseconds(ms: f32) -> usize {
    ms.max(0.0) as usize * PER_MS
}

/// What listeners said.
struct Facts {
    up_votes: u32,
    down_votes: u32,
    domain: &'static str,
}

impl Facts {
    fn new(draw: &mut Draw, role: Role) -> Self {
        let domain =
            if draw.chance(0.1) { draw.pick(&["general", "news_current_affairs", "healthcare"]) } else { "" };
        let (few, many) = (draw.word() % 2, 2 + draw.word() % 3);
        let (up_votes, down_votes) = match role.split {
            Split::Invalidated => (few, many),
            Split::Other => (few, draw.word() % 2),
            _ => (many, few),
        };
        Self { up_votes, down_votes, domain }
    }
}

/// Clip `index` of a data set with `seed` and otherwise default options, by the formant synthesiser (English,
/// 5 s on average).
///
/// # Panics
/// Never with default options.
#[expect(clippy::expect_used, reason = "default options are valid; tests want the bare clip")]
pub fn clip(seed: u64, index: u64) -> Clip {
    let options = CommonVoiceOptions { seed, voice: Voice::Formant, ..CommonVoiceOptions::default() };
    let clip = Narrator::new(&options).and_then(|mut narrator| narrator.clip(index));
    clip.expect("default options make a clip")
}
