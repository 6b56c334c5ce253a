//! Files that are made to cost much: small, valid as far as decoders read them, and expensive to decode.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::iter::repeat_n;
use std::time::Duration;

/// Returns the CPU time that this thread has used, without other work of the machine.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time of this thread for `work`.
pub fn cpu_time(work: impl FnOnce()) -> Duration {
    let before = thread_time();
    work();
    thread_time() - before
}

fn segment(out: &mut Vec<u8>, marker: u8, body: &[u8]) {
    out.extend([0xFF, marker]);
    out.extend((body.len() as u16 + 2).to_be_bytes());
    out.extend(body);
}

/// Returns a grey progressive JPEG of `side`² px without subsampling. After the DC scan, it has up to 567 scans of AC
/// coefficients that are all 0. Each is a valid first or refining scan.
pub fn progressive(side: u16, scans: usize) -> Vec<u8> {
    let mut out = vec![0xFF, 0xD8];
    segment(&mut out, 0xDB, &[&[0][..], &[1; 64]].concat());
    let [h, w] = [side.to_be_bytes(); 2];
    segment(&mut out, 0xC2, &[8, h[0], h[1], w[0], w[1], 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    let one_code = |class: u8, symbol: u8| [&[class, 1][..], &[0; 15], &[symbol]].concat();
    // DC: no difference. AC: this block and some thousands that follow end here (EOB14).
    segment(&mut out, 0xC4, &one_code(0x00, 0));
    segment(&mut out, 0xC4, &one_code(0x10, 0xE0));
    let blocks = usize::from(side).div_ceil(8).pow(2);
    segment(&mut out, 0xDA, &[3, 1, 0, 2, 0, 3, 0, 0, 0, 0]);
    out.extend(repeat_n(0, (3 * blocks).div_ceil(8)));
    let kinds = (1..4_u8).flat_map(|component| (1..64_u8).map(move |band| (component, band)));
    let kinds = kinds.flat_map(|(component, band)| [0x02, 0x21, 0x10].map(|bits| (component, band, bits)));
    let run = blocks_without_coefficients(blocks);
    for (component, band, bits) in kinds.take(scans - 1) {
        segment(&mut out, 0xDA, &[1, component, 0, band, band, bits]);
        out.extend(&run);
    }
    out.extend([0xFF, 0xD9]);
    out
}

/// Returns the entropy-coded data of `blocks` blocks: a code of one bit, 0, then 14 bits for the number of ended blocks
/// beyond 2¹⁴.
fn blocks_without_coefficients(mut blocks: usize) -> Vec<u8> {
    let (mut bytes, mut held, mut count) = (Vec::new(), 0_u32, 0);
    let mut put = |value: u32, bits: u32| {
        (held, count) = (held << bits | value, count + bits);
        while count >= 8 {
            count -= 8;
            let byte = (held >> count) as u8;
            bytes.push(byte);
            if byte == 0xFF {
                bytes.push(0);
            }
            held &= (1 << count) - 1;
        }
    };
    while blocks > 0 {
        // A run of at least 2¹⁴ blocks. The rest is a run that ends with the scan.
        let run = blocks.clamp(1 << 14, (1 << 15) - 1);
        put(0, 1);
        put((run - (1 << 14)) as u32, 14);
        blocks = blocks.saturating_sub(run);
    }
    put(0x7F, 7);
    bytes
}

/// Returns headers of MP3 frames of 1440 bytes, each of which ends in the `zeros` bytes of padding, and a last byte that is
/// not 0.
pub fn mp3_headers_and_padding(zeros: usize) -> Vec<u8> {
    let mut out = [0xFF, 0xFB, 0xE8, 0xC0].repeat(360);
    out.extend(repeat_n(0, zeros));
    out.push(1);
    out
}

/// Returns the first page, then nested page marks, each of which claims to be long.
pub fn ogg_of_marks(first_page: &[u8], marks: usize) -> Vec<u8> {
    let mut mark = b"OggS".to_vec();
    mark.extend([0; 2]);
    mark.extend([0xFF; 21]);
    let mut out = first_page.to_vec();
    out.extend(mark.repeat(marks));
    out
}

/// Returns a FLAC file: `head`, the first 42 bytes of a file of 24 bits and one channel at 16 kHz, then a long frame with
/// noise, then `headers` headers and nothing else.
pub fn flac_of_headers(head: &[u8], headers: usize) -> Vec<u8> {
    let mut out = head.to_vec();
    out[4] |= 0x80; // the last block
    // Blocks of 4096 samples, without the frames' sizes.
    out[8..18].copy_from_slice(&[0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    let frame = |number: u8| {
        let mut header = vec![0xFF, 0xF8, 0xC5, 0x0C, number];
        header.push(header.iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ byte, |crc: u8, _| crc << 1 ^ if crc & 0x80 != 0 { 0x07 } else { 0 })
        }));
        header
    };
    for number in 0..4 {
        let start = out.len();
        out.extend(frame(number));
        out.extend(repeat_n(0x55, 32 << 10));
        let crc = out[start..].iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
                crc << 1 ^ if crc & 0x8000 != 0 { 0x8005 } else { 0 }
            })
        });
        out.extend(crc.to_be_bytes());
    }
    out.extend(frame(100).repeat(headers));
    out
}

fn mp4_box(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32 + 8).to_be_bytes()[..], name, content].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns an M4A of AAC-LC, one channel at 16 kHz, with the caller's tables in each of N equal tracks, and `rest` after
/// `moov`.
fn m4a(tables: &[u8], tracks: usize, extends: &[u8], rest: &[u8]) -> Vec<u8> {
    let config = [0x14, 0x08];
    let codec =
        [&[0, 0, 0, 0, 3, 25, 0, 0, 0, 4, 17, 0x40, 0x15][..], &[0; 11], &[5, 2], &config, &[6, 1, 2]];
    let esds = mp4_box(b"esds", &codec.concat());
    let entry =
        [&[0; 6][..], &[0, 1], &[0; 8], &[0, 1, 0, 16], &[0; 4], &words(&[16_000 << 16]), &esds].concat();
    let stsd = mp4_box(b"stsd", &[words(&[0, 1]), mp4_box(b"mp4a", &entry)].concat());
    let stbl = mp4_box(b"stbl", &[&stsd, tables].concat());
    let dinf =
        mp4_box(b"dinf", &mp4_box(b"dref", &[words(&[0, 1]), mp4_box(b"url ", &words(&[1]))].concat()));
    let smhd = mp4_box(b"smhd", &[0; 8]);
    let minf = mp4_box(b"minf", &[smhd, dinf, stbl].concat());
    let mdhd = mp4_box(b"mdhd", &words(&[0, 0, 0, 16_000, 0, 0x55C4_0000]));
    let hdlr = mp4_box(b"hdlr", &[&words(&[0, 0])[..], b"soun", &[0; 13]].concat());
    let mdia = mp4_box(b"mdia", &[mdhd, hdlr, minf].concat());
    let tkhd = mp4_box(b"tkhd", &[words(&[7, 0, 0, 1, 0, 0]), vec![0; 60]].concat());
    let trak = mp4_box(b"trak", &[tkhd, mdia].concat());
    let mvhd = mp4_box(b"mvhd", &[words(&[0, 0, 0, 16_000, 0, 0x1_0000]), vec![0; 76]].concat());
    let moov = mp4_box(b"moov", &[&mvhd, &trak.repeat(tracks), extends].concat());
    let ftyp = mp4_box(b"ftyp", b"M4A \0\0\0\0M4A mp42");
    [&ftyp, &moov, rest].concat()
}

/// Returns the tables of a track of `packets` consecutive packets of equal size from `at` on, with the duration of each.
fn tables_of_durations(packets: u32, packet_bytes: u32, duration: u32, at: u32) -> Vec<u8> {
    let durations: Vec<u32> = (0..packets).flat_map(|_| [1, duration]).collect();
    let table = [
        mp4_box(b"stts", &[words(&[0, packets]), words(&durations)].concat()),
        mp4_box(b"stsc", &words(&[0, 1, 1, packets, 1])),
        mp4_box(b"stsz", &words(&[0, packet_bytes, packets])),
        mp4_box(b"stco", &words(&[0, 1, at])),
    ];
    table.concat()
}

/// Returns an M4A of `packets` of AAC-LC, one channel at 16 kHz, without an edit list.
pub fn m4a_of_packets(packets: &[&[u8]]) -> Vec<u8> {
    let count = packets.len() as u32;
    let sizes: Vec<u32> = packets.iter().map(|packet| packet.len() as u32).collect();
    let tables = |at: u32| {
        let tables = [
            mp4_box(b"stts", &words(&[0, 1, count, 1024])),
            mp4_box(b"stsc", &words(&[0, 1, 1, count, 1])),
            mp4_box(b"stsz", &[words(&[0, 0, count]), words(&sizes)].concat()),
            mp4_box(b"stco", &words(&[0, 1, at])),
        ];
        tables.concat()
    };
    let header = m4a(&tables(0), 1, &[], &[]);
    m4a(&tables(header.len() as u32 + 8), 1, &[], &mp4_box(b"mdat", &packets.concat()))
}

/// Moves the audio to the front, so that each track can go back to it.
fn with_audio_first(mut file: Vec<u8>, audio_bytes: u32) -> Vec<u8> {
    file.splice(24..24, mp4_box(b"mdat", &vec![0; audio_bytes as usize]));
    file
}

/// The position after the first box and the header of the second.
const AUDIO_AT: u32 = 32;

/// Returns an MP4 of `tracks` tracks of the same bytes, each of which states the duration of each of its `packets`.
pub fn mp4_of_durations(packets: u32, packet_bytes: u32, tracks: usize) -> Vec<u8> {
    let tables = tables_of_durations(packets, packet_bytes, 1, AUDIO_AT);
    with_audio_first(m4a(&tables, tracks, &[], &[]), packets * packet_bytes)
}

/// The boxes of an MP4 that occur twice: first short ones, then those that symphonia uses.
#[derive(Clone, Copy, Debug)]
pub enum Doubled {
    Movie,
    Tables,
}

/// Returns an MP4 of `packets` packets of one byte, which states the duration of each in the second of two boxes.
pub fn mp4_of_doubled_boxes(packets: u32, doubled: Doubled) -> Vec<u8> {
    let short = tables_of_durations(1, 1, 1, AUDIO_AT);
    let long = tables_of_durations(packets, 1, 1, AUDIO_AT);
    let file = match doubled {
        Doubled::Tables => m4a(&[short, long].concat(), 1, &[], &[]),
        Doubled::Movie => {
            let second = m4a(&long, 1, &[], &[]).split_off(24);
            m4a(&short, 1, &[], &second)
        }
    };
    with_audio_first(file, packets)
}

/// Returns an MP4 of `packets` packets of one byte that have no duration and cannot be decoded. Its table of sizes has only
/// one of them.
pub fn mp4_of_packets_without_duration(packets: u32) -> Vec<u8> {
    let tables = [
        mp4_box(b"stts", &words(&[0, 1, packets, 0])),
        mp4_box(b"stsc", &words(&[0, 1, 1, packets, 1])),
        mp4_box(b"stsz", &words(&[0, 1, 1])),
        mp4_box(b"stco", &words(&[0, 1, AUDIO_AT])),
    ];
    with_audio_first(m4a(&tables.concat(), 1, &[], &[]), packets)
}

/// Returns a fragmented MP4 of one fragment, which states the duration of each of its packets of one byte.
pub fn mp4_of_one_fragment(packets: u32) -> Vec<u8> {
    let empty = [
        mp4_box(b"stts", &words(&[0, 0])),
        mp4_box(b"stsc", &words(&[0, 0])),
        mp4_box(b"stsz", &words(&[0, 0, 0])),
        mp4_box(b"stco", &words(&[0, 0])),
    ];
    let mvex = mp4_box(b"mvex", &mp4_box(b"trex", &words(&[0, 1, 1, 1, 1, 0])));
    let tfhd = mp4_box(b"tfhd", &words(&[0x02_0000, 1]));
    let run = [words(&[0x0101, packets, 0]), words(&vec![1; packets as usize])].concat();
    let traf = mp4_box(b"traf", &[tfhd, mp4_box(b"trun", &run)].concat());
    let mfhd = mp4_box(b"mfhd", &words(&[0, 1]));
    let moof = mp4_box(b"moof", &[mfhd, traf].concat());
    m4a(&empty.concat(), 1, &mvex, &[moof, mp4_box(b"mdat", &vec![0; packets as usize])].concat())
}

fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let padding = vec![0; content.len() % 2];
    [name, &(content.len() as u32).to_le_bytes()[..], content, &padding].concat()
}

fn riff(body: &[u8]) -> Vec<u8> {
    [b"RIFF", &(body.len() as u32 + 4).to_le_bytes()[..], b"WEBP", body].concat()
}

/// Writes lossless data of one pixel with `groups` groups of Huffman codes of 20 bits each. The pixel uses the last.
fn groups_of_one_pixel(bits: &mut Bits, groups: u32) {
    // No transform, no colour cache, groups in blocks of 4×4, no colour cache.
    for (value, width) in [(0, 1), (0, 1), (1, 1), (0, 3), (0, 1)] {
        bits.put(value, width);
    }
    // Codes of one symbol of 8 bits: green and red make the number of the last group.
    for symbol in [(groups - 1) & 0xFF, (groups - 1) >> 8, 0, 0, 0] {
        bits.put(0b101, 3);
        bits.put(symbol, 8);
    }
    for _ in 0..5 * groups {
        bits.put(1, 4);
    }
    bits.put(0, 32);
}

/// Returns a lossless WebP of one pixel with `groups` groups of Huffman codes.
pub fn webp_of_groups(groups: u32) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(0x2F, 8);
    bits.put(0, 32); // size, alpha, version
    groups_of_one_pixel(&mut bits, groups);
    riff(&chunk(b"VP8L", &bits.bytes))
}

/// Returns a lossy WebP whose alpha channel has `groups` groups, in an animation if `animated`.
pub fn webp_alpha_of_groups(groups: u32, animated: bool) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(1, 8); // a lossless image
    groups_of_one_pixel(&mut bits, groups);
    let frame = [&[0x10, 0, 0, 0x9D, 0x01, 0x2A, 1, 0, 1, 0][..], &[0; 100]].concat();
    let frame = [chunk(b"ALPH", &bits.bytes), chunk(b"VP8 ", &frame)].concat();
    let extended = |flags| chunk(b"VP8X", &[flags, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    riff(&match animated {
        true => {
            let frame = chunk(b"ANMF", &[&[0; 16][..], &frame].concat());
            [extended(0x12), chunk(b"ANIM", &[0; 6]), frame].concat()
        }
        false => [extended(0x10), frame].concat(),
    })
}

/// Returns a WebP with a canvas of one pixel around a frame of `side`² px, in an animation if `animated`.
pub fn webp_frame_over_its_canvas(side: u16, animated: bool) -> Vec<u8> {
    let [low, high] = side.to_le_bytes();
    // A key frame whose first partition has 30,000 bytes, all 0.
    let tag = (30_000_u32 << 5 | 1 << 4).to_le_bytes();
    let frame = [&tag[..3], &[0x9D, 0x01, 0x2A, low, high, low, high], &[0; 40_000]].concat();
    let frame = chunk(b"VP8 ", &frame);
    let extended = chunk(b"VP8X", &[if animated { 2 } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    riff(&if animated {
        let frame = [&[0; 16][..], &frame].concat();
        [extended, chunk(b"ANIM", &[0; 6]), chunk(b"ANMF", &frame)].concat()
    } else {
        [extended, frame].concat()
    })
}

/// A writer of bits, from the lowest bit of the first byte up.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits {
    /// Writes at most 56 bits at a time.
    fn put(&mut self, value: u32, bits: u32) {
        self.held |= u64::from(value) << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.bytes.push(self.held as u8);
            (self.held, self.count) = (self.held >> 8, self.count - 8);
        }
    }
}

fn ogg_page(sequence: u32, flags: u8, packet: &[u8]) -> Vec<u8> {
    assert!(packet.len() < 255 * 255);
    let mut lacing = vec![255; packet.len() / 255];
    lacing.push((packet.len() % 255) as u8);
    let mut page = b"OggS\0".to_vec();
    page.push(flags);
    page.extend([0; 8]);
    page.extend(7_u32.to_le_bytes());
    page.extend(sequence.to_le_bytes());
    page.extend([0; 4]);
    page.push(lacing.len() as u8);
    page.extend(lacing);
    page.extend(packet);
    let crc = page.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc: u32, _| {
            crc << 1 ^ if crc >> 31 != 0 { 0x04C1_1DB7 } else { 0 }
        })
    });
    page[22..26].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Returns an Ogg Vorbis file whose setup header has `books` codebooks of 131,072 vectors of 31 numbers, in 24 bytes each.
pub fn vorbis_of_codebooks(books: u32) -> Vec<u8> {
    let identification =
        [&b"\x01vorbis"[..], &[0, 0, 0, 0, 1, 0x80, 0x3E, 0, 0], &[0; 12], &[0xB8, 1]].concat();
    let comment = [&b"\x03vorbis"[..], &[0; 8], &[1]].concat();
    let mut setup = Bits { bytes: b"\x05vorbis".to_vec(), ..Bits::default() };
    setup.put(books - 1, 8);
    for _ in 0..books {
        for (value, bits) in [(0x56_4342, 24), (31, 16), (1 << 17, 24)] {
            setup.put(value, bits);
        }
        // Lengths in order: all are 17 bits. Then vectors made of one value of one bit.
        for (value, bits) in
            [(1, 1), (16, 5), (1 << 17, 18), (1, 4), (0, 32), (0, 32), (0, 4), (0, 1), (0, 1)]
        {
            setup.put(value, bits);
        }
    }
    setup.put(0, 32);
    [
        ogg_page(0, 2, &identification),
        ogg_page(1, 0, &comment),
        ogg_page(2, 0, &setup.bytes),
        ogg_page(3, 4, &[0; 8]),
    ]
    .concat()
}
