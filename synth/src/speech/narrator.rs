//! Audio clips by index: the sentence, its speaker, and the MP3.

use super::cast::{Cast, Role};
use super::espeak::Espeak;
use super::length::LONGEST_MS;
use super::locale::Locale;
use super::options::{CommonVoiceOptions, Voice};
use super::sentence::sentence;
use super::speaker::{Speaker, hex};
use super::utterance::Track;
use super::{SAMPLE_RATE, Split, mp3, room, tract};
use crate::Result;
use crate::draw::{Draw, mix_seed};

/// The first audio clip's number in file names: eight digits, as in Common Voice.
const FIRST_NUMBER: u64 = 17_000_000;
/// Samples per millisecond.
const PER_MS: usize = SAMPLE_RATE as usize / 1000;
/// Silence before and after speech, in milliseconds, and the maximum share of the audio clip for each.
const AROUND_MS: (f32, f32) = (150.0, 700.0);
const AROUND_SHARE: f32 = 0.15;

/// A complete audio clip and its line of the TSV, in the columns of Common Voice 17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip {
    /// 0 … samples − 1.
    pub index: u64,
    /// Its language.
    pub locale: Locale,
    /// The TSV that lists it.
    pub split: Split,
    /// The speaker: 128 hexadecimal digits.
    pub client_id: String,
    /// File name, `common_voice_<locale>_<number>.mp3`; unique in the data set.
    pub path: String,
    /// 64 hexadecimal digits.
    pub sentence_id: String,
    /// The spoken text, without tabs and line breaks; sometimes with quotation marks, rarely without words.
    pub sentence: String,
    /// The domain; mostly empty.
    pub sentence_domain: String,
    /// Number of listeners who approved it.
    pub up_votes: u32,
    /// Number of listeners who rejected it.
    pub down_votes: u32,
    /// `twenties` …, or empty.
    pub age: String,
    /// `male_masculine`, `female_feminine`, or empty.
    pub gender: String,
    /// The accent in words, or empty.
    pub accents: String,
    /// Exact duration of the signal, in milliseconds.
    pub duration_ms: u32,
    /// 48 kHz mono MP3 at 64 kb/s.
    pub mp3: Vec<u8>,
}

/// Makes audio clips one at a time. Each thread has a separate one.
///
/// ```
/// use feedstock_synth::{CommonVoiceOptions, Locale, Narrator, Voice};
///
/// let locales = vec![Locale::German, Locale::French];
/// let options = CommonVoiceOptions { samples: 10, locales, voice: Voice::Formant, mean_seconds: 1.5, ..Default::default() };
/// let clip = Narrator::new(&options)?.clip(1)?;
/// assert_eq!((clip.locale, clip.path.as_str()), (Locale::French, "common_voice_fr_17000001.mp3"));
/// assert!((1_000..=12_000).contains(&clip.duration_ms));
/// # Ok::<(), feedstock_synth::Error>(())
/// ```
pub struct Narrator {
    seed: u64,
    cast: Cast,
    espeak: Option<Espeak>,
    speech: Vec<f32>,
    samples: Vec<f32>,
}

impl Narrator {
    /// Creates a narrator for `options`. Only `samples`, `seed`, `locales`, `voice` and `mean_seconds` affect it.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range, or espeak-ng is requested but not installed.
    pub fn new(options: &CommonVoiceOptions) -> Result<Self> {
        options.check()?;
        let espeak = (options.voice_used()? == Voice::Espeak).then(Espeak::new);
        let cast = options.cast();
        Ok(Self { seed: options.seed, cast, espeak, speech: Vec::new(), samples: Vec::new() })
    }

    /// Returns audio clip `index`, which is the same for every call and thread.
    ///
    /// # Errors
    /// `BadConfig` if espeak-ng fails; `Bug` if the encoder rejects the samples.
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

    /// Fills `samples`, and returns their duration in milliseconds.
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
            // espeak-ng does not keep exact times: longer speech makes the audio clip longer, up to the limit.
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

    /// Returns the samples of the last audio clip before encoding: 48 kHz, mono, −1 … 1.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 12000 ms")]
fn milliseconds(ms: f32) -> usize {
    ms.max(0.0) as usize * PER_MS
}

/// The votes of listeners and other facts.
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

/// Returns audio clip `index` of a data set with `seed` and otherwise default options, by the formant synthesiser
/// (English, 5 s on average).
///
/// # Panics
/// Never with default options.
#[expect(
    clippy::expect_used,
    reason = "default options are valid; tests need the audio clip without a Result"
)]
pub fn clip(seed: u64, index: u64) -> Clip {
    let options = CommonVoiceOptions { seed, voice: Voice::Formant, ..CommonVoiceOptions::default() };
    let clip = Narrator::new(&options).and_then(|mut narrator| narrator.clip(index));
    clip.expect("default options make an audio clip")
}
