//! Speakers: voice, manner, room, and what the TSV states about them.

use super::locale::Locale;
use crate::draw::{Draw, mix_seed};

/// Share of speakers who give no personal data, about that of Common Voice.
const SILENT_SHARE: f32 = 0.4;

/// A speaker, who is the same in all of their audio clips.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    /// 128 hexadecimal digits.
    pub(crate) client_id: String,
    pub(crate) age: &'static str,
    pub(crate) gender: &'static str,
    pub(crate) accent: &'static str,
    pub(crate) woman: bool,
    /// Mean pitch, Hz.
    pub(crate) pitch_hz: f32,
    /// Formant frequencies relative to a man's.
    pub(crate) tract: f32,
    /// Speed relative to the usual one.
    pub(crate) rate: f32,
    /// Range of the pitch; 1 is usual.
    pub(crate) melody: f32,
    /// Noise in the voice, 0.01 … 0.12.
    pub(crate) breath: f32,
    /// Open share of a glottal period.
    pub(crate) open: f32,
    /// Cut-off of the voice's own low-pass filter, Hz.
    pub(crate) tilt_hz: f32,
    /// Level of the recorded speech, in dB below full scale.
    pub(crate) level_db: f32,
    /// Noise of room and microphone, in dB below the speech.
    pub(crate) noise_db: f32,
    /// Level of mains hum in dB below the speech, and its frequency in Hz.
    pub(crate) hum_db: f32,
    pub(crate) hum_hz: f32,
    /// The number of espeak-ng's voice variant.
    pub(crate) variant: u32,
}

impl Speaker {
    /// Returns speaker `number` of `locale`.
    pub(crate) fn new(seed: u64, locale: Locale, number: u64) -> Self {
        let name = locale.name().bytes().fold(0_u64, |sum, byte| sum << 8 | u64::from(byte));
        let mut draw = Draw::new(mix_seed(mix_seed(seed, name), number));
        let client_id = hex(&mut draw, 8);
        let woman = draw.chance(0.45);
        let told = !draw.chance(SILENT_SHARE);
        let ages =
            ["teens", "twenties", "twenties", "thirties", "thirties", "fourties", "fifties", "sixties"];
        let age = if told { draw.pick(&ages) } else { "" };
        let gender = match (told, woman) {
            (false, _) => "",
            (true, true) => "female_feminine",
            (true, false) => "male_masculine",
        };
        let accent = if told && draw.chance(0.5) { draw.pick(locale.accents()) } else { "" };
        let (pitch, tract) =
            if woman { ((165.0, 250.0), (1.10, 1.22)) } else { ((85.0, 150.0), (0.93, 1.07)) };
        Self {
            client_id,
            age,
            gender,
            accent,
            woman,
            pitch_hz: draw.real(pitch.0, pitch.1),
            tract: draw.real(tract.0, tract.1),
            rate: draw.real(0.82, 1.22),
            melody: draw.real(0.5, 1.5),
            breath: draw.real(0.01, 0.12),
            open: draw.real(0.45, 0.68),
            tilt_hz: draw.real(2200.0, 5500.0),
            level_db: draw.real(-30.0, -16.0),
            noise_db: draw.real(18.0, 55.0),
            hum_db: draw.real(25.0, 70.0),
            hum_hz: if draw.chance(0.7) { 50.0 } else { 60.0 },
            variant: 1 + draw.word() % 5,
        }
    }
}

/// Returns 16 × `words` hexadecimal digits.
pub(crate) fn hex(draw: &mut Draw, words: usize) -> String {
    (0..words).map(|_| format!("{:016x}", draw.long())).collect()
}
