//! ID3v2 tags, which may precede audio of any container.

/// Returns the length of the ID3v2 tags at the start of `bytes`. They may reach past its end.
pub(crate) fn id3_bytes(bytes: &[u8]) -> u64 {
    let mut at = 0_u64;
    while let Some(rest) = usize::try_from(at).ok().and_then(|at| bytes.get(at..)) {
        let &[b'I', b'D', b'3', version, _, flags, a, b, c, d, ..] = rest else { break };
        if version == 0xFF || (a | b | c | d) & 0x80 != 0 {
            break;
        }
        let size = [a, b, c, d].iter().fold(0_u64, |size, byte| size << 7 | u64::from(*byte));
        at += 10 + size + if flags & 0x10 != 0 { 10 } else { 0 };
    }
    at
}
