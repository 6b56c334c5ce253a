//! Bytes that are not a usable audio clip. Each is a `BadSample` that states the reason, within bounded time and memory, and
//! never a panic.

use std::path::PathBuf;
use std::time::Duration;

use crate::hostile::thread_time;
use feedstock_ops::audio::{DecodeAudio, decode_mono, read_audio_header};
use feedstock_ops::{ChainSpec, Error, ErrorKind, RaggedRow, SampleSeed, Scratch, resample};

fn folder() -> PathBuf {
    ["tests", "golden", "audio"].iter().collect()
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn clips() -> Vec<(String, Vec<u8>)> {
    let mut clips: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("references") && name != "soxr.f32")
        .filter(|name| cfg!(feature = "opus") || !name.ends_with(".opus"))
        .map(|name| (name.clone(), golden(&name)))
        .collect();
    clips.sort();
    assert!(clips.len() >= 25);
    clips
}

fn refuse_with(bytes: &[u8], op: &DecodeAudio, why: &str) -> Error {
    let start = thread_time();
    let result = decode_mono(bytes, op).map(|(rate, samples)| (rate, samples.len()));
    let error = result.expect_err("the bytes are not a usable audio clip");
    let time = thread_time() - start;
    assert!(time < Duration::from_secs(2), "{error}: took {time:?}");
    assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
    assert!(error.message().contains(why), "{error}\nshould contain: {why}");
    error
}

fn refuse(bytes: &[u8], why: &str) -> Error {
    refuse_with(bytes, &DecodeAudio::new(), why)
}

/// Returns a WAV of one channel.
fn wav(kind: u16, bits: u16, sample_rate: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(sample_rate.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend((bits / 8).to_le_bytes());
    bytes.extend(bits.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn nothing_and_something_else() {
    refuse(b"", "empty (0 bytes)");
    refuse(b"client_id\tpath\tsentence\n", "are no MP3");
    refuse("nur Text, kein Ton. ".repeat(5000).as_bytes(), "are no MP3");
    refuse(b"<html>404 Not Found</html>", "are no MP3");
    refuse(&[0; 100_000], "are no MP3");
    refuse(&[0xFF; 100_000], "are no MP3");
    refuse(b"RIFF\0\0\0\0AVI LIST", "are no MP3");
    refuse(b"ID3\x04\0\0\0\0\x7f\x7f", "ends before its audio");
    refuse(b"fLaC", "STREAMINFO");
    refuse(b"OggS", "whole page");
    refuse(b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42", "no audio track");
}

#[test]
fn an_mp3_cut_in_half() {
    for name in ["48k_mono_64.mp3", "44k_stereo_vbr.mp3", "22k_mono_lavf.mp3", "48k_mono_vbri.mp3"] {
        let clip = golden(name);
        refuse(&clip[..clip.len() / 2], "ends early");
        // Also if it is cut exactly between two frames: the tag counts them.
        let (taken, _) = decode_mono(&clip[..clip.len() / 2], &DecodeAudio::new().max_lost_share(1.0))
            .map(|(_, samples)| (samples.len(), ()))
            .unwrap();
        assert_eq!(
            taken,
            decode_mono(&clip, &DecodeAudio::new()).unwrap().1.len(),
            "{name}: silence to the end"
        );
    }
    // Without a count, all whole frames count (192 bytes per frame).
    let clip = golden("48k_mono_untagged.mp3");
    let (_, half) = decode_mono(&clip[..20 * 192], &DecodeAudio::new()).unwrap();
    assert_eq!(half.len(), 20 * 1152);
    assert_eq!(decode_mono(&clip[..20 * 192 + 100], &DecodeAudio::new()).unwrap().1, half);
}

#[test]
fn every_other_format_cut_in_half() {
    for (name, clip) in clips() {
        // ADTS has no count of its frames, either.
        if !name.ends_with(".mp3") && !name.ends_with(".aac") {
            let error = refuse(&clip[..clip.len() / 2], "");
            let message = error.message();
            assert!(message.contains("early") || message.contains("ends"), "{name}: {message}");
        }
    }
}

#[test]
fn garbage_between_frames() {
    let clip = golden("48k_mono_64.mp3");
    let (_, whole) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let frame = 192;
    let at = 25 * frame;
    // Overwritten: 4 of 52 frames are lost, 7.7 %.
    let mut damaged = clip.clone();
    damaged[at..at + 4 * frame].fill(0x55);
    let error = refuse(&damaged, "over max_lost_share (0.02)");
    assert!(error.message().contains("is damaged"), "{error}");
    // If allowed, they become silence, and later samples keep their positions.
    let (_, kept) = decode_mono(&damaged, &DecodeAudio::new().max_lost_share(0.2)).unwrap();
    assert_eq!(kept.len(), whole.len());
    let (before, after) = (24 * 1152 - 1105 - 600, 33 * 1152);
    assert_eq!(kept[..before], whole[..before]);
    assert!(kept[after..].iter().zip(&whole[after..]).all(|(a, b)| (a - b).abs() < 1e-3));
    assert!(kept[24 * 1152..26 * 1152].iter().all(|value| *value == 0.0));
    // Inserted between frames, nothing is lost, as the tag shows.
    let inserted = [&clip[..at], &[0x55; 1000], &clip[at..]].concat();
    let strict = DecodeAudio::new().max_lost_share(0.0);
    assert_eq!(decode_mono(&inserted, &strict).unwrap().1, whole);

    // Without a count, garbage counts as the frames that it may have overwritten.
    let clip = golden("48k_mono_untagged.mp3");
    let (_, whole) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let mut damaged = clip.clone();
    damaged[at..at + 4 * frame].fill(0x55);
    refuse(&damaged, "over max_lost_share");
    let (_, kept) = decode_mono(&damaged, &DecodeAudio::new().max_lost_share(0.2)).unwrap();
    assert_eq!(kept.len(), whole.len());
}

#[test]
fn a_damaged_flac_frame() {
    let clip = golden("16k_mono_24bit.flac");
    let (_, whole) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let mut damaged = clip.clone();
    let middle = clip.len() * 3 / 4; // padding fills the first half
    damaged[middle..middle + 20].fill(0x55);
    refuse(&damaged, "is damaged");
    let (_, kept) = decode_mono(&damaged, &DecodeAudio::new().max_lost_share(0.5)).unwrap();
    assert_eq!(kept.len(), whole.len());
    let equal = kept.iter().zip(&whole).filter(|(a, b)| a == b).count();
    assert!(equal >= whole.len() - 3 * 576 && equal < whole.len(), "{equal} of {}", whole.len());
    assert_eq!(kept[whole.len() - 576..], whole[whole.len() - 576..]);
    // The first frame with its header: it becomes silence, and the others keep their positions.
    let mut damaged = clip.clone();
    let first = 4 + 4 + 34 + 4 + 46 + 4 + 8192; // after STREAMINFO, comments and padding
    assert_eq!(clip[first..first + 2], [0xFF, 0xF8]);
    damaged[first..first + 20].fill(0x55);
    let (_, kept) = decode_mono(&damaged, &DecodeAudio::new().max_lost_share(0.5)).unwrap();
    assert_eq!(kept.len(), whole.len());
    assert!(kept[..576].iter().all(|value| *value == 0.0));
    assert!(kept[576..] == whole[576..] && whole[..576].iter().any(|value| *value != 0.0));
}

#[test]
fn a_change_of_rate_within_an_mp3() {
    let both = [golden("48k_mono_64.mp3"), golden("16k_mono_32.mp3")].concat();
    refuse(&both, "changes from 48000 Hz, 1 channels to 16000 Hz, 1 channels at byte 9984");
    let both = [golden("48k_mono_64.mp3"), golden("32k_stereo_crc_id3.mp3")].concat();
    // The second file's ID3 tag ends the first. Everything after it is ignored.
    assert_eq!(decode_mono(&both, &DecodeAudio::new()).unwrap().1.len(), 57_600);
}

#[test]
fn ten_hours_of_constant_flac() {
    let hours = |samples: u64| {
        let mut clip = golden("16k_mono_24bit.flac");
        // The last 36 bits of the eight bytes at 18.
        let packed = u64::from_be_bytes(clip[18..26].try_into().unwrap());
        clip[18..26].copy_from_slice(&(packed >> 36 << 36 | samples).to_be_bytes());
        clip
    };
    refuse(&hours(36_000 * 16_000), "36000.0 s long, over max_seconds (600); raise the limit");
    // Without a stated length, decoding stops at the limit: constant blocks of 65,535 samples in 14 bytes.
    let mut clip = b"fLaC\x80\0\0\x22\x10\0\xff\xff\0\0\0\0\0\0".to_vec();
    let (rate, bits) = (16_000_u64, 16_u64);
    clip.extend((rate << 44 | (bits - 1) << 36).to_be_bytes());
    clip.extend([0; 16]);
    for frame in 0..9000_u64 {
        let mut header = vec![0xFF, 0xF9, 0x7 << 4 | 0x5, 0x08];
        header.extend(utf8(frame * 65_535));
        header.extend(65_534_u16.to_be_bytes());
        header.push(crc8(&header));
        header.extend([0, 0x12, 0x34]); // a constant subframe
        header.extend(crc16(&header).to_be_bytes());
        clip.extend(header);
    }
    assert!(clip.len() < 200_000);
    refuse(&clip, "over max_seconds");
    refuse_with(&clip, &DecodeAudio::new().max_samples(100_000), "over max_samples (100000)");
    let shorter = &clip[..clip.len() / 9000 * 20];
    let taken = decode_mono(shorter, &DecodeAudio::new().max_lost_share(1.0)).unwrap();
    assert!(taken.1.len() > 15 * 65_535, "the frames above are good ones: {}", taken.1.len());
}

/// Returns a number in FLAC's coding, UTF-8 extended to 36 bits.
fn utf8(number: u64) -> Vec<u8> {
    if number < 0x80 {
        return vec![number as u8];
    }
    let more = (1..7).find(|more| number < 1 << (6 * more + 6 - more)).unwrap();
    let mut bytes = vec![(0xFF_u64 << (7 - more) & 0xFF) as u8 | (number >> (6 * more)) as u8];
    bytes.extend((0..more).rev().map(|at| 0x80 | (number >> (6 * at) & 0x3F) as u8));
    bytes
}

fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc: u8, _| crc << 1 ^ if crc & 0x80 != 0 { 0x07 } else { 0 })
    })
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            crc << 1 ^ if crc & 0x8000 != 0 { 0x8005 } else { 0 }
        })
    })
}

#[test]
fn headers_that_make_no_sense() {
    let silence = [0; 1000];
    refuse(&wav(1, 16, 0, &silence), "states 0 Hz");
    refuse(&wav(1, 16, 4_000_000_000, &silence), "4000000000 Hz, over max_sample_rate (384000)");

    refuse(&wav(1, 16, 16_000, &[]), "no samples");
    refuse(&wav(2, 4, 16_000, &silence), "codec is Microsoft ADPCM");
    let mut channels = wav(1, 16, 16_000, &silence);
    channels[22] = 9;
    refuse(&channels, "9 channels, over max_channels (8)");
    channels[22] = 0;
    refuse(&channels, "0 channels");
    let mut claim = wav(1, 16, 16_000, &silence);
    claim[40..44].copy_from_slice(&1_000_000_000_u32.to_le_bytes());
    refuse(&claim, "31250.0 s long, over max_seconds");
    claim[40..44].copy_from_slice(&2000_u32.to_le_bytes());
    refuse(&claim, "ends early");
    refuse(b"RIFF\0\0\0\0WAVEdata\x02\0\0\0\0\0", "no fmt chunk");
    refuse(b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0\0\0data\0\0\0\0", "fmt chunk has 2 bytes of 16");
}

#[test]
fn values_that_are_no_numbers() {
    let floats =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    refuse(&wav(3, 32, 16_000, &floats(&[0.0, 0.5, f32::NAN, 0.0])), "sample 2 of the audio clip is NaN");
    refuse(&wav(3, 32, 16_000, &floats(&[f32::NEG_INFINITY])), "sample 0 of the audio clip is -inf");
    let (_, kept) = decode_mono(&wav(3, 32, 16_000, &floats(&[1.5, -7.0])), &DecodeAudio::new()).unwrap();
    assert_eq!(kept, [1.5, -7.0], "values beyond ±1 are kept");
}

#[test]
fn limits_are_the_callers() {
    let clip = golden("48k_mono_64.mp3");
    refuse_with(&clip, &DecodeAudio::new().max_seconds(1.0), "1.2 s long, over max_seconds (1)");
    refuse_with(&clip, &DecodeAudio::new().max_sample_rate(44_100), "48000 Hz, over max_sample_rate");
    refuse_with(
        &golden("44k_stereo.ogg"),
        &DecodeAudio::new().max_channels(1),
        "2 channels, over max_channels",
    );
}

/// Checks that the result for any bytes is Ok or `BadSample`, comes within 2 s, and is not longer than its limits.
fn survive(name: &str, bytes: &[u8], op: &DecodeAudio) {
    let start = thread_time();
    let whole = decode_mono(bytes, op);
    match &whole {
        Ok((rate, samples)) => {
            assert!(*rate > 0 && samples.len() as u64 <= op.max_samples, "{name}: {} samples", samples.len());
            assert!(samples.iter().all(|value| value.is_finite()), "{name}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::BadSample, "{name}: {error}"),
    }
    // It may be decoded at half the rate, but must not be rejected for that or become longer.
    for to in [8000, 16_000] {
        let chain = ChainSpec::from([op.clone().into(), resample(to)]).compile().unwrap();
        let mut row = RaggedRow::new();
        match (chain.apply_ragged(bytes, SampleSeed::new(1, 0, 0), &mut Scratch::new(), &mut row), &whole) {
            (Ok(()), Ok((rate, samples))) => {
                let length = (samples.len() as u64 * u64::from(to)).div_ceil(u64::from(*rate));
                assert_eq!(row.length() as u64, length, "{name} to {to}");
            }
            (Err(error), _) => assert_eq!(error.kind(), ErrorKind::BadSample, "{name}: {error}"),
            (Ok(()), Err(error)) => panic!("{name} to {to}: resampled, but without resampling {error}"),
        }
    }
    let time = thread_time() - start;
    assert!(time < Duration::from_secs(2), "{name}: {time:?}");
    for head in [bytes, &bytes[..bytes.len().min(200)]] {
        if let Err(error) = read_audio_header(head, bytes.len() as u64) {
            assert_eq!(error.kind(), ErrorKind::BadSample, "{name}: {error}");
        }
    }
}

#[test]
fn cut_anywhere() {
    for (name, clip) in clips() {
        // Every byte of the first hundred, then some hundred others.
        let step = (clip.len() / 150).max(1) | 1;
        for at in (0..100).chain((100..clip.len()).step_by(step)) {
            for share in [0.02, 1.0] {
                survive(&name, &clip[..at.min(clip.len())], &DecodeAudio::new().max_lost_share(share));
            }
        }
    }
}

#[test]
fn flipped_anywhere() {
    let mut state = 1_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let op = DecodeAudio::new().max_lost_share(1.0);
    for (name, clip) in clips() {
        for round in 0..150 {
            let mut bytes = clip.clone();
            // Half of the rounds damage the header, where the effect is largest.
            let reach = if round % 2 == 0 { bytes.len().min(400) } else { bytes.len() };
            for _ in 0..=round % 5 {
                let at = below(reach);
                bytes[at] = if round % 3 == 0 { 0xFF } else { bytes[at] ^ 1 << below(8) };
            }
            survive(&name, &bytes, &op);
            let (from, to) = (below(bytes.len()), below(bytes.len()));
            bytes.copy_within(from.min(to)..from.max(to), 0);
            survive(&name, &bytes, &op);
        }
    }
}

/// Checksums protect the codebooks' parser from damage. Here they are right.
#[test]
fn forged_headers_of_ogg() {
    let mut state = 7_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let op = DecodeAudio::new().max_lost_share(1.0);
    for name in ["48k_mono.ogg", "44k_stereo.ogg", "16k_mono.oga"] {
        let clip = golden(name);
        for round in 0..300 {
            let mut bytes = clip.clone();
            for _ in 0..=round % 4 {
                bytes[below(if round % 2 == 0 { 300 } else { 4000 })] ^= 1 << below(8);
            }
            write_checksums(&mut bytes);
            survive(name, &bytes, &op);
        }
    }
    // Two setup headers: readers could disagree about which one counts.
    let clip = golden("48k_mono.ogg");
    let twice = [&clip[..], b"\x05vorbis"].concat();
    refuse(&twice, "setup header is damaged or missing");
}

fn write_checksums(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes[at..].starts_with(b"OggS") && bytes.len() - at > 27 + usize::from(bytes[at + 26]) {
        let lacing = &bytes[at + 27..at + 27 + usize::from(bytes[at + 26])];
        let end = at + 27 + lacing.len() + lacing.iter().map(|bytes| usize::from(*bytes)).sum::<usize>();
        if end > bytes.len() {
            return;
        }
        bytes[at + 22..at + 26].fill(0);
        let crc = bytes[at..end].iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte) << 24, |crc: u32, _| {
                crc << 1 ^ if crc >> 31 != 0 { 0x04C1_1DB7 } else { 0 }
            })
        });
        bytes[at + 22..at + 26].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}
