//! A row whose length is found by running its chain.

/// The result of a ragged chain for one sample: a dense row-major tensor as long as the sample, aligned for any
/// element.
///
/// Keep it and reuse it: its memory grows only to that of the longest row it has held.
///
/// ```
/// use feedstock_ops::RaggedRow;
///
/// let mut row = RaggedRow::new();
/// row.f32s(2, 6).copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]); // 2 frames of 3 features
/// assert_eq!((row.length(), row.bytes().len()), (2, 24));
/// let kept = row.capacity_bytes();
/// row.i64s(1, 1)[0] = 7;
/// assert_eq!((row.bytes(), row.capacity_bytes()), (&7i64.to_ne_bytes()[..], kept)); // no new memory
/// ```
#[derive(Default, Debug, Clone)]
pub struct RaggedRow {
    words: Vec<u64>, // 8-byte alignment
    bytes: usize,
    length: usize,
}

impl RaggedRow {
    /// Creates an empty row. It allocates with the first sample.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the row's length along its ragged axis: samples, frames, tokens.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the row's elements as bytes, in the machine's byte order.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words are initialised, plain, and at least `bytes` long; any byte is a u8.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.bytes) }
    }

    /// Returns the bytes of memory that it keeps.
    pub fn capacity_bytes(&self) -> usize {
        self.words.capacity() * 8
    }

    /// Makes it a row of `length` along its ragged axis, with `elements` elements of unspecified content, and returns them.
    ///
    /// # Panics
    /// If memory cannot hold that number of elements, as a `Vec` does.
    pub fn f32s(&mut self, length: usize, elements: usize) -> &mut [f32] {
        self.prepare::<f32>(length, elements);
        // SAFETY: aligned for u64, initialised, at least `elements` × 4 bytes long, and any bits are an f32.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<f32>(), elements) }
    }

    /// Makes it a row of token ids; otherwise as [`f32s`](Self::f32s).
    pub fn i64s(&mut self, length: usize, elements: usize) -> &mut [i64] {
        self.prepare::<i64>(length, elements);
        // SAFETY: as in `f32s`; any bits are an i64.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<i64>(), elements) }
    }

    /// Makes it a row of `length` along its ragged axis, with `bytes` bytes of unspecified content, and returns them. Use
    /// it for rows that were made elsewhere.
    ///
    /// # Panics
    /// As [`f32s`](Self::f32s).
    pub fn raw(&mut self, length: usize, bytes: usize) -> &mut [u8] {
        self.prepare::<u8>(length, bytes);
        // SAFETY: `prepare` made the words hold that number of bytes, and every byte is a u8.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>(), bytes) }
    }

    /// Lengthens the row and keeps its present content; otherwise as [`raw`](Self::raw).
    ///
    /// ```
    /// let mut row = feedstock_ops::RaggedRow::new();
    /// row.raw(3, 3).copy_from_slice(b"abc");
    /// row.lengthen(5, 5)[3..].copy_from_slice(b"de");
    /// assert_eq!((row.length(), row.bytes()), (5, &b"abcde"[..]));
    /// ```
    ///
    /// # Panics
    /// As [`f32s`](Self::f32s).
    pub fn lengthen(&mut self, length: usize, bytes: usize) -> &mut [u8] {
        let words = bytes.div_ceil(8);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        self.raw(length, bytes)
    }

    #[expect(clippy::panic, reason = "as Vec does; the slices made after it must not outgrow the words")]
    fn prepare<T>(&mut self, length: usize, elements: usize) {
        let Some(bytes) = elements.checked_mul(size_of::<T>()) else {
            panic!("a row of {elements} elements is larger than memory can be");
        };
        let words = bytes.div_ceil(8);
        if self.words.len() < words {
            // The old content is not kept: freeing it first saves memory, and fresh pages need no zeroing.
            self.words = Vec::new();
            self.words = vec![0; words];
        }
        (self.length, self.bytes) = (length, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_what_was_written_last() {
        let mut row = RaggedRow::new();
        row.f32s(3, 6).fill(1.5);
        assert_eq!((row.length(), row.bytes().len()), (3, 24));
        assert_eq!(row.bytes()[20..], 1.5f32.to_ne_bytes());
        row.i64s(1, 1)[0] = -2;
        assert_eq!((row.length(), row.bytes()), (1, &(-2i64).to_ne_bytes()[..]));
        row.f32s(0, 0);
        assert_eq!((row.length(), row.bytes()), (0, &[][..]));
    }

    #[test]
    fn a_row_that_is_lengthened_keeps_its_beginning() {
        let mut row = RaggedRow::new();
        row.lengthen(5, 3).copy_from_slice(&[1, 2, 3]);
        row.lengthen(5, 90)[3..].fill(9);
        assert_eq!((row.length(), row.bytes().len(), &row.bytes()[..4]), (5, 90, &[1, 2, 3, 9][..]));
    }

    #[test]
    fn memory_is_as_large_as_the_longest_row() {
        let mut row = RaggedRow::new();
        for length in [100, 1000, 1001, 7] {
            row.f32s(length, length);
        }
        assert_eq!(row.capacity_bytes(), 1002 * 4);
    }

    #[test]
    #[should_panic(expected = "larger than memory can be")]
    fn elements_whose_bytes_overflow() {
        RaggedRow::new().f32s(1, usize::MAX / 4 + 2);
    }

    #[test]
    #[should_panic(expected = "larger than memory can be")]
    fn ids_whose_bytes_overflow() {
        RaggedRow::new().i64s(1, usize::MAX / 8 + 2);
    }
}
