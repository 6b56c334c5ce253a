//! Compares audio clips of every format with ffmpeg's decoding (`golden/make_audio_decode_references.py`), and reads their
//! headers.

use std::path::PathBuf;

use feedstock_ops::audio::{AudioFormat, DecodeAudio, decode_mono, leading_tag_bytes, read_audio_header};

fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = ["tests", "golden", "audio", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Reference {
    name: String,
    sample_rate: u32,
    samples: usize,
    /// Every `STRIDE`-th sample.
    values: Vec<f32>,
}

const STRIDE: usize = 29;

fn references() -> Vec<Reference> {
    let index: serde_json::Value = serde_json::from_slice(&golden("references.json")).unwrap();
    assert_eq!(index["stride"], STRIDE);
    let bytes = golden("references.f32");
    let all: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let clips = index["clips"].as_object().unwrap();
    clips
        .iter()
        .filter(|(name, _)| cfg!(feature = "opus") || !name.ends_with(".opus"))
        .map(|(name, clip)| {
            let field = |key: &str| clip[key].as_u64().unwrap() as usize;
            let (at, samples) = (field("at"), field("samples"));
            let values = all[at..at + samples.div_ceil(STRIDE)].to_vec();
            Reference { name: name.clone(), sample_rate: field("sample_rate") as u32, samples, values }
        })
        .collect()
}

/// Returns the error's power relative to the signal's, in dB.
fn error_db(ours: &[f32], theirs: &[f32]) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let pairs = ours.iter().zip(theirs);
    let error = power(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)));
    10.0 * ((error + 1e-30) / power(&mut theirs.iter().map(|x| f64::from(*x)))).log10()
}

#[test]
fn every_format_decodes_as_in_ffmpeg() {
    let references = references();
    assert!(references.len() >= 25);
    for Reference { name, sample_rate, samples, values } in references {
        let (rate, ours) = decode_mono(&golden(&name), &DecodeAudio::new()).unwrap();
        assert_eq!(rate, sample_rate, "{name}");
        // The edit list and the last frame's duration state exactly 0.8 s; ffmpeg keeps the last frame's padding.
        let expected = if name.ends_with(".m4a") { rate as usize * 8 / 10 } else { samples };
        assert_eq!(ours.len(), expected, "{name}: samples");
        let kept: Vec<f32> = ours.iter().step_by(STRIDE).copied().collect();
        let error = error_db(&kept, &values[..kept.len()]);
        let limit = match name.rsplit_once('.').unwrap().1 {
            "wav" | "flac" | "oga" => -140.0, // exact, except for the mean's rounding
            _ => -90.0,
        };
        println!("{name}: {error:.1} dB");
        assert!(error < limit, "{name}: {error:.1} dB");
    }
}

#[test]
fn headers_tell_what_decoding_gives() {
    for Reference { name, sample_rate, .. } in references() {
        let clip = golden(&name);
        let (_, decoded) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
        let whole = read_audio_header(&clip, clip.len() as u64).unwrap();
        assert_eq!((whole.sample_rate, whole.samples), (sample_rate, Some(decoded.len() as u64)), "{name}");
        assert!(whole.exact, "{name}");
        let stereo = ["stereo", "s16.", "s32.", "mulaw"].iter().any(|word| name.contains(word));
        let channels = if name.contains("six") { 6 } else { 1 + u32::from(stereo) };
        assert_eq!(whole.channels, channels, "{name}");
        let format = match name.rsplit_once('.').unwrap().1 {
            "mp3" => AudioFormat::Mp3,
            "flac" | "oga" => AudioFormat::Flac,
            "ogg" => AudioFormat::Vorbis,
            "opus" => AudioFormat::Opus,
            "wav" => AudioFormat::Wav,
            _ => AudioFormat::Aac,
        };
        assert_eq!(whole.format, format, "{name}");

        let head = read_audio_header(&clip[..clip.len().min(4096)], clip.len() as u64).unwrap();
        assert_eq!(head.format, format, "{name}");
        if head.exact {
            assert_eq!(head.samples, whole.samples, "{name}");
        } else if let Some(samples) = head.samples {
            let off = samples as f64 / decoded.len() as f64;
            assert!((0.9..1.1).contains(&off), "{name}: estimated {samples} of {}", decoded.len());
        }
    }
}

#[test]
fn the_first_bytes_are_enough() {
    let exact = |name: &str, bytes: usize| {
        let clip = golden(name);
        let header = read_audio_header(&clip[..bytes], clip.len() as u64).unwrap();
        (header.samples, header.exact)
    };
    assert_eq!(exact("48k_mono_64.mp3", 600), (Some(57_600), true));
    assert_eq!(exact("44k_stereo_vbr.mp3", 2000), (Some(44_100), true));
    assert_eq!(exact("44k_stereo.flac", 64), (Some(4410), true));
    assert_eq!(exact("8k_s16.wav", 64), (Some(960), true));
    assert_eq!(exact("48k_mono.ogg", 300), (None, false));
    assert_eq!(exact("44k_stereo.m4a", 2500), (Some(35_280), true));
    // The header is after the audio: only the format is known.
    let clip = golden("48k_mono.m4a");
    let header = read_audio_header(&clip[..2500], clip.len() as u64).unwrap();
    assert_eq!((header.samples, header.seconds(), header.sample_rate), (None, None, 0));
    // A constant bit rate without a count.
    let (samples, exact) = exact("48k_mono_untagged.mp3", 2000);
    assert!(!exact && samples.unwrap().abs_diff(49_536) < 1152, "{samples:?}");
}

#[test]
fn megabytes_of_tags_are_skipped() {
    for name in ["48k_mono_64.mp3", "44k_stereo.flac", "16k_mono.aac"] {
        let clip = golden(name);
        let size = 5_u32 << 20;
        let mut tagged = b"ID3\x04\0\0".to_vec();
        tagged.extend([21, 14, 7, 0].map(|shift| (size >> shift & 0x7F) as u8));
        tagged.resize(10 + size as usize, 0xFF); // looks like frames
        tagged.extend_from_slice(&clip);
        let plain = decode_mono(&clip, &DecodeAudio::new()).unwrap();
        assert_eq!(decode_mono(&tagged, &DecodeAudio::new()).unwrap(), plain, "{name}");
        let tags = leading_tag_bytes(&tagged[..10]);
        assert_eq!(tags, 10 + u64::from(size));
        let head = read_audio_header(&tagged, tagged.len() as u64).unwrap();
        assert_eq!(head.samples, Some(plain.1.len() as u64));
        let error = read_audio_header(&tagged[..4096], tagged.len() as u64).unwrap_err();
        assert!(error.message().contains("ID3 tags"), "{error}");
        let behind = &tagged[tags as usize..][..1000.min(clip.len())];
        let left = tagged.len() as u64 - tags;
        assert_eq!(read_audio_header(behind, left).unwrap().sample_rate, head.sample_rate);
    }
}

#[test]
fn tags_behind_the_audio_are_no_garbage() {
    let clip = golden("48k_mono_untagged.mp3");
    let plain = decode_mono(&clip, &DecodeAudio::new().max_lost_share(0.0)).unwrap();
    let mut id3 = b"TAG".to_vec();
    id3.resize(128, b' ');
    let mut ape = b"APETAGEX\xd0\x07\0\0".to_vec();
    ape.resize(2000, 0xFF);
    let both = [&ape[..], &id3].concat();
    for tag in [&id3[..], &ape, &both, &[0; 4000], b"LYRICSBEGIN...LYRICS200"] {
        let tagged = [&clip[..], tag].concat();
        assert_eq!(decode_mono(&tagged, &DecodeAudio::new().max_lost_share(0.0)).unwrap(), plain);
    }
    let flac = golden("44k_stereo.flac");
    let tagged = [&flac[..], &id3].concat();
    let strict = DecodeAudio::new().max_lost_share(0.0);
    assert_eq!(decode_mono(&tagged, &strict).unwrap(), decode_mono(&flac, &strict).unwrap());
}

#[test]
fn an_appended_file_is_heard_without_its_tag() {
    let clip = golden("48k_mono_64.mp3");
    let (_, once) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let (_, twice) = decode_mono(&[&clip[..], &clip].concat(), &DecodeAudio::new()).unwrap();
    // 51 frames each, minus the first file's delay (576 + 529) and padding (576 − 529).
    assert_eq!(twice.len(), 102 * 1152 - 1105 - 47);
    assert_eq!(twice[..57_600], once);
    // The second file keeps its delay, and its decoder starts in the state that the first left.
    let second = &twice[57_600 + 1105..][..57_600];
    assert!(error_db(&second[2000..], &once[2000..]) < -60.0);
}

#[test]
fn stereo_is_the_mean_of_its_channels() {
    let wav = |channels: u16, samples: &[i16]| {
        let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0".to_vec();
        bytes.extend(channels.to_le_bytes());
        bytes.extend(16_000_u32.to_le_bytes());
        bytes.extend((32_000 * u32::from(channels)).to_le_bytes());
        bytes.extend((2 * channels).to_le_bytes());
        bytes.extend(16_u16.to_le_bytes());
        bytes.extend(b"data");
        bytes.extend((samples.len() as u32 * 2).to_le_bytes());
        bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        bytes
    };
    let decode = |bytes: &[u8]| decode_mono(bytes, &DecodeAudio::new()).unwrap().1;
    assert_eq!(decode(&wav(1, &[16_384, -32_768])), [0.5, -1.0]);
    assert_eq!(decode(&wav(2, &[16_384, 0, -32_768, -32_768])), [0.25, -1.0]);
    assert_eq!(decode(&wav(4, &[16_384, 0, 8192, 0])), [0.1875]);
    // The writer did not know the length.
    for size in [0, u32::MAX, 0x7FFF_FFFF] {
        let mut endless = wav(1, &[16_384, -32_768]);
        endless[40..44].copy_from_slice(&size.to_le_bytes());
        assert_eq!(decode(&endless), [0.5, -1.0]);
    }
}
