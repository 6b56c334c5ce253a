//! Speech by espeak-ng, if installed: one process per audio clip, 22.05 kHz, resampled to 48 kHz.

use super::SAMPLE_RATE;
use super::locale::Locale;
use super::speaker::Speaker;
use crate::{Error, ErrorKind, Result};
use std::f64::consts::PI;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// The command; found through `PATH`.
const COMMAND: &str = "espeak-ng";
/// espeak-ng's default rate in words per minute, and its limits.
const USUAL_RATE: f32 = 175.0;
const RATES: (f32, f32) = (90.0, 400.0);
/// espeak-ng's sample rate, and its ratio to ours in lowest terms: 48000 / 22050 = 320 / 147.
const SOURCE_RATE: u32 = 22_050;
const UP: usize = 320;
const DOWN: usize = 147;
/// Taps on each side of the interpolating filter: 60 dB of rejection, which is below a synthetic voice's own noise.
const HALF_TAPS: usize = 16;
/// Samples below this level are silence around the speech.
const SILENCE: f32 = 0.004;
/// Maximum output that is read: a sentence for 12 s, spoken at half the requested rate, 22.05 kHz, 16 bits.
const MAX_WAV_BYTES: u64 = 24 * 22_050 * 2;

/// Returns whether espeak-ng is installed.
pub(crate) fn is_installed() -> bool {
    let mut version = Command::new(COMMAND);
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Runs espeak-ng; holds the interpolating filter (40 KiB).
pub(crate) struct Espeak {
    filter: Vec<[f32; 2 * HALF_TAPS]>,
}

impl Espeak {
    pub(crate) fn new() -> Self {
        Self { filter: (0..UP).map(phase).collect() }
    }

    /// Speaks `text` in about `speech_ms`, at 48 kHz, without silence around it. The search for the right speed
    /// starts at `rate`.
    pub(crate) fn say(
        &self,
        locale: Locale,
        speaker: &Speaker,
        text: &str,
        speech_ms: f32,
    ) -> Result<Vec<f32>> {
        let first = trimmed(&speak(locale, speaker, text, USUAL_RATE * speaker.rate)?);
        let found_ms = first.len() as f32 * 1000.0 / SOURCE_RATE as f32;
        let off = found_ms / speech_ms;
        if (0.9..=1.0).contains(&off) || first.is_empty() {
            return Ok(self.wide(&first));
        }
        // Repeats it at the rate that would have fitted; it never fits exactly.
        let rate = (USUAL_RATE * speaker.rate * off * 1.02).clamp(RATES.0, RATES.1);
        Ok(self.wide(&trimmed(&speak(locale, speaker, text, rate)?)))
    }

    /// Resamples from 22.05 to 48 kHz.
    fn wide(&self, narrow: &[f32]) -> Vec<f32> {
        let length = narrow.len() * UP / DOWN;
        let padded: Vec<f32> = [&[0.0; HALF_TAPS][..], narrow, &[0.0; HALF_TAPS + 1]].concat();
        (0..length)
            .map(|out| {
                let (at, phase) = (out * DOWN / UP, out * DOWN % UP);
                let window = &padded[at + 1..at + 1 + 2 * HALF_TAPS];
                window.iter().zip(&self.filter[phase]).map(|(sample, tap)| sample * tap).sum()
            })
            .collect()
    }
}

/// Returns the taps for a position `phase` / 320 of the way from one sample to the next: a sinc with a Blackman
/// window.
fn phase(phase: usize) -> [f32; 2 * HALF_TAPS] {
    std::array::from_fn(|tap| {
        let x = tap as f64 - (HALF_TAPS as f64 - 1.0) - phase as f64 / UP as f64;
        let sinc = if x.abs() < 1e-9 { 1.0 } else { (PI * x).sin() / (PI * x) };
        let place = (x / HALF_TAPS as f64).clamp(-1.0, 1.0);
        let window = 0.42 + 0.5 * (PI * place).cos() + 0.08 * (2.0 * PI * place).cos();
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is intended")]
        let tap = (sinc * window) as f32;
        tap
    })
}

fn trimmed(speech: &[f32]) -> Vec<f32> {
    let loud = |sample: &f32| sample.abs() > SILENCE;
    let (Some(first), Some(last)) = (speech.iter().position(loud), speech.iter().rposition(loud)) else {
        return Vec::new();
    };
    speech[first..=last].to_vec()
}

/// Runs the command once.
fn speak(locale: Locale, speaker: &Speaker, text: &str, rate: f32) -> Result<Vec<f32>> {
    let voice = match locale {
        Locale::English if speaker.accent.contains("England") => "en-gb",
        Locale::English => "en-us",
        Locale::French => "fr-fr",
        other => other.name(),
    };
    let sex =
        if speaker.woman { format!("f{}", speaker.variant.min(4)) } else { format!("m{}", speaker.variant) };
    let pitch =
        if speaker.woman { (speaker.pitch_hz - 130.0) / 1.4 } else { (speaker.pitch_hz - 60.0) / 1.4 };
    let mut command = Command::new(COMMAND);
    command
        .args(["-v", &format!("{voice}+{sex}")])
        .args(["-p", &format!("{:.0}", pitch.clamp(5.0, 95.0))])
        .args(["-s", &format!("{:.0}", rate.clamp(RATES.0, RATES.1))])
        .args(["--stdin", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let failed = |cause: std::io::Error| {
        let message = format!("{COMMAND} cannot be run: {cause}; install it, or set --voice formant");
        Error::new(ErrorKind::BadConfig, message)
    };
    let mut child = command.spawn().map_err(failed)?;
    let wav = converse(&mut child, text);
    let status = child.wait().map_err(failed)?;
    let wav = wav.map_err(failed)?;
    if !status.success() {
        let message = format!("{COMMAND} -v {voice}+{sex} ended with {status}; try --voice formant");
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    samples(&wav).ok_or_else(|| {
        let message = format!("{COMMAND} did not return a 22.05 kHz mono WAV; try --voice formant");
        Error::new(ErrorKind::BadConfig, message)
    })
}

/// Writes the text and reads the WAV. The text is far shorter than a pipe's buffer, so the write cannot block.
fn converse(child: &mut Child, text: &str) -> std::io::Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let mut wav = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_WAV_BYTES).read_to_end(&mut wav)?;
    }
    Ok(wav)
}

/// Returns the samples of a WAV that was written to a pipe; the sizes in its header cannot be trusted.
fn samples(wav: &[u8]) -> Option<Vec<f32>> {
    let rate = wav.get(24..28)?;
    if !wav.starts_with(b"RIFF") || rate != SOURCE_RATE.to_le_bytes() || wav.get(22..24)? != [1, 0] {
        return None;
    }
    let data = wav.windows(4).position(|name| name == b"data")? + 8;
    let pairs = wav.get(data..)?.chunks_exact(2);
    Some(pairs.map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0).collect())
}

const _: () = assert!(SAMPLE_RATE as usize * DOWN == SOURCE_RATE as usize * UP);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_stays_a_tone() {
        let tone = |rate: f64, count: usize| -> Vec<f32> {
            (0..count).map(|n| (2.0 * PI * 3000.0 * n as f64 / rate).sin() as f32).collect()
        };
        let wide = Espeak::new().wide(&tone(22_050.0, 2205));
        let wanted = tone(48_000.0, wide.len());
        assert_eq!(wide.len(), 4800);
        let error =
            wide[200..4600].iter().zip(&wanted[200..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 2e-3, "{error}");
    }
}
