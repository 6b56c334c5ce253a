//! Members of tars.

/// Returns a header of the format ustar.
pub(crate) fn record(name: &str, bytes: u64, kind: u8) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(0, name);
    field(100, "0000644\0");
    field(108, "0000000\0");
    field(116, "0000000\0");
    field(124, &format!("{bytes:011o}\0"));
    field(136, "00000000000\0");
    field(148, "        ");
    field(257, "ustar\x0000");
    header[156] = kind;
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Returns a member of a tar: its header, `bytes`, and zeros up to the next 512 bytes. A tar ends with 1,024 zeros.
///
/// ```
/// use feedstock_testkit::tar_member;
///
/// let tar = [tar_member("0.cls", b"7"), tar_member("0.jpg", &[0; 600]), vec![0; 1_024]].concat();
/// assert_eq!(tar.len(), (512 + 512) + (512 + 1_024) + 1_024);
/// assert_eq!(&tar[..5], b"0.cls");
/// ```
pub fn tar_member(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut member = record(name, bytes.len() as u64, b'0');
    member.extend(bytes);
    member.resize(512 + bytes.len().next_multiple_of(512), 0);
    member
}
