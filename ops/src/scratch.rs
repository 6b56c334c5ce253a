//! What one thread keeps between samples: buffers and codec handles.

use crate::warning::Warnings;

/// Per-thread working memory of [`Chain::apply`](crate::Chain::apply); keep one per thread.
///
/// After any sample, good or bad, it is ready for the next. Buffers grow to the largest sample seen and are never
/// zeroed again; those over 64 MiB are given back after the sample that needed them.
#[derive(Default)]
pub struct Scratch {
    #[cfg(feature = "image")]
    pub(crate) image: crate::image::ImageScratch,
    #[cfg(feature = "audio")]
    pub(crate) audio: crate::audio::AudioScratch,
    #[cfg(feature = "text")]
    pub(crate) text: crate::text::TextScratch,
    pub(crate) warnings: Warnings,
}

impl Scratch {
    /// Empty; the buffers come with the first sample.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns and forgets the warnings about all samples that were decoded since the last call.
    ///
    /// Call it after each sample to know which one they are about. A sample that failed may have left some.
    pub fn take_warnings(&mut self) -> Warnings {
        std::mem::take(&mut self.warnings)
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Bytes a buffer may keep between samples: a 22-megapixel RGB picture, or 17 minutes of speech at 16 kHz. Larger ones are rare, and two buffers of
/// the largest allowed picture (268 MB each) per thread would break the memory promise.
#[cfg_attr(
    not(any(feature = "image", feature = "audio", feature = "text")),
    expect(dead_code, reason = "no op needs it")
)]
pub(crate) const RETAINED_BYTES: usize = 64 << 20;

/// Frees a buffer that exceeds [`RETAINED_BYTES`].
#[cfg(any(feature = "audio", feature = "text"))]
pub(crate) fn give_back<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() > RETAINED_BYTES / size_of::<T>() {
        *buffer = Vec::new();
    }
}

/// Reusable bytes whose content is unspecified: whoever takes them writes before reading.
#[cfg(feature = "image")]
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

#[cfg(feature = "image")]
impl Buffer {
    /// `len` bytes of unspecified (but initialised) content.
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Gives back what exceeds [`RETAINED_BYTES`].
    pub(crate) fn trim(&mut self) {
        if self.0.len() > RETAINED_BYTES {
            self.0 = Vec::new();
        }
    }
}
