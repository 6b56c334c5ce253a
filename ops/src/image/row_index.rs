//! Where the rows of a baseline JPEG begin in its entropy-coded data, so that a later crop jumps over what it does not show.
//!
//! ```text
//! first epoch   decode ── notes each row of MCUs that it comes to: place in the bit stream, DC predictors ─▶ RowIndex
//! later epochs  RowIndex ─▶ decode: rows above the crop are not read, nor what is right of it
//! ```
//! Without restart markers, a decoder has no other state at a row's start. An index belongs to one version of one file: it
//! has the length and a hash of all of the file's bytes, and the decoder compares both before it uses any place.
//!
//! **Why an index cannot change pixels.** What the decoder notes is a function of the file's bytes alone, of which it has
//! decoded all up to the noted row without finding damage. So for a file with the same bytes, a jump ends in the state that
//! decoding would have ended in. Another file has the same length and the same 64-bit hash with a probability of 2⁻⁶⁴. A
//! stored index also has a checksum; without a match [`RowIndex::from_bytes`] returns `None`. Only a forged index, with both
//! hashes right and its places wrong, can show wrong pixels. Its places are still checked: nothing outside the file's bytes is
//! read, and where they lead to damage, the file is decoded without it.

use twox_hash::XxHash3_64;

/// Starts that an index has at most; of images with more rows every second one is noted, or every third and so on.
///
/// 500 × 375 pixels in 4:2:0 have 24 rows of MCUs. A start takes some 8 bytes, and at most 20, so an index takes about 200
/// bytes, and at most 657.
pub(crate) const MOST_STARTS: usize = 32;

/// The first byte of the stored form. Raise it when places or the hash change their meaning.
const VERSION: u8 = 1;

/// Version, length and hash of the file, number of starts.
const HEAD_BYTES: usize = 1 + 4 + 8 + 1;
const CHECKSUM_BYTES: usize = 4;

/// Rows of MCUs between two starts of an image with `rows` of them.
pub(crate) fn rows_a_band(rows: usize) -> usize {
    rows.div_ceil(MOST_STARTS + 1).max(1)
}

/// Where a row of MCUs begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// Bits from the scan's first byte on, stuffed bytes included.
    pub(crate) bit: u64,
    /// DC coefficients of the components' last blocks before it. They have 16 bits, as in libjpeg: sums wrap.
    pub(crate) predictions: [i16; 3],
}

/// Row starts of one baseline JPEG, as far as crops have reached so far.
///
/// [`Scratch::note_rows`](crate::Scratch::note_rows) has the decoder make and use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowIndex {
    file: FileHash,
    starts: Vec<Start>,
}

/// What a file's bytes are known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileHash {
    length: u32,
    hash: u64,
}

impl FileHash {
    /// `None` for files of 4 GiB and more.
    fn of(file: &[u8]) -> Option<Self> {
        Some(Self { length: u32::try_from(file.len()).ok()?, hash: hash(file) })
    }
}

impl RowIndex {
    /// The index of `file`, whose rows begin at `starts`; `None` where it is of no use.
    pub(crate) fn new(file: &[u8], mut starts: Vec<Start>) -> Option<Self> {
        starts.truncate(MOST_STARTS);
        if starts.is_empty() {
            return None;
        }
        Some(Self { file: FileHash::of(file)?, starts })
    }

    /// The index of the same file with more `starts`.
    pub(crate) fn grown(&self, starts: &[Start]) -> Self {
        let mut grown = self.clone();
        grown.starts.extend_from_slice(&starts[..starts.len().min(MOST_STARTS - self.starts.len())]);
        grown
    }

    /// Whether it is about exactly these bytes.
    pub(crate) fn is_of(&self, file: &[u8]) -> bool {
        self.file.length as usize == file.len() && FileHash::of(file) == Some(self.file)
    }

    pub(crate) fn starts(&self) -> &[Start] {
        &self.starts
    }

    /// Returns the stored form, 200 bytes for a photo of 500 × 375 pixels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 9 * self.starts.len() + CHECKSUM_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.file.length.to_le_bytes());
        bytes.extend_from_slice(&self.file.hash.to_le_bytes());
        bytes.push(u8::try_from(self.starts.len()).unwrap_or(u8::MAX));
        let mut before = Start { bit: 0, predictions: [0; 3] };
        for start in &self.starts {
            put(&mut bytes, start.bit - before.bit);
            for (prediction, before) in start.predictions.into_iter().zip(before.predictions) {
                let difference = prediction.wrapping_sub(before);
                put(&mut bytes, u64::from(((difference << 1) ^ (difference >> 15)).cast_unsigned())); // −1 is 1, 1 is 2
            }
            before = *start;
        }
        bytes.extend_from_slice(&checksum(&bytes));
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) returned; `None` for anything else.
    ///
    /// ```
    /// use feedstock_ops::image::RowIndex;
    ///
    /// assert_eq!(RowIndex::from_bytes(b"not an index"), None);
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if *sum != checksum(content) {
            return None;
        }
        let (head, mut rest) = content.split_first_chunk::<HEAD_BYTES>()?;
        let [version, length @ .., count] = head;
        let (length, hash) = length.split_first_chunk::<4>()?;
        let file =
            FileHash { length: u32::from_le_bytes(*length), hash: u64::from_le_bytes(hash.try_into().ok()?) };
        let count = usize::from(*count);
        if *version != VERSION || count == 0 || count > MOST_STARTS {
            return None;
        }
        let mut starts = Vec::with_capacity(count);
        let mut last = Start { bit: 0, predictions: [0; 3] };
        for _ in 0..count {
            // A row has data, and they are in the file.
            let bit = last.bit.checked_add(take(&mut rest)?).filter(|bit| *bit > last.bit)?;
            if bit / 8 >= file.length.into() {
                return None;
            }
            last.bit = bit;
            for prediction in &mut last.predictions {
                let value = u16::try_from(take(&mut rest)?).ok()?;
                let difference = (value >> 1).cast_signed() ^ -(value & 1).cast_signed();
                *prediction = prediction.wrapping_add(difference);
            }
            starts.push(last);
        }
        rest.is_empty().then_some(Self { file, starts })
    }
}

/// A hash against chance and not against forgers: XXH3 of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [sum @ .., _, _, _, _] = hash(content).to_le_bytes();
    sum
}

/// Seven bits a byte, the lowest first; all but the last byte have the highest bit set.
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7F) as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Row starts on their way through a chain: those known of the next image, and what its decoder notes.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) known: Option<RowIndex>,
    /// The caller keeps what is noted.
    pub(crate) is_noted: bool,
    /// The index of the image, if it is new or has grown.
    pub(crate) noted: Option<RowIndex>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleSeed;

    fn index(file: &[u8], count: u64) -> RowIndex {
        let mut generator = SampleSeed::new(1, 0, count).op(0);
        let mut below = |bound: u32| generator.below(bound);
        let mut bit = 0;
        let starts = (0..count).map(|_| {
            bit += 1 + u64::from(below(2 * file.len() as u32 / count.max(1) as u32));
            let predictions = [(); 3].map(|()| i16::from_le_bytes([below(256) as u8, below(256) as u8]));
            Start { bit, predictions }
        });
        RowIndex { file: FileHash::of(file).unwrap(), starts: starts.collect() }
    }

    #[test]
    fn bytes_go_there_and_back() {
        let file: Vec<u8> = (0..50_000_u32).map(|at| ((at * at) >> 7) as u8).collect();
        for count in 1..=MOST_STARTS as u64 {
            let index = index(&file, count);
            let bytes = index.to_bytes();
            assert!(bytes.len() <= HEAD_BYTES + CHECKSUM_BYTES + 20 * count as usize);
            assert_eq!(RowIndex::from_bytes(&bytes), Some(index));
        }
    }

    #[test]
    fn garbage_is_no_index() {
        let file = vec![7; 50_000];
        let whole = index(&file, 24).to_bytes();
        for length in 0..whole.len() {
            assert_eq!(RowIndex::from_bytes(&whole[..length]), None, "{length} bytes");
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RowIndex::from_bytes(&damaged), None, "bit {bit}");
        }
    }

    /// With a right checksum, too, the parser takes nothing that leads out of the file or on without end.
    #[test]
    fn forged_content_stays_within_its_bounds() {
        let file = vec![7; 500];
        let whole = index(&file, 24).to_bytes();
        let content = &whole[..whole.len() - CHECKSUM_BYTES];
        let mut generator = SampleSeed::new(2, 0, 0).op(0);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut forged = content.to_vec();
            for _ in 0..1 + generator.below(3) {
                let at = generator.below(forged.len() as u32) as usize;
                forged[at] = generator.below(256) as u8;
            }
            forged.truncate(forged.len() - generator.below(2) as usize);
            forged.extend_from_slice(&checksum(&forged));
            let Some(index) = RowIndex::from_bytes(&forged) else { continue };
            assert!(!index.starts.is_empty() && index.starts.len() <= MOST_STARTS);
            assert!(index.starts.is_sorted_by(|a, b| a.bit < b.bit));
            assert!(index.starts.iter().all(|start| start.bit / 8 < u64::from(index.file.length)));
            taken += 1;
        }
        assert!(taken > 100, "{taken}");
    }

    /// One bit, two bits at the same place of blocks, swapped blocks, and bytes appended after zeros: all hashes differ.
    #[test]
    fn files_that_differ_slightly_have_other_hashes() {
        let file: Vec<u8> = (0..1000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut hashes = std::collections::HashSet::from([hash(&file)]);
        let mut differs = |file: &[u8]| assert!(hashes.insert(hash(file)));
        for bit in 0..8000 {
            let mut one = file.clone();
            one[bit / 8] ^= 1 << (bit % 8);
            differs(&one);
            if bit + 512 < 8000 {
                one[bit / 8 + 64] ^= 1 << (bit % 8);
                differs(&one);
            }
        }
        for block in (0..960).step_by(16).filter(|block| block + 32 <= 1000) {
            let mut swapped = file.clone();
            swapped[block..block + 32].rotate_left(16);
            differs(&swapped);
        }
        let sum = hash(&[0; 64]);
        assert!((1..64).all(|length| hash(&vec![1; length]) != sum));
        // About half of the bits change with any one.
        let changed: u32 = (0..8000)
            .map(|bit| {
                let mut one = file.clone();
                one[bit / 8] ^= 1 << (bit % 8);
                (hash(&one) ^ hash(&file)).count_ones()
            })
            .sum();
        assert!((31.5..32.5).contains(&(f64::from(changed) / 8000.0)), "{changed}");
    }

    #[test]
    fn an_index_belongs_to_one_version_of_a_file() {
        let mut file = vec![7; 5000];
        let index = index(&file, 20);
        assert!(index.is_of(&file) && !index.is_of(&file[..4999]));
        file[4321] ^= 4;
        assert!(!index.is_of(&file));
    }
}
