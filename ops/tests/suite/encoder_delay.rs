//! Audio clips begin after the delay of their encoder: those of FAAC (AAC) and LAME (MP3), as in ffmpeg.

use crate::hostile::m4a_of_packets;
use crate::support::golden;
use feedstock_ops::audio::{AudioHeader, DecodeAudio, decode_mono, read_audio_header};

const ADTS_HEADER_BYTES: usize = 7;

/// FAAC writes the first 143 bits of these bytes before the first channel.
const NAME: &[u8; 18] = b"\xDE\x04\0\0libfaac 1.28\0\0";

/// Returns the packets of an ADTS stream.
fn packets(clip: &[u8]) -> Vec<&[u8]> {
    let (mut at, mut packets) = (0, Vec::new());
    while let Some(header) = clip.get(at..at + ADTS_HEADER_BYTES) {
        let bytes =
            usize::from(header[3] & 3) << 11 | usize::from(header[4]) << 3 | usize::from(header[5] >> 5);
        packets.push(&clip[at + ADTS_HEADER_BYTES..at + bytes]);
        at += bytes;
    }
    packets
}

/// Returns `packet` with the 143 bits of `name` before it. Bits after a packet's end element have no meaning.
fn named(packet: &[u8], name: &[u8; 18]) -> Vec<u8> {
    let mut out = name.to_vec();
    for byte in packet {
        // The last bit of the bytes so far is the first of the next byte.
        *out.last_mut().unwrap() |= byte >> 7;
        out.push(byte << 1);
    }
    out
}

/// Returns an ADTS stream with the header of `clip` before each packet.
fn adts(clip: &[u8], packets: &[&[u8]]) -> Vec<u8> {
    let frame = |packet: &&[u8]| {
        let bytes = packet.len() + ADTS_HEADER_BYTES;
        let mut header: [u8; ADTS_HEADER_BYTES] = clip[..ADTS_HEADER_BYTES].try_into().unwrap();
        header[3] = header[3] & !3 | (bytes >> 11) as u8;
        header[4] = (bytes >> 3) as u8;
        header[5] = header[5] & 0x1F | (bytes << 5) as u8;
        [&header[..], packet].concat()
    };
    packets.iter().flat_map(frame).collect()
}

fn decode(clip: &[u8]) -> Vec<f32> {
    let (rate, samples) = decode_mono(clip, &DecodeAudio::new()).unwrap();
    assert_eq!(rate, 16_000);
    samples
}

fn header(clip: &[u8], bytes: usize) -> AudioHeader {
    read_audio_header(&clip[..bytes], clip.len() as u64).unwrap()
}

#[test]
fn the_delay_of_faac_is_left_out() {
    let clip = golden("audio/16k_mono.aac");
    let (packets, plain) = (packets(&clip), decode(&clip));
    let by_faac = named(packets[0], NAME);
    let mut other_name = *NAME;
    other_name[7] = b'x';
    let by_another = named(packets[0], &other_name);
    for (first, expected) in [(&by_faac, &plain[1024..]), (&by_another, &plain[..])] {
        let packets: Vec<&[u8]> = std::iter::once(&first[..]).chain(packets[1..].iter().copied()).collect();
        for (container, clip) in [("ADTS", adts(&clip, &packets)), ("MP4", m4a_of_packets(&packets))] {
            assert!(decode(&clip) == expected, "{container}: the samples differ");
            let whole = header(&clip, clip.len());
            assert_eq!((whole.samples, whole.exact), (Some(expected.len() as u64), true), "{container}");
        }
    }
}

/// A later frame with the name is in the middle of an audio clip, not at its start.
#[test]
fn the_name_in_a_later_frame_is_no_delay() {
    let clip = golden("audio/16k_mono.aac");
    let (mut packets, plain) = (packets(&clip), decode(&clip));
    let second = named(packets[1], NAME);
    packets[1] = &second;
    assert!(decode(&adts(&clip, &packets)) == plain);
    assert!(decode(&m4a_of_packets(&packets)) == plain);
}

#[test]
fn a_length_is_exact_only_if_the_first_packet_was_read() {
    let clip = golden("audio/16k_mono.aac");
    let mut packets = packets(&clip);
    let first = named(packets[0], NAME);
    packets[0] = &first;
    let samples = packets.len() as u64 * 1024;
    let clip = m4a_of_packets(&packets);
    let audio_at = clip.windows(4).position(|name| name == b"mdat").unwrap() + 4;
    let cut = header(&clip, audio_at);
    assert_eq!((cut.samples, cut.exact), (Some(samples), false));
    let read = header(&clip, audio_at + 512);
    assert_eq!((read.samples, read.exact), (Some(samples - 1024), true));
}

/// The bytes of the frames of `48k_mono_64.mp3`: its tag, then audio.
const MP3_FRAME_BYTES: usize = 192;

/// Returns the tag and the first `frames` frames of an MP3, with this encoder's delay and padding.
fn mp3_of(frames: u8, gaps: Option<(u32, u32)>) -> Vec<u8> {
    let mut clip = golden("audio/48k_mono_64.mp3");
    clip.truncate(MP3_FRAME_BYTES * (usize::from(frames) + 1));
    let place = |name: &[u8]| clip.windows(name.len()).position(|bytes| bytes == name).unwrap();
    let (count_at, encoder_at) = (place(b"Info") + 8, place(b"LAME"));
    clip[count_at..count_at + 4].copy_from_slice(&u32::from(frames).to_be_bytes());
    match gaps {
        Some((delay, padding)) => {
            let packed = (delay << 12 | padding).to_be_bytes();
            clip[encoder_at + 21..encoder_at + 24].copy_from_slice(&packed[1..]);
        }
        None => clip[encoder_at] = b'x',
    }
    clip
}

/// The ranges are those of ffmpeg 5.1. libsndfile refuses all but the third, whose delay and padding do not overlap.
#[test]
fn delay_and_padding_that_overlap_leave_what_ffmpeg_leaves() {
    let strict = DecodeAudio::new().max_lost_share(0.0);
    let samples = |clip: &[u8]| decode_mono(clip, &strict).map(|(_, samples)| samples);
    for (frames, delay, padding, kept) in
        [(3, 1105, 2485, 1152..1500), (2, 576, 1729, 1105..1152), (3, 1105, 2000, 1634..1985)]
    {
        let plain = samples(&mp3_of(frames, None)).unwrap();
        let clip = mp3_of(frames, Some((delay, padding)));
        assert!(samples(&clip).unwrap() == plain[kept.clone()], "{delay} and {padding}");
        let header = read_audio_header(&clip, clip.len() as u64).unwrap();
        assert_eq!((header.samples, header.exact), (Some(kept.len() as u64), true), "{delay} and {padding}");
    }
    for (delay, padding) in [(700, 2833), (1105, 4000)] {
        samples(&mp3_of(3, Some((delay, padding)))).unwrap_err(); // ffmpeg returns nothing
    }
}
