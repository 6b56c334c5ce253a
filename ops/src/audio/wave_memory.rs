//! The working memory of ops on waveforms: the length of an audio clip on its way, and the two buffers that it changes
//! between.

const FILTER_BYTES: u64 = 1 << 20;

/// Counts bytes for one audio clip; see `working.rs`.
pub(crate) struct WaveMemory {
    length: u64,
    sample_rate: u32,
    /// Samples of the buffer that the waveform is in, and of the other one.
    wave: u64,
    other: u64,
    bytes: u64,
}

impl WaveMemory {
    pub(super) fn new(length: u64, sample_rate: u32) -> Self {
        Self { length, sample_rate, wave: length, other: 0, bytes: 0 }
    }

    /// Samples of the audio clip.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Samples a second.
    pub(crate) fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// States another sample rate, and returns the one before.
    pub(crate) fn set_sample_rate(&mut self, sample_rate: u32) -> u32 {
        std::mem::replace(&mut self.sample_rate, sample_rate)
    }

    /// Counts other memory.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// The audio clip is resampled to `length` samples, in the other buffer.
    pub(crate) fn resampled(&mut self, length: u64) {
        self.bytes += FILTER_BYTES;
        (self.wave, self.other) = (self.other.max(length), self.wave);
        self.length = length;
    }

    /// At most `length` samples are left.
    pub(crate) fn cropped(&mut self, length: u64) {
        self.length = self.length.min(length);
    }

    /// At least `length` samples are there, and with `truncate` no more.
    pub(crate) fn padded(&mut self, length: u64, truncate: bool) {
        // In the same buffer, which is replaced by a larger one.
        if self.length < length {
            self.bytes += 4 * self.length;
        }
        self.length = if truncate { length } else { self.length.max(length) };
        self.wave = self.wave.max(self.length);
    }

    /// All bytes, with `spare` samples in the buffer that the waveform is not in.
    pub(super) fn bytes(&self, spare: u64) -> u64 {
        let samples = self.wave.saturating_add(self.other.max(spare));
        self.bytes.saturating_add(samples.saturating_mul(4))
    }
}
