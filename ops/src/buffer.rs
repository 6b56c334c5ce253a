//! Buffers that a thread keeps between samples.

/// Makes room for `length` elements in all, and for no more. Where there is too little, the content is dropped instead of
/// being copied, so that the old memory and the new are never there together.
pub(crate) fn fit<T>(buffer: &mut Vec<T>, length: usize) {
    if buffer.capacity() < length {
        *buffer = Vec::new();
        buffer.reserve_exact(length);
    }
}
