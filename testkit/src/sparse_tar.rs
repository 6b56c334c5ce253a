//! Tars of any size that take no memory: their bytes are computed when they are read.

use crate::tar::record;
use bytes::Bytes;
use std::fmt::Write;
use std::ops::Range;

const RECORD_BYTES: u64 = 512;
/// Two empty records, the minimum that GNU tar and Python write.
const END_BYTES: u64 = 2 * RECORD_BYTES;

/// A tar of equal samples: sample `i` has the key `0000000i` and a member for each extension.
///
/// Members `cls` and `json` hold numbers padded with spaces. All others, such as `jpg` and `bin`, hold zeros.
///
/// ```
/// use feedstock_testkit::SparseTar;
///
/// let tar = SparseTar::new(1_000_000, &[("jpg", 110_000), ("cls", 4)], 0); // 111 GB that take no memory
/// assert_eq!(tar.size(), 1_000_000 * (512 + 110_080 + 512 + 512) + 1_024);
/// assert_eq!(&tar.read(0..12)[..], b"00000000.jpg");
/// ```
#[derive(Debug, Clone)]
pub struct SparseTar {
    samples: u64,
    members: Vec<(String, u64)>,
    first: u64,
    is_extended: bool,
}

impl SparseTar {
    /// Creates a tar of `samples` samples with a member for each (extension, bytes), in this order. Keys begin with
    /// `first`.
    pub fn new(samples: u64, members: &[(&str, u64)], first: u64) -> Self {
        let members = members.iter().map(|&(extension, bytes)| (extension.to_owned(), bytes)).collect();
        Self { samples, members, first, is_extended: false }
    }

    /// Adds an extended header (pax) before every member, as Python's `tarfile` writes for times with fractions.
    #[must_use]
    pub fn extended(self) -> Self {
        Self { is_extended: true, ..self }
    }

    /// Returns its length in bytes.
    pub fn size(&self) -> u64 {
        self.samples * self.sample_bytes() + END_BYTES
    }

    /// Returns the bytes of `range`, which must be in it.
    pub fn read(&self, range: Range<u64>) -> Bytes {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        let sample_bytes = self.sample_bytes();
        let samples = range.start / sample_bytes..range.end.div_ceil(sample_bytes).min(self.samples);
        for sample in samples {
            for (name, extension, at, length) in self.members_of(sample) {
                put(&mut bytes, range.start, at - self.header_bytes(), &self.header(&name, length));
                if let Some(text) = self.text(&extension, sample, length) {
                    put(&mut bytes, range.start, at, text.as_bytes());
                }
            }
        }
        bytes.into()
    }

    /// Returns its index in the form of DALI's `wds2idx.py`.
    pub fn dali_index(&self) -> Bytes {
        let mut index = format!("v1.2 {}\n", self.samples);
        for sample in 0..self.samples {
            let members = self.members_of(sample).into_iter();
            let groups: Vec<String> = members
                .map(|(name, extension, at, bytes)| format!("{extension} {at} {bytes} {name}"))
                .collect();
            let _ = writeln!(index, "{}", groups.join(" ")); // writing to a string cannot fail
        }
        index.into()
    }

    /// Returns its index in the form of Megatron Energon.
    pub fn energon_index(&self) -> Bytes {
        (0..=self.samples)
            .flat_map(|sample| (sample * self.sample_bytes()).to_le_bytes())
            .collect::<Vec<u8>>()
            .into()
    }

    fn header_bytes(&self) -> u64 {
        if self.is_extended { 3 * RECORD_BYTES } else { RECORD_BYTES }
    }

    fn sample_bytes(&self) -> u64 {
        self.members.iter().map(|(_, bytes)| self.header_bytes() + bytes.next_multiple_of(RECORD_BYTES)).sum()
    }

    /// Returns name, extension, offset and bytes of a sample's members.
    fn members_of(&self, sample: u64) -> Vec<(String, String, u64, u64)> {
        let mut at = sample * self.sample_bytes();
        let member = |(extension, bytes): &(String, u64)| {
            let content = at + self.header_bytes();
            at = content + bytes.next_multiple_of(RECORD_BYTES);
            (format!("{:08}.{extension}", self.first + sample), extension.clone(), content, *bytes)
        };
        self.members.iter().map(member).collect()
    }

    fn text(&self, extension: &str, sample: u64, bytes: u64) -> Option<String> {
        let width = usize::try_from(bytes).ok()?;
        let number = self.first + sample;
        match extension {
            "cls" => Some(format!("{number:<width$}")),
            "json" => Some(format!("{:<width$}", format!("{{\"n\":{number}}}"))),
            _ => None,
        }
    }

    fn header(&self, name: &str, bytes: u64) -> Vec<u8> {
        let mut records = Vec::new();
        if self.is_extended {
            let time = b"13 mtime=1.5\n";
            records.extend(record(name, time.len() as u64, b'x'));
            records.extend(time);
            records.resize(2 * 512, 0);
        }
        records.extend(record(name, bytes, b'0'));
        records
    }
}

/// Copies that part of `content`, which begins at `at`, that is in the part which begins at `start`.
fn put(part: &mut [u8], start: u64, at: u64, content: &[u8]) {
    for (byte, at) in content.iter().zip(at..) {
        let place = at.checked_sub(start).and_then(|place| usize::try_from(place).ok());
        if let Some(target) = place.and_then(|place| part.get_mut(place)) {
            *target = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_equals_that_part_of_the_whole() {
        for tar in [
            SparseTar::new(3, &[("cls", 4), ("jpg", 1_000)], 7),
            SparseTar::new(2, &[("json", 20)], 0).extended(),
        ] {
            let whole = tar.read(0..tar.size());
            assert_eq!(whole.len() as u64, tar.size());
            for start in (0..tar.size()).step_by(97) {
                for end in (start..tar.size()).step_by(501) {
                    assert_eq!(tar.read(start..end), whole[start as usize..end as usize]);
                }
            }
        }
    }

    #[test]
    fn its_members_are_where_the_index_has_them() {
        let tar = SparseTar::new(2, &[("cls", 4), ("jpg", 1_000)], 7);
        let index = tar.dali_index();
        let expected = "v1.2 2\ncls 512 4 00000007.cls jpg 1536 1000 00000007.jpg\ncls 3072 4 00000008.cls jpg 4096 1000 00000008.jpg\n";
        assert_eq!(index, expected.as_bytes());
        assert_eq!(tar.read(3072..3076), b"8   "[..]);
        assert_eq!(tar.read(2560..2572), b"00000008.cls"[..]);
        assert_eq!(tar.energon_index().len(), 3 * 8);
    }
}
