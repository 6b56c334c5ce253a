//! Compares speech chains with decoding alone: `cargo bench -p feedstock-ops --bench speech_chain --profile dev` (the dev
//! profile builds everything that a sample passes through at -O3).
//!
//! One thread, 5 s of 48 kHz mono MP3 at 64 kb/s, to 16 kHz log-mel of 80 bins. `FEEDSTOCK_BENCH_CLIPS` names a folder of
//! other audio clips, whose costs are scaled to 5 s. The contenders take turns at each one and are measured in CPU time, so
//! that a busy machine disturbs all alike. The goal is a chain that costs less than symphonia's decoding alone, if a part
//! of the decoder suffices for the frequencies that are kept. `FEEDSTOCK_BENCH_ROUNDS` sets how often each one is run
//! (default 60).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a bench"
)]

use std::io::Cursor;
use std::time::Duration;

use feedstock_ops::audio::{DecodeAudio, decode_mono};
use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::io::MediaSourceStream;

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Decodes with symphonia as its documentation shows it, into one buffer.
fn symphonia(clip: &[u8], out: &mut Vec<f32>) {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(clip)), Default::default());
    let probe = symphonia::default::get_probe();
    let mut reader =
        probe.probe(&Default::default(), stream, Default::default(), Default::default()).unwrap();
    let Some(CodecParameters::Audio(parameters)) = reader.tracks()[0].codec_params.clone() else {
        panic!("no audio track");
    };
    let mut decoder =
        symphonia::default::get_codecs().make_audio_decoder(&parameters, &Default::default()).unwrap();
    let mut packet_samples = Vec::new();
    out.clear();
    while let Ok(Some(packet)) = reader.next_packet() {
        decoder.decode(&packet).unwrap().copy_to_vec_interleaved(&mut packet_samples);
        out.extend_from_slice(&packet_samples);
    }
}

fn clips() -> Vec<Vec<u8>> {
    let Ok(folder) = std::env::var("FEEDSTOCK_BENCH_CLIPS") else {
        return vec![std::fs::read("tests/golden/speech/five_seconds.mp3").unwrap()];
    };
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

const CHAINS: [(&str, &str); 7] = [
    ("decode_audio", "decode_audio"),
    ("resample:16000", "decode_audio,resample:16000"),
    ("log_mel:80", "decode_audio,resample:16000,log_mel:80"),
    ("mfcc:40", "decode_audio,resample:16000,mfcc:40"),
    (
        "log_mel:80,spec_augment,utterance_mvn,feature_major",
        "decode_audio,resample:16000,log_mel:80,spec_augment,utterance_mvn,feature_major",
    ),
    ("trim_silence,volume,log_mel:80", "decode_audio,resample:16000,trim_silence,volume,log_mel:80"),
    ("speed_perturb,log_mel:80", "decode_audio,resample:16000,speed_perturb,log_mel:80"),
];

fn main() {
    // `cargo test --benches` only checks that it runs.
    let test = std::env::args().any(|argument| argument == "--test");
    let rounds =
        std::env::var("FEEDSTOCK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let rounds = if test { 1 } else { rounds };
    let clips = clips();
    let chains = CHAINS.map(|(_, text)| Chain::parse(text).unwrap());
    let (mut scratch, mut row, mut samples) = (Scratch::new(), RaggedRow::new(), Vec::new());
    let mut seconds = 0.0;
    for clip in &clips {
        let (sample_rate, wave) = decode_mono(clip, &DecodeAudio::new()).unwrap();
        seconds += wave.len() as f64 / f64::from(sample_rate);
    }
    let mut spent = [Duration::ZERO; CHAINS.len() + 1];
    for round in 0..=rounds {
        for (id, clip) in clips.iter().enumerate() {
            let seed = SampleSeed::new(7, round, id as u64);
            for (place, spent) in spent.iter_mut().enumerate() {
                let start = cpu_time();
                match place.checked_sub(1) {
                    None => symphonia(clip, &mut samples),
                    Some(chain) => {
                        chains[chain].apply_ragged(clip, seed, &mut scratch, &mut row).unwrap();
                    }
                }
                // The first round warms up caches and buffers.
                if round > 0 || test {
                    *spent += cpu_time() - start;
                }
            }
        }
    }
    let each = spent.map(|spent| spent.as_secs_f64() * 1e3 / rounds as f64 / seconds * 5.0);
    let bytes = clips.iter().map(Vec::len).sum::<usize>() as f64;
    println!(
        "{} audio clips, {seconds:.1} s, {:.0} kb/s, {rounds} rounds, one thread, CPU ms for 5 s",
        clips.len(),
        bytes * 8e-3 / seconds
    );
    let [bare, decode, resample, mel, mfcc, augmented, trimmed, perturbed] = each;
    let line = |name: &str, ms: f64| println!("{name:<62} {ms:>6.2}");
    line("symphonia alone", bare);
    line("decode_audio", decode);
    // Decoded at half its rate, unlike with decode_audio alone.
    line("decode_audio,resample:16000", resample);
    line("  + log_mel:80", mel - resample);
    line("  or mfcc:40", mfcc - resample);
    line("decode_audio,resample:16000,log_mel:80", mel);
    for ((name, _), ms) in CHAINS[4..].iter().zip([augmented, trimmed, perturbed]) {
        line(&format!("… with {name}"), ms);
    }
    println!("ratio chain / symphonia alone: {:.2} (goal 1.0)", mel / bare);
}
