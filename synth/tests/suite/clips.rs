//! The audio clips: duration, sound, speed, determinism.

use feedstock_synth::{Clip, CommonVoiceOptions, ErrorKind, Locale, Narrator, Voice, clip};
use std::time::Instant;

const RATE: usize = 48_000;

fn options() -> CommonVoiceOptions {
    CommonVoiceOptions { samples: 400, voice: Voice::Formant, ..Default::default() }
}

/// Decodes with the encoder crate's own decoder, and drops delay and padding according to the Info tag.
fn decoded(mp3: &[u8]) -> Vec<f32> {
    let mut decoder = rusty_mp3::Mp3Decoder::new();
    decoder.push(mp3);
    decoder.flush();
    let mut samples = Vec::new();
    while let Ok(frame) = decoder.next_frame() {
        assert_eq!((frame.sample_rate, frame.channels), (48_000, 1));
        samples.extend_from_slice(&frame.samples);
    }
    samples
}

/// Returns the offset in `found` at which it is most similar to `wanted`, and the ratio of signal to error there, in
/// dB.
fn alignment(wanted: &[f32], found: &[f32]) -> (usize, f64) {
    let best = (0..4000.min(found.len())).map(|lag| {
        let pairs = wanted.iter().zip(&found[lag..]).step_by(7);
        (pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>(), lag)
    });
    let (_, lag) = best.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let pairs = || wanted.iter().zip(&found[lag..]);
    let signal: f64 = pairs().map(|(a, _)| f64::from(a * a)).sum();
    let error: f64 = pairs().map(|(a, b)| f64::from((a - b) * (a - b))).sum();
    (lag, 10.0 * (signal / error).log10())
}

#[test]
fn clips_are_fast_and_have_the_requested_mean_duration() {
    let mut narrator = Narrator::new(&options()).unwrap();
    let start = Instant::now();
    let clips: Vec<Clip> = (0..100).map(|index| narrator.clip(index).unwrap()).collect();
    let seconds = clips.iter().map(|clip| f64::from(clip.duration_ms) / 1000.0).sum::<f64>();
    let bytes: usize = clips.iter().map(|clip| clip.mp3.len()).sum();
    let rate = seconds / start.elapsed().as_secs_f64();
    println!("{rate:.0} × real time on one core, mean {:.2} s, {} KB", seconds / 100.0, bytes / 100_000);
    assert!((4.7..5.3).contains(&(seconds / 100.0)), "mean {}", seconds / 100.0);
    let expected = seconds * 8000.0; // 64 kb/s
    assert!((0.99..1.06).contains(&(bytes as f64 / expected)), "{bytes} bytes for {seconds} s");
}

#[test]
fn the_mp3_holds_the_signal() {
    let mut narrator = Narrator::new(&options()).unwrap();
    for index in 0..5 {
        let clip = narrator.clip(index).unwrap();
        let samples = narrator.samples().to_vec();
        assert_eq!(samples.len(), clip.duration_ms as usize * RATE / 1000);
        let found = decoded(&clip.mp3);
        let (_, ratio) = alignment(&samples, &found);
        assert!(ratio > 10.0, "audio clip {index}: signal over error is {ratio:.1} dB");
        let peak = samples.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
        assert!((0.01..1.0).contains(&peak), "{peak}");
    }
}

/// Returns the energy of frames of 20 ms, in dB, and the share of sign changes in each.
fn frames(samples: &[f32]) -> Vec<(f32, f32)> {
    let frame = |frame: &[f32]| {
        let power = frame.iter().map(|sample| sample * sample).sum::<f32>() / frame.len() as f32;
        let changes = frame.windows(2).filter(|pair| (pair[0] < 0.0) != (pair[1] < 0.0)).count();
        (10.0 * (power + 1e-12).log10(), changes as f32 / frame.len() as f32)
    };
    samples.chunks_exact(RATE / 50).map(frame).collect()
}

#[test]
fn speech_has_voiced_and_unvoiced_sounds_and_pauses() {
    let mut narrator = Narrator::new(&options()).unwrap();
    let (mut voiced, mut unvoiced, mut quiet, mut all) = (0, 0, 0, 0);
    for index in 0..40 {
        narrator.clip(index).unwrap();
        let frames = frames(narrator.samples());
        let loudest = frames.iter().map(|frame| frame.0).fold(f32::MIN, f32::max);
        all += frames.len();
        voiced += frames.iter().filter(|(db, changes)| *db > loudest - 20.0 && *changes < 0.1).count();
        unvoiced += frames.iter().filter(|(db, changes)| *db > loudest - 35.0 && *changes > 0.15).count();
        quiet += frames.iter().filter(|(db, _)| *db < loudest - 18.0).count();
    }
    let share = |count: usize| count as f64 / all as f64;
    println!("voiced {:.2}, unvoiced {:.2}, quiet {:.2}", share(voiced), share(unvoiced), share(quiet));
    assert!((0.25..0.8).contains(&share(voiced)), "{}", share(voiced));
    assert!((0.03..0.4).contains(&share(unvoiced)), "{}", share(unvoiced));
    assert!((0.1..0.6).contains(&share(quiet)), "{}", share(quiet));
}

#[test]
fn a_clip_depends_on_seed_and_index_alone() {
    let mut narrator = Narrator::new(&options()).unwrap();
    let forth: Vec<Clip> = (0..4).map(|index| narrator.clip(index).unwrap()).collect();
    let back: Vec<Clip> = (0..4).rev().map(|index| narrator.clip(index).unwrap()).collect();
    assert!(forth.iter().eq(back.iter().rev()));
    let mut other = Narrator::new(&CommonVoiceOptions { seed: 2, ..options() }).unwrap();
    let other = other.clip(0).unwrap();
    assert!(other.mp3 != forth[0].mp3 && other.sentence != forth[0].sentence);
    assert_eq!(clip(1, 3).path, "common_voice_en_17000003.mp3");
    assert_eq!(clip(1, 3), clip(1, 3));
}

#[test]
fn speakers_keep_their_facts_and_their_split() {
    let options = CommonVoiceOptions { locales: vec![Locale::German, Locale::English], ..options() };
    let mut narrator = Narrator::new(&options).unwrap();
    let clips: Vec<Clip> = (0..120).map(|index| narrator.clip(index).unwrap()).collect();
    let mut speakers = std::collections::BTreeMap::new();
    for clip in &clips {
        assert_eq!(clip.locale, options.locales[(clip.index % 2) as usize]);
        assert_eq!((clip.client_id.len(), clip.sentence_id.len()), (128, 64));
        let facts = (clip.locale, clip.age.clone(), clip.gender.clone(), clip.accents.clone());
        assert_eq!(speakers.entry(clip.client_id.clone()).or_insert(facts.clone()), &facts);
        let good = clip.up_votes >= 2 && clip.up_votes > clip.down_votes;
        assert_eq!(clip.split.is_validated(), good, "{} up, {} down", clip.up_votes, clip.down_votes);
    }
    assert!((12..80).contains(&speakers.len()), "{} speakers", speakers.len());
    let of = |name: &str| -> std::collections::BTreeSet<&str> {
        let clips = clips.iter().filter(|clip| clip.split.name() == name);
        clips.map(|clip| clip.client_id.as_str()).collect()
    };
    assert!(of("train").is_disjoint(&of("dev")) && of("train").is_disjoint(&of("test")));
    assert!(!of("train").is_empty() && !of("other").is_empty());
}

#[test]
fn espeak_speaks_the_same_sentences_where_it_is_installed() {
    let asked = CommonVoiceOptions { voice: Voice::Espeak, ..options() };
    let mut espeak = match Narrator::new(&asked) {
        Ok(espeak) => espeak,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::BadConfig);
            assert!(error.to_string().contains("formant"), "{error}");
            assert_eq!(CommonVoiceOptions::default().voice_used().unwrap(), Voice::Formant);
            return;
        }
    };
    assert_eq!(CommonVoiceOptions::default().voice_used().unwrap(), Voice::Espeak);
    let mut formant = Narrator::new(&options()).unwrap();
    let (mut spoken, mut wanted) = (0.0, 0.0);
    for index in 0..20 {
        let (said, sung) = (espeak.clip(index).unwrap(), formant.clip(index).unwrap());
        assert_eq!(
            (&said.sentence, &said.client_id, said.split),
            (&sung.sentence, &sung.client_id, sung.split)
        );
        assert!(said.mp3 != sung.mp3);
        assert!((1000..=12_000).contains(&said.duration_ms));
        spoken += f64::from(said.duration_ms);
        wanted += f64::from(sung.duration_ms);
    }
    assert!((0.97..1.1).contains(&(spoken / wanted)), "{spoken} ms for {wanted}");
}
