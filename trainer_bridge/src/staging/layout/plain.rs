//! Converts values to the bytes that kernels read.

use feedstock_device::kernels::{CropRow, Mask, PictureRow};

/// Plain numbers without padding, as the kernels' structures are.
///
/// # Safety
/// Every byte of a value is initialised.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: numbers, and structures of numbers of four bytes each.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for [f32; 2] {}
// SAFETY: as above.
unsafe impl Plain for PictureRow {}
// SAFETY: as above.
unsafe impl Plain for Mask {}
// SAFETY: numbers of eight bytes, and an even number of numbers of four bytes.
unsafe impl Plain for CropRow {}

/// Returns the bytes of `values`, as kernels read them.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain`'s contract.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
