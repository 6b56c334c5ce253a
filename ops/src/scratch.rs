//! What one thread keeps between samples: buffers and codec handles.

/// Per-thread working memory of [`Chain::apply`](crate::Chain::apply); keep one per thread.
///
/// After any sample, good or bad, it is ready for the next. Buffers grow to the largest sample seen and are never
/// zeroed again; those over 64 MiB are given back after the sample that needed them.
#[derive(Default)]
pub struct Scratch {
    #[cfg(feature = "image")]
    pub(crate) image: crate::image::ImageScratch,
}

impl Scratch {
    /// Empty; the buffers come with the first sample.
    pub fn new() -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Bytes a buffer may keep between samples: a 22-megapixel RGB picture. Larger ones are rare, and two buffers of
/// the largest allowed picture (268 MB each) per thread would break the memory promise.
pub(crate) const RETAINED_BYTES: usize = 64 << 20;

/// Reusable bytes whose content is unspecified: whoever takes them writes before reading.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

#[cfg_attr(not(feature = "image"), expect(dead_code, reason = "no op needs it"))]
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
