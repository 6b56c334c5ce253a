//! The formant synthesiser: a glottal pulse and noise through resonators, 48 kHz.
//!
//! ```text
//! glottal pulse ─▶ tilt ─┐
//! aspiration ────────────┴▶ F1 ─▶ F2 ─▶ F3 ─▶ F4 ─▶ F5 ─┐
//! frication ─▶ band-pass ───────────────────────────────┴▶ speech
//! ```
//! The resonators are those of D. H. Klatt, "Software for a cascade/parallel formant synthesizer", JASA 67 (1980).
//! The pulse is KLGLOTT88's, of D. H. Klatt and L. C. Klatt, JASA 87 (1990). Targets change every 5 ms. One core
//! makes several hundred seconds of speech per second.

use super::SAMPLE_RATE;
use super::speaker::Speaker;
use super::utterance::Track;
use crate::draw::Draw;
use std::f32::consts::TAU;

/// Samples between two updates from the track: 5 ms.
const FRAME: usize = 240;
/// Bandwidths of the five resonators, Hz.
const BANDWIDTHS_HZ: [f32; 5] = [75.0, 95.0, 140.0, 240.0, 340.0];
/// The upper two formants of a man, which hardly move.
const UPPER_HZ: [f32; 2] = [3450.0, 4500.0];
/// Standard deviation of an open vowel after the cascade, and of uniform noise: the references of levels.
const VOWEL_RMS: f32 = 1.1;
const NOISE_RMS: f32 = 0.577;
/// Variation of the vocal folds' period, as a share of a period.
const JITTER: f32 = 0.012;
const SHIMMER: f32 = 0.06;

/// `y = a·x + b·y₋₁ + c·y₋₂`, with unit gain at 0 Hz.
#[derive(Debug, Clone, Copy, Default)]
struct Resonator {
    a: f32,
    b: f32,
    c: f32,
    y1: f32,
    y2: f32,
}

impl Resonator {
    fn tune(&mut self, hz: f32, width_hz: f32) {
        let rate = SAMPLE_RATE as f32;
        let radius = (-std::f32::consts::PI * width_hz / rate).exp();
        self.c = -radius * radius;
        self.b = 2.0 * radius * (TAU * hz / rate).cos();
        self.a = 1.0 - self.b - self.c;
    }

    fn step(&mut self, x: f32) -> f32 {
        let y = self.a * x + self.b * self.y1 + self.c * self.y2;
        self.y2 = self.y1;
        self.y1 = y;
        y
    }
}

/// A band-pass with unit gain at its centre (R. Bristow-Johnson's cookbook).
#[derive(Debug, Clone, Copy, Default)]
struct Band {
    gain: f32,
    b: f32,
    c: f32,
    x1: f32,
    x2: f32,
    y1: f32,
    y2: f32,
}

impl Band {
    fn tune(&mut self, hz: f32, width_hz: f32) {
        let angle = TAU * hz / SAMPLE_RATE as f32;
        let alpha = angle.sin() * width_hz / (2.0 * hz);
        let scale = 1.0 / (1.0 + alpha);
        self.gain = alpha * scale;
        self.b = 2.0 * angle.cos() * scale;
        self.c = (alpha - 1.0) * scale;
    }

    fn step(&mut self, x: f32) -> f32 {
        let y = self.gain * (x - self.x2) + self.b * self.y1 + self.c * self.y2;
        (self.x2, self.x1) = (self.x1, x);
        (self.y2, self.y1) = (self.y1, y);
        y
    }
}

/// Levels of one frame, or their change per sample.
#[derive(Debug, Clone, Copy, Default)]
struct Levels {
    voice: f32,
    breath: f32,
    hiss: f32,
}

/// Synthesises `track` into the whole of `speech`.
pub(crate) fn say(track: &Track, speaker: &Speaker, draw: &mut Draw, speech: &mut [f32]) {
    let mut tract = Tract::new(draw, speaker);
    let mut place = 0;
    let mut before = Levels::default();
    for (number, frame) in speech.chunks_mut(FRAME).enumerate() {
        let ms = (number * FRAME) as f32 * 1000.0 / SAMPLE_RATE as f32;
        let moment = track.at(ms, &mut place);
        let target = &moment.target;
        tract.tune(&target.formants, speaker.tract);
        tract.hiss.tune(target.hiss_hz, target.hiss_width_hz);
        tract.step = (speaker.pitch_hz * moment.pitch / SAMPLE_RATE as f32).clamp(1e-3, 0.02);
        let hiss_gain =
            VOWEL_RMS / NOISE_RMS * (SAMPLE_RATE as f32 / 2.0 / target.hiss_width_hz).sqrt().min(4.0);
        let after = Levels {
            voice: target.voice,
            breath: target.breath + speaker.breath * target.voice,
            hiss: target.hiss * hiss_gain,
        };
        tract.frame(before, after, frame);
        before = after;
    }
}

struct Tract {
    cascade: [Resonator; 5],
    hiss: Band,
    noise: Draw,
    /// Position within the glottal period, 0 … 1, and its step per sample.
    phase: f32,
    step: f32,
    open: f32,
    /// Deviation of this period's length and strength.
    jitter: f32,
    shimmer: f32,
    tilt: f32,
    tilted: f32,
}

impl Tract {
    fn new(draw: &mut Draw, speaker: &Speaker) -> Self {
        Self {
            cascade: [Resonator::default(); 5],
            hiss: Band::default(),
            noise: Draw::new(draw.long()),
            phase: 0.0,
            step: 0.002,
            open: speaker.open,
            jitter: 1.0,
            shimmer: 1.0,
            tilt: 1.0 - (-TAU * speaker.tilt_hz / SAMPLE_RATE as f32).exp(),
            tilted: 0.0,
        }
    }

    fn tune(&mut self, formants: &[f32; 3], tract: f32) {
        let all = formants.iter().chain(&UPPER_HZ);
        for ((resonator, hz), width) in self.cascade.iter_mut().zip(all).zip(BANDWIDTHS_HZ) {
            resonator.tune(hz * tract, width);
        }
    }

    fn frame(&mut self, before: Levels, after: Levels, frame: &mut [f32]) {
        let share = 1.0 / frame.len() as f32;
        let mut levels = before;
        for sample in frame {
            levels.voice += (after.voice - before.voice) * share;
            levels.breath += (after.breath - before.breath) * share;
            levels.hiss += (after.hiss - before.hiss) * share;
            let noise = self.noise.real(-1.0, 1.0);
            let pulse = self.pulse();
            self.tilted += self.tilt * (pulse - self.tilted);
            // Breath is audible while the folds are open.
            let breath = if self.phase < self.open { noise } else { 0.5 * noise };
            let mut sound = levels.voice * self.tilted + levels.breath * breath;
            for resonator in &mut self.cascade {
                sound = resonator.step(sound);
            }
            *sample = sound + levels.hiss * self.hiss.step(noise);
        }
    }

    /// The derivative of the flow through the folds: 2x − 3x² over the open part of the period.
    fn pulse(&mut self) -> f32 {
        self.phase += self.step * self.jitter;
        if self.phase >= 1.0 {
            self.phase -= 1.0;
            self.jitter = 1.0 + self.noise.real(-JITTER, JITTER);
            self.shimmer = 1.0 + self.noise.real(-SHIMMER, SHIMMER);
        }
        if self.phase >= self.open {
            return 0.0;
        }
        let x = self.phase / self.open;
        self.shimmer * (2.0 * x - 3.0 * x * x)
    }
}
