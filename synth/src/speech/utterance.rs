//! A sentence as a track of the vocal tract's movements: sounds, pauses and melody, fitted to a duration.

use super::locale::Locale;
use super::phone::{Target, phones};
use super::sentence::COMMA_MS;
use super::speaker::Speaker;
use crate::draw::Draw;

/// Half the time in which formants move from one sound to the next, and the same for levels.
const FORMANTS_MOVE_MS: f32 = 28.0;
const LEVELS_MOVE_MS: f32 = 7.0;
/// Factor by which the pitch falls at the end of a sentence, or rises at the end of a question.
const FALL: f32 = 0.80;
const RISE: f32 = 1.35;
/// Pitch at the sentence's start and at its end.
const DECLINATION: (f32, f32) = (1.10, 0.90);

/// One stretch of constant targets.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    target: Target,
    pitch: f32,
    ms: f32,
}

/// The state of the tract at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) target: Target,
    /// Pitch relative to the speaker's mean.
    pub(crate) pitch: f32,
}

/// A sentence over time.
pub(crate) struct Track {
    stretches: Vec<Stretch>,
    /// Start of each stretch, in milliseconds, followed by the end of the last one.
    starts: Vec<f32>,
}

impl Track {
    /// Creates the track of `text` spoken by `speaker` in exactly `speech_ms`.
    pub(crate) fn new(
        draw: &mut Draw,
        locale: Locale,
        speaker: &Speaker,
        text: &str,
        speech_ms: f32,
    ) -> Self {
        let mut stretches = sounds(draw, locale, speaker, text);
        let natural: f32 = stretches.iter().map(|stretch| stretch.ms).sum();
        let scale = speech_ms / natural.max(1.0);
        let mut starts = Vec::with_capacity(stretches.len() + 1);
        let mut at = 0.0;
        for stretch in &mut stretches {
            starts.push(at);
            stretch.ms *= scale;
            at += stretch.ms;
        }
        starts.push(at);
        let rises = text.ends_with('?');
        let last = stretches.len() as f32;
        for (place, stretch) in stretches.iter_mut().enumerate() {
            let share = (place as f32 + 0.5) / last;
            let ending = ((share - 0.75) / 0.25).max(0.0);
            let end = if rises { RISE } else { FALL };
            let line = DECLINATION.0 + (DECLINATION.1 - DECLINATION.0) * share;
            let melody = (stretch.pitch - 1.0) * speaker.melody;
            stretch.pitch = line * (1.0 + melody) * (1.0 + (end - 1.0) * ending);
        }
        Self { stretches, starts }
    }

    /// Returns the state at `ms`. `place` is the position of the last call; times must not decrease.
    pub(crate) fn at(&self, ms: f32, place: &mut usize) -> Moment {
        while *place + 1 < self.stretches.len() && self.starts[*place + 1] <= ms {
            *place += 1;
        }
        let here = &self.stretches[*place];
        let (since, until) = (ms - self.starts[*place], self.starts[*place + 1] - ms);
        // The neighbour that the sound comes from or goes to.
        let (near, gap) = if since < until {
            (place.checked_sub(1).map(|before| &self.stretches[before]), since)
        } else {
            (self.stretches.get(*place + 1), until)
        };
        let Some(near) = near else { return Moment { target: here.target, pitch: here.pitch } };
        let share = |move_ms: f32| {
            let reach = move_ms.min(here.ms / 2.0).max(1e-3);
            let inward = (gap / reach).clamp(0.0, 1.0);
            0.5 * (1.0 - inward * inward * (3.0 - 2.0 * inward)) // 0.5 at the boundary, smooth
        };
        let (moving, fading) = (share(FORMANTS_MOVE_MS), share(LEVELS_MOVE_MS));
        Moment {
            target: blend(&here.target, &near.target, moving, fading),
            pitch: mix(here.pitch, near.pitch, moving),
        }
    }
}

fn mix(here: f32, near: f32, share: f32) -> f32 {
    here + (near - here) * share
}

fn blend(here: &Target, near: &Target, moving: f32, fading: f32) -> Target {
    let hiss = mix(here.hiss, near.hiss, fading);
    // The noise keeps the colour of the sound that hisses.
    let colour = |own: f32, other: f32| {
        let (a, b) = (here.hiss * (1.0 - fading), near.hiss * fading);
        if a + b > 0.0 { (own * a + other * b) / (a + b) } else { own }
    };
    Target {
        formants: std::array::from_fn(|place| mix(here.formants[place], near.formants[place], moving)),
        voice: mix(here.voice, near.voice, fading),
        breath: mix(here.breath, near.breath, fading),
        hiss,
        hiss_hz: colour(here.hiss_hz, near.hiss_hz),
        hiss_width_hz: colour(here.hiss_width_hz, near.hiss_width_hz),
        ms: here.ms,
    }
}

/// Returns the sounds of the text, with pauses at punctuation and an accent on the first vowel of longer words.
fn sounds(draw: &mut Draw, locale: Locale, speaker: &Speaker, text: &str) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for word in text.split_whitespace() {
        let sounds = phones(locale, word);
        let mut accent = sounds.len() > 3;
        for phone in sounds {
            let (targets, count) = phone.targets();
            let stressed = accent && phone.is_vowel();
            accent &= !stressed;
            let pitch = if stressed { draw.real(1.08, 1.3) } else { draw.real(0.96, 1.04) };
            let stretch = if stressed { 1.25 } else { draw.real(0.85, 1.12) };
            for target in &targets[..count] {
                stretches.push(Stretch { target: *target, pitch, ms: target.ms * stretch / speaker.rate });
            }
        }
        if word.ends_with(',') {
            stretches.push(Stretch { target: Target::silence(COMMA_MS), pitch: 0.95, ms: COMMA_MS });
        } else if draw.chance(0.06) {
            stretches.push(Stretch { target: Target::silence(90.0), pitch: 1.0, ms: draw.real(50.0, 160.0) });
        }
    }
    if stretches.is_empty() {
        // No words: a breath and a short "mm".
        let hum = super::phone::Phone::M.targets().0[0];
        let breath = super::phone::Phone::H.targets().0[0];
        for (target, ms) in [(breath, 200.0), (Target::silence(300.0), 300.0), (hum, 250.0)] {
            stretches.push(Stretch { target, pitch: 1.0, ms });
        }
    }
    stretches
}
