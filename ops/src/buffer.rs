//! Buffers that a thread keeps between samples.

/// Makes room for `length` elements in all, and for no more. Where there is too little, the content is dropped instead of
/// being copied, so that the old memory and the new are never there together.
#[cfg(any(feature = "audio", feature = "image"))]
pub(crate) fn fit<T>(buffer: &mut Vec<T>, length: usize) {
    if buffer.capacity() < length {
        *buffer = Vec::new();
        buffer.reserve_exact(length);
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
