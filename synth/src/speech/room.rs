//! The recording: speech at its position in the audio clip, a slight echo, room noise and hum, and the level.

use super::SAMPLE_RATE;
use super::speaker::Speaker;
use crate::draw::Draw;
use std::f32::consts::TAU;

/// The loudest sample allowed: MP3 overshoots by about 1 dB.
const CEILING: f32 = 0.85;
/// Two early reflections: delays in samples (2 … 16 ms) and strengths.
const ECHO_SAMPLES: (f32, f32) = (96.0, 768.0);
const ECHO_STRENGTH: (f32, f32) = (0.0, 0.25);

/// Puts `speech` into `clip` from sample `start` on. Room noise is added to the whole of `clip`, which is otherwise
/// silent.
pub(crate) fn record(draw: &mut Draw, speaker: &Speaker, speech: &[f32], start: usize, clip: &mut [f32]) {
    let power = speech.iter().map(|sample| sample * sample).sum::<f32>() / speech.len().max(1) as f32;
    let level = decibels(-speaker.level_db.abs());
    let gain = if power > 0.0 { level / power.sqrt() } else { 0.0 };
    let mut taps = vec![(0_usize, gain)];
    for _ in 0..2 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 768")]
        let delay = draw.real(ECHO_SAMPLES.0, ECHO_SAMPLES.1) as usize;
        taps.push((delay, gain * draw.real(ECHO_STRENGTH.0, ECHO_STRENGTH.1)));
    }
    for (delay, gain) in taps {
        let place = clip.get_mut(start + delay..).unwrap_or_default();
        for (out, sample) in place.iter_mut().zip(speech) {
            *out += gain * sample;
        }
    }
    add_noise(draw, speaker, level, clip);
    let peak = clip.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
    if peak > CEILING {
        clip.iter_mut().for_each(|sample| *sample *= CEILING / peak);
    }
}

/// Adds noise that falls by 3 dB per octave (three one-pole filters of P. Kellet's economy method), and mains hum
/// with two overtones.
fn add_noise(draw: &mut Draw, speaker: &Speaker, level: f32, clip: &mut [f32]) {
    let noise = level * decibels(-speaker.noise_db);
    let hum = level * decibels(-speaker.hum_db);
    let step = TAU * speaker.hum_hz / SAMPLE_RATE as f32;
    let (mut low, mut middle, mut high, mut phase) = (0.0_f32, 0.0_f32, 0.0_f32, draw.real(0.0, TAU));
    let mut dice = Draw::new(draw.long());
    for sample in clip {
        let white = dice.real(-1.0, 1.0);
        low = 0.997_65 * low + white * 0.099_046;
        middle = 0.963 * middle + white * 0.296_516_4;
        high = 0.57 * high + white * 1.052_691_3;
        let pink = 0.6 * (low + middle + high + white * 0.1848);
        phase += step;
        if phase > TAU {
            phase -= TAU;
        }
        *sample += noise * pink + hum * (sine(phase) + 0.4 * sine(2.0 * phase) + 0.25 * sine(3.0 * phase));
    }
}

/// Approximates a sine by parabolas, within 6 %, which is enough for hum.
fn sine(angle: f32) -> f32 {
    let turns = angle / TAU;
    let x = turns - turns.floor() - 0.5; // −0.5 … 0.5
    -16.0 * x * (0.5 - x.abs())
}

fn decibels(db: f32) -> f32 {
    10.0_f32.powf(db / 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parabola_follows_the_sine() {
        for step in -50_i8..50 {
            let angle = f32::from(step) * 0.3;
            assert!((sine(angle) - angle.sin()).abs() < 0.07, "{angle}: {} {}", sine(angle), angle.sin());
        }
    }
}
