//! Buffers of pixels.

use crate::buffer::fit;

/// Reusable bytes whose content is unspecified: the caller writes them before reading.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// `len` bytes of unspecified (but initialised) content.
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            fit(&mut self.0, len);
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

    pub(crate) fn kept_bytes(&self) -> usize {
        self.0.capacity()
    }
}
