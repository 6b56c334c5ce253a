//! Codecs that are recognised and not decoded are named, by the header alone and when decoding fails.

use feedstock_ops::ErrorKind;
use feedstock_ops::audio::{AudioFormat, DecodeAudio, decode_mono, read_audio_header, unsupported_codec};

fn mp4_box(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(8 + content.len()).unwrap();
    [&size.to_be_bytes(), &name[..], content].concat()
}

/// An MP4 whose only track has this sample entry.
fn mp4(entry: &[u8; 4], inside: &[u8]) -> Vec<u8> {
    mp4_of(&[track(entry, inside)])
}

fn mp4_of(tracks: &[Vec<u8>]) -> Vec<u8> {
    let ftyp = mp4_box(b"ftyp", b"M4A \0\0\0\0M4A ");
    [ftyp, mp4_box(b"moov", &tracks.concat()), mp4_box(b"mdat", &[7; 64])].concat()
}

/// An audio track with this sample entry: one packet of 1,600 samples at 16 kHz.
fn track(entry: &[u8; 4], inside: &[u8]) -> Vec<u8> {
    let sound = [&[0; 8][..], &[0, 1, 0, 16, 0, 0, 0, 0], &16_000_u32.to_be_bytes()[2..], &[0, 0]].concat();
    let entry = mp4_box(entry, &[&[0, 0, 0, 0, 0, 0, 0, 1][..], &sound, inside].concat());
    let stsd = mp4_box(b"stsd", &[&[0, 0, 0, 0, 0, 0, 0, 1][..], &entry].concat());
    let stts =
        mp4_box(b"stts", &[&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &1600_u32.to_be_bytes()].concat());
    let minf = mp4_box(b"minf", &mp4_box(b"stbl", &[stsd, stts].concat()));
    let mdhd = mp4_box(
        b"mdhd",
        &[&[0; 12][..], &16_000_u32.to_be_bytes(), &1600_u32.to_be_bytes(), &[0; 4]].concat(),
    );
    let hdlr = mp4_box(b"hdlr", &[&[0; 8][..], b"soun", &[0; 13]].concat());
    mp4_box(b"trak", &mp4_box(b"mdia", &[mdhd, hdlr, minf].concat()))
}

/// An `esds` box with this object type and AudioSpecificConfig.
fn esds(object: u8, config: &[u8]) -> Vec<u8> {
    let tagged = |kind: u8, content: &[u8]| [&[kind, u8::try_from(content.len()).unwrap()], content].concat();
    let decoder = tagged(4, &[&[object, 0x15][..], &[0; 11], &tagged(5, config)].concat());
    mp4_box(b"esds", &[&[0; 4][..], &tagged(3, &[&[0, 1, 0][..], &decoder].concat())].concat())
}

fn wav(kind: u16, bits: u16) -> Vec<u8> {
    let fields = [
        &kind.to_le_bytes()[..],
        &1_u16.to_le_bytes(),
        &16_000_u32.to_le_bytes(),
        &32_000_u32.to_le_bytes(),
        &2_u16.to_le_bytes(),
        &bits.to_le_bytes(),
    ]
    .concat();
    let chunks = [b"JUNK\x03\0\0\0abc\0fmt \x10\0\0\0", &fields[..], b"data\x40\0\0\0", &[0; 64]].concat();
    [b"RIFF\0\0\0\0WAVE", &chunks[..]].concat()
}

/// `frames` frames of `bytes` bytes, each with this header.
fn frames(header: [u8; 4], bytes: usize, frames: usize) -> Vec<u8> {
    let mut frame = header.to_vec();
    frame.resize(bytes, 0x55);
    frame.repeat(frames)
}

fn named() -> Vec<(&'static str, Vec<u8>)> {
    // Opus of six channels; the first page alone is read.
    let mut opus = std::fs::read("tests/golden/audio/48k_mono.opus").unwrap();
    let head = opus.windows(8).position(|eight| eight == b"OpusHead").unwrap();
    opus[head + 9] = 6;
    // AAC-LC of 5.1 channels at 44.1 kHz in frames of 64 bytes.
    let mut adts = vec![0xFF, 0xF1, 0x51, 0x80, 0x08, 0x1F, 0xFC];
    adts.resize(64, 0x55);
    let padded = |magic: &[u8]| [magic, &[0x55; 300]].concat();
    vec![
        ("ALAC", mp4(b"alac", &[])),
        ("AMR-NB", mp4(b"samr", &[])),
        ("HE-AAC", mp4(b"mp4a", &esds(0x40, &[0x2B, 0x92, 0x08, 0x00]))),
        ("HE-AAC v2", mp4(b"mp4a", &esds(0x40, &[0xEB, 0x8A, 0x08, 0x00]))),
        ("xHE-AAC", mp4(b"mp4a", &esds(0x40, &[0xF9, 0x46, 0x40, 0x00]))),
        ("MP3 in MP4", mp4(b"mp4a", &esds(0x6B, &[]))),
        ("AAC of more than two channels", mp4(b"mp4a", &esds(0x40, &[0x14, 0x30]))),
        ("Opus of more than two channels", opus),
        ("AAC of more than two channels", adts.repeat(9)),
        ("Microsoft ADPCM", wav(2, 4)),
        ("IMA ADPCM", wav(0x11, 4)),
        ("GSM 6.10", wav(0x31, 0)),
        ("PCM of an unsupported depth in WAV", wav(1, 64)),
        ("WMA", padded(&[0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11])),
        ("AMR-WB", padded(b"#!AMR-WB\n")),
        ("AIFF", padded(b"FORM\0\0\x01\0AIFFCOMM")),
        ("WavPack", padded(b"wvpk")),
        ("Matroska or WebM", padded(&[0x1A, 0x45, 0xDF, 0xA3])),
        // MPEG-1 layer II, 128 kbit/s at 48 kHz; layer I, 128 kbit/s at 32 kHz; MPEG-2 layer II, 64 kbit/s at 16 kHz.
        ("MPEG audio layer II (MP2)", frames([0xFF, 0xFD, 0x84, 0xC0], 384, 9)),
        ("MPEG audio layer I", frames([0xFF, 0xFF, 0x48, 0xC0], 192, 9)),
        ("MPEG audio layer II (MP2)", frames([0xFF, 0xF5, 0x88, 0xC0], 576, 9)),
    ]
}

#[test]
fn a_codec_that_is_not_decoded_is_named_by_header_and_error() {
    for (codec, bytes) in named() {
        assert_eq!(unsupported_codec(&bytes), Some(codec));
        let error = decode_mono(&bytes, &DecodeAudio::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSample);
        let expected = format!("the audio clip's codec is {codec}, which feedstock does not decode");
        assert!(error.message().contains(&expected), "{codec}: {error}");
        // A cut header must not be named as anything else.
        for bytes in (0..bytes.len().min(600)).map(|end| &bytes[..end]) {
            assert!(unsupported_codec(bytes).is_none_or(|cut| cut == codec || cut == "AMR-NB"), "{codec}");
        }
    }
}

#[test]
fn alac_in_mp4_is_not_catalogued_as_aac_and_keeps_its_duration() {
    let bytes = mp4(b"alac", &[]);
    let header = read_audio_header(&bytes, bytes.len() as u64).unwrap();
    assert_eq!(header.format, AudioFormat::Unsupported("ALAC"));
    assert_eq!((header.format.to_string().as_str(), header.seconds()), ("ALAC", Some(0.1)));
}

#[test]
fn an_mp4_with_a_track_that_is_decoded_is_not_named() {
    let aac = || track(b"mp4a", &esds(0x40, &[0x14, 0x08]));
    for tracks in [[track(b"dtsc", &[]), aac()], [aac(), track(b"enca", &[])]] {
        assert_eq!(unsupported_codec(&mp4_of(&tracks)), None);
    }
    assert_eq!(unsupported_codec(&mp4_of(&[track(b"dtsc", &[]), track(b"alac", &[])])), Some("DTS"));
}

#[test]
fn nothing_that_decodes_is_named() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/audio");
    let mut decoded = 0;
    for file in std::fs::read_dir(golden).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        if decode_mono(&bytes, &DecodeAudio::default()).is_ok() {
            decoded += 1;
            for head in [bytes.len(), 16 << 10, 4 << 10] {
                assert_eq!(unsupported_codec(&bytes[..bytes.len().min(head)]), None);
            }
        }
    }
    assert!(decoded > 10, "{decoded} golden files decode");
    assert_eq!(unsupported_codec(&mp4(b"mp4a", &esds(0x40, &[0x14, 0x08]))), None, "AAC-LC in mono");
    assert_eq!(unsupported_codec(b""), None);
    assert_eq!(unsupported_codec(&[0xFF; 4096]), None);
}
