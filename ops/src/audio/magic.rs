//! Names codecs and containers that are not decoded by their first bytes.

/// Consecutive frames of layer I or II that prove the layer: one header alone may be chance.
const FRAMES_SEEN: usize = 3;

/// Returns the name of the codec or container at the start of `clip`, which has no ID3 tags.
pub(super) fn codec_by_magic(clip: &[u8]) -> Option<&'static str> {
    lower_layer(clip).or_else(|| by_magic(clip))
}

/// Returns the codec or container that the magic bytes at the start name.
fn by_magic(clip: &[u8]) -> Option<&'static str> {
    const ASF: &[u8] = &[0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11];
    const MATROSKA: &[u8] = &[0x1A, 0x45, 0xDF, 0xA3];
    const NAMES: [(&[u8], &str); 18] = [
        (ASF, "WMA"),
        (MATROSKA, "Matroska or WebM"),
        (b"#!AMR\n", "AMR-NB"),
        (b"#!AMR-WB\n", "AMR-WB"),
        (b"#!AMR_MC1.0\n", "AMR-NB"),
        (b"#!AMR-WB_MC1.0\n", "AMR-WB"),
        (b"caff\0\x01", "CAF"),
        (b".snd\0\0", "AU"),
        (b"wvpk", "WavPack"),
        (b"MAC ", "Monkey's Audio"),
        (b"MPCK", "Musepack"),
        (b"MP+", "Musepack"),
        (b"TTA1", "TTA"),
        (b"DSD \x1C\0\0\0", "DSD"),
        (b"RF64\xFF\xFF\xFF\xFF", "RF64"),
        (b"NIST_1A\n", "NIST SPHERE"),
        (b"MThd\0\0\0\x06", "MIDI"),
        (b"ADIF", "AAC in ADIF"),
    ];
    if let [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] = clip {
        return Some("AIFF");
    }
    NAMES.iter().find(|(magic, _)| clip.starts_with(magic)).map(|(_, name)| *name)
}

/// Returns the layer, if `clip` begins with frames of MPEG audio layer I or II.
fn lower_layer(clip: &[u8]) -> Option<&'static str> {
    let (layer, mut at) = layer_frame(clip)?;
    for _ in 1..FRAMES_SEEN {
        let (next, bytes) = layer_frame(clip.get(at..)?)?;
        at += bytes;
        if next != layer {
            return None;
        }
    }
    Some(if layer == 1 { "MPEG audio layer I" } else { "MPEG audio layer II (MP2)" })
}

/// Returns the layer, 1 or 2, and the bytes of the frame whose header `bytes` begin with (ISO 11172-3 and 13818-3).
fn layer_frame(bytes: &[u8]) -> Option<(u8, usize)> {
    const MPEG1_LAYER1: [usize; 14] = [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448];
    const MPEG1_LAYER2: [usize; 14] = [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384];
    const MPEG2_LAYER1: [usize; 14] = [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256];
    const MPEG2_LAYER2: [usize; 14] = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    let &[0xFF, second, third, _, ..] = bytes else { return None };
    // The layers are coded as 3 and 2, MPEG-1, -2 and -2.5 as 3, 2 and 0.
    let (version, layer) = (second >> 3 & 3, 4 - (second >> 1 & 3));
    if second < 0xE0 || version == 1 || !(1..=2).contains(&layer) {
        return None;
    }
    let rates = match (version == 3, layer) {
        (true, 1) => MPEG1_LAYER1,
        (true, _) => MPEG1_LAYER2,
        (false, 1) => MPEG2_LAYER1,
        (false, _) => MPEG2_LAYER2,
    };
    let kbps = *rates.get(usize::from(third >> 4).checked_sub(1)?)?;
    let halved = match version {
        3 => 0,
        2 => 1,
        _ => 2,
    };
    let sample_rate = [44_100, 48_000, 32_000].get(usize::from(third >> 2 & 3))? >> halved;
    let padding = usize::from(third >> 1 & 1);
    let bytes = match layer {
        1 => (12_000 * kbps / sample_rate + padding) * 4,
        _ => 144_000 * kbps / sample_rate + padding,
    };
    Some((layer, bytes))
}
