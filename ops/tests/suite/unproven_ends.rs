//! Audio clips whose container does not prove their end. Those that libsndfile decodes without an error are decoded here.

use std::path::PathBuf;

use feedstock_ops::audio::{DecodeAudio, decode_mono, read_audio_header};
use feedstock_ops::{ChainSpec, RaggedRow, SampleSeed, Scratch, Warning, decode_audio};

fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = ["tests", "golden", "audio", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Decodes without allowing any loss, and checks that the header states the same length.
fn decode(bytes: &[u8]) -> Vec<f32> {
    let (rate, samples) = decode_mono(bytes, &DecodeAudio::new().max_lost_share(0.0)).unwrap();
    let header = read_audio_header(bytes, bytes.len() as u64).unwrap();
    assert_eq!((header.sample_rate, header.samples), (rate, Some(samples.len() as u64)));
    samples
}

/// Returns the start of each page of an Ogg file, and the end of the last.
fn page_bounds(bytes: &[u8]) -> Vec<usize> {
    let mut bounds = vec![0];
    while let Some(segments) = bytes[*bounds.last().unwrap()..].get(26) {
        let at = bounds.last().unwrap() + 27;
        let lacing = &bytes[at..at + usize::from(*segments)];
        bounds.push(at + lacing.len() + lacing.iter().map(|bytes| usize::from(*bytes)).sum::<usize>());
    }
    bounds
}

/// Writes the checksum of a page.
fn write_checksum(page: &mut [u8]) {
    page[22..26].fill(0);
    let crc = page.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc: u32, _| {
            crc << 1 ^ if crc >> 31 != 0 { 0x04C1_1DB7 } else { 0 }
        })
    });
    page[22..26].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the file without its end-of-stream flag.
fn without_end_flag(clip: &[u8]) -> Vec<u8> {
    let (mut bytes, bounds) = (clip.to_vec(), page_bounds(clip));
    let last = &mut bytes[bounds[bounds.len() - 2]..];
    assert_eq!(last[5] & 4, 4, "the fixture marks its end");
    last[5] &= !4;
    write_checksum(last);
    bytes
}

#[test]
fn ogg_without_an_end_of_stream_flag() {
    for name in ["48k_mono.ogg", "44k_stereo.ogg", "16k_mono.oga", "48k_mono.opus"] {
        if name.ends_with("opus") && !cfg!(feature = "opus") {
            continue;
        }
        let clip = golden(name);
        let whole = decode(&clip);
        // The last page's position cuts off the encoder's padding, with or without the flag.
        let unmarked = without_end_flag(&clip);
        assert!(decode(&unmarked) == whole, "{name}");
        // Bytes after the last page are ignored.
        assert!(decode(&[&unmarked[..], &b"OggS and junk ".repeat(40)].concat()) == whole, "{name}");
    }
}

#[test]
fn ogg_cut_between_or_inside_pages() {
    // Lengths as libsndfile 1.2.2 decodes them.
    for (name, kept) in [("48k_mono.ogg", 27_840), ("44k_stereo.ogg", 27_456), ("48k_mono.opus", 47_688)] {
        if name.ends_with("opus") && !cfg!(feature = "opus") {
            continue;
        }
        let clip = golden(name);
        let (whole, bounds) = (decode(&clip), page_bounds(&clip));
        let before_last = bounds[bounds.len() - 2];
        let cut = decode(&clip[..before_last]);
        assert_eq!(cut.len(), kept, "{name}");
        assert!(cut[..] == whole[..kept], "{name}");
        let unmarked = without_end_flag(&clip);
        for end in [before_last + 1, before_last + 30, unmarked.len() - 1] {
            assert!(decode(&unmarked[..end]) == cut, "{name} cut at byte {end}");
        }
    }
}

/// Returns the file with this position at the end of its last page.
fn with_end(clip: &[u8], position: u64) -> Vec<u8> {
    let (mut bytes, bounds) = (clip.to_vec(), page_bounds(clip));
    let last = &mut bytes[bounds[bounds.len() - 2]..];
    last[6..14].copy_from_slice(&position.to_le_bytes());
    write_checksum(last);
    bytes
}

/// libsndfile and ffmpeg end such files with their last packet. A missing page is still a loss.
#[test]
fn ogg_whose_last_page_counts_more_than_its_packets_hold() {
    for name in ["48k_mono.ogg", "44k_stereo.ogg", "48k_mono.opus"] {
        if name.ends_with("opus") && !cfg!(feature = "opus") {
            continue;
        }
        let (clip, strict) = (golden(name), DecodeAudio::new().max_lost_share(0.0));
        let whole = decode(&clip);
        let end = whole.len() as u64;
        let decoded = |bytes: &[u8]| decode_mono(bytes, &strict).map(|(_, samples)| samples);
        let (some, more) = (with_end(&clip, end + 20_000), with_end(&clip, end + 30_000));
        let longer = decoded(&some).unwrap();
        // The end had cut off samples of the last packet.
        assert!(longer.starts_with(&whole) && longer.len() < whole.len() + 4_000, "{name}: {}", longer.len());
        assert!(decoded(&more).unwrap() == longer, "{name}");
        let bounds = page_bounds(&clip);
        let mut damaged = some.clone();
        damaged[bounds[bounds.len() - 3] + 40] ^= 1;
        decoded(&damaged).unwrap_err();
    }
}

#[test]
fn the_first_stream_of_an_ogg_chain_is_the_clip() {
    let (mono, stereo) = (golden("48k_mono.ogg"), golden("44k_stereo.ogg"));
    let first = decode(&mono);
    // Twice a stream with other channels and another rate, after the first stream.
    assert!(decode(&[&mono[..], &stereo, &stereo].concat()) == first);
    assert!(decode(&[&mono[..], &mono].concat()) == first);
    assert!(decode(&[&without_end_flag(&mono)[..], &stereo].concat()) == first);
}

#[test]
fn mp3_without_a_count_cut_inside_a_frame() {
    let clip = golden("48k_mono_untagged.mp3");
    let whole = decode(&clip);
    // 43 frames of 192 bytes: only whole frames count, as in libsndfile.
    for (end, frames) in [(clip.len() - 1, 42), (clip.len() - 150, 42), (20 * 192 + 100, 20)] {
        let cut = decode(&clip[..end]);
        assert!(cut[..] == whole[..frames * 1152], "{} samples up to byte {end}", cut.len());
    }
}

#[test]
fn mp3_with_a_count_of_zero() {
    let clip = golden("48k_mono_vbri.mp3");
    let at = clip.windows(4).position(|four| four == b"VBRI").unwrap() + 14;
    let mut uncounted = clip.clone();
    uncounted[at..at + 4].fill(0);
    assert!(decode(&uncounted) == decode(&clip));
}

#[test]
fn wav_with_a_wrong_block_alignment() {
    // Lengths as libsndfile 1.2.2 decodes them. It computes the alignment from channels and bits.
    for name in ["8k_s16.wav", "8k_s24.wav", "8k_f32.wav"] {
        let clip = golden(name);
        let whole = decode(&clip);
        for wrong in [0, 1, 7] {
            let mut misaligned = clip.clone();
            misaligned[32..34].copy_from_slice(&[wrong, 0]);
            assert!(decode(&misaligned) == whole, "{name} with a block alignment of {wrong}");
        }
    }
}

#[test]
fn mp3_with_a_count_cut_inside_its_padding() {
    // The cut frame has 277 samples of audio, 0.6 %, and 875 of the encoder's padding.
    let clip = golden("44k_stereo_vbr.mp3");
    let (_, whole) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let (_, cut) = decode_mono(&clip[..clip.len() - 1], &DecodeAudio::new()).unwrap();
    assert_eq!(cut.len(), whole.len());
    assert!(cut[..whole.len() - 277] == whole[..whole.len() - 277]);
    let error = decode_mono(&clip[..clip.len() - 1], &DecodeAudio::new().max_lost_share(0.0)).unwrap_err();
    assert!(error.message().contains("0.01 s of 1.00 s are lost (0.6 %)"), "{error}");
}

#[test]
fn adts_cut_inside_a_frame() {
    let clip = golden("16k_mono.aac");
    let whole = decode(&clip);
    for missing in [1, 100] {
        let cut = decode(&clip[..clip.len() - missing]);
        assert_eq!(cut.len(), whole.len() - 1024);
        assert!(cut[..] == whole[..cut.len()]);
    }
}

#[test]
fn warnings_name_what_the_container_cannot_prove() {
    let chain = ChainSpec::from([decode_audio()]).compile().unwrap();
    let (mut scratch, mut row) = (Scratch::new(), RaggedRow::new());
    let mut warnings = |bytes: &[u8]| {
        chain.apply_ragged(bytes, SampleSeed::new(1, 0, 0), &mut scratch, &mut row).unwrap();
        let warnings: Vec<Warning> = scratch.take_warnings().iter().collect();
        assert!(scratch.take_warnings().is_empty(), "they are taken once");
        warnings
    };
    let proven = ["48k_mono.ogg", "48k_mono_64.mp3", "48k_mono_vbri.mp3", "44k_stereo.flac", "8k_s16.wav"];
    for name in proven.into_iter().chain(["44k_stereo.m4a", "16k_mono.oga"]) {
        assert_eq!(warnings(&golden(name)), [], "{name}");
    }
    let mono = golden("48k_mono.ogg");
    let mut endless = golden("8k_s16.wav");
    endless[40..44].fill(0xFF);
    for clip in [
        without_end_flag(&mono),
        golden("48k_mono_untagged.mp3"),
        golden("16k_mono.aac"),
        golden("16k_mono.aac")[..2900].to_vec(),
        endless,
    ] {
        assert_eq!(warnings(&clip), [Warning::EndUnknown]);
    }
    assert_eq!(warnings(&[&mono[..], &mono].concat()), [Warning::LaterStreams]);
    assert_eq!(
        warnings(&[&without_end_flag(&mono)[..], &mono].concat()),
        [Warning::EndUnknown, Warning::LaterStreams]
    );
    assert_eq!(
        (Warning::EndUnknown.as_str(), Warning::LaterStreams.to_string()),
        ("end_unknown", "later_streams".into())
    );
}

/// Returns the file with its pages changed: `change` gets each page's number and the page.
fn with_pages(clip: &[u8], order: &[usize], mut change: impl FnMut(u32, &mut [u8])) -> Vec<u8> {
    let bounds = page_bounds(clip);
    let mut bytes = Vec::new();
    for (number, index) in (0..).zip(order) {
        let mut page = clip[bounds[*index]..bounds[index + 1]].to_vec();
        change(number, &mut page);
        write_checksum(&mut page);
        bytes.extend(page);
    }
    bytes
}

#[test]
fn vorbis_whose_counts_of_samples_jump_has_no_gap() {
    // As in libsndfile 1.2.2 and ffmpeg 5.1: the counts are wrong, but no page is missing.
    let clip = golden("44k_stereo.ogg");
    let (_, whole) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    for (first, by, length) in [(2, 63, 39_690), (3, 63, 39_690), (3, -63, 39_627), (3, -448, 39_242)] {
        let jumping = with_pages(&clip, &[0, 1, 2, 3, 4], |number, page| {
            if number >= first {
                let samples = i64::from_le_bytes(page[6..14].try_into().unwrap()) + by;
                page[6..14].copy_from_slice(&samples.to_le_bytes());
            }
        });
        let (_, samples) = decode_mono(&jumping, &DecodeAudio::new().max_lost_share(0.0)).unwrap();
        assert_eq!(samples.len(), length, "by {by} from page {first} on");
        assert!(samples == whole[..length], "by {by} from page {first} on");
    }
    // If a page is missing, the jump is a loss, which becomes silence.
    let lost = with_pages(&clip, &[0, 1, 2, 4], |_, _| {});
    assert!(decode_mono(&lost, &DecodeAudio::new().max_lost_share(0.0)).is_err());
}

#[test]
fn vorbis_with_repeated_headers() {
    // As in libsndfile 1.2.2.
    let clip = golden("44k_stereo.ogg");
    let repeated = with_pages(&clip, &[0, 1, 0, 1, 2, 3, 4], |number, page| {
        page[18..22].copy_from_slice(&number.to_le_bytes());
        if number == 2 {
            page[5] = 0; // it does not begin a stream
        }
    });
    assert!(decode(&repeated) == decode(&clip));
}
