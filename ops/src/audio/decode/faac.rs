//! The delay of the AAC encoder FAAC.
//!
//! FAAC states its delay nowhere. It writes its name, as `libfaac 1.28`, into a fill element (ISO 14496-3, `FIL`) at
//! the start of the first frame; ffmpeg cuts 1,024 samples off an audio clip with this name.

/// The delay: a frame of 1,024 samples.
const DELAY_SAMPLES: u64 = 1024;

/// The longest fill element: 4 bits of length and 8 more count up to 14 + 255 bytes, after at most 15 bits.
pub(crate) const ELEMENT_BYTES: usize = 2 + 14 + 255;

/// Returns the number of samples that FAAC put before the audio clip, from its first `packet`; 0 for other encoders.
pub(crate) fn delay(packet: &[u8]) -> u64 {
    let is_faac = fill_text(packet).and_then(|text| text.strip_prefix(b"libfaac ")).is_some_and(is_version);
    if is_faac { DELAY_SAMPLES } else { 0 }
}

/// Returns the text of the fill element that `packet` begins with.
///
/// The element has 3 bits of identifier, 4 or 12 of length, 4 of type, 13 that are not used, and whole bytes of text.
fn fill_text(packet: &[u8]) -> Option<&[u8]> {
    const FILL_ELEMENT: u8 = 6;
    let &[first, second, third, ..] = packet else { return None };
    let (length, kind, start) = match first >> 1 & 15 {
        // The length continues in 8 more bits.
        15 => (14 + usize::from(first << 7 | second >> 1), second << 3 & 8 | third >> 5, 4),
        length => (usize::from(length), first << 3 & 8 | second >> 5, 3),
    };
    // 4 + 13 bits of the payload are not text.
    let text = packet.get(start..start + length.checked_sub(3)?);
    text.filter(|_| first >> 5 == FILL_ELEMENT && kind == 0)
}

/// Whether `text` begins with a number, a point and a digit.
fn is_version(text: &[u8]) -> bool {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && text.get(digits) == Some(&b'.') && text.get(digits + 1).is_some_and(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that FAAC 1.28 writes before the first channel.
    const ELEMENT: &[u8] = b"\xDE\x04\0\0libfaac 1.28\0\0\x42";

    #[test]
    fn only_the_name_in_a_fill_element_is_a_delay() {
        assert_eq!(delay(ELEMENT), 1024);
        let changed = |at: usize, byte: u8| {
            let mut bytes = ELEMENT.to_vec();
            bytes[at] = byte;
            delay(&bytes)
        };
        assert_eq!(changed(0, 0xBE), 0, "another element");
        assert_eq!(changed(2, 0x20), 0, "another type of extension");
        assert_eq!(changed(5, b'o'), 0, "another name");
        assert_eq!(changed(13, b'x'), 0, "no version");
        assert_eq!(changed(1, 0), 1024, "a length of 14, which ends after the version's point and a digit");
    }

    #[test]
    fn short_lengths_are_read_and_cut_packets_have_no_name() {
        // Identifier 6, length 14, type 0.
        assert_eq!(delay(b"\xDC\0\0libfaac 1.2\0\0"), 1024);
        // Length 12: the text ends before the version's point.
        assert_eq!(delay(b"\xD8\0\0libfaac 1.2\0\0"), 0);
        for length in 0..16 {
            assert_eq!(delay(&ELEMENT[..length]), 0, "{length}");
        }
        assert_eq!(delay(&[0xC0, 0, 0]), 0, "an element of no bytes");
    }
}
