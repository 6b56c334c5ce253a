//! CUDA's handles and addresses as numbers.

/// Returns the driver's handle or address for this number.
pub(super) fn handle<T>(number: u64) -> *mut T {
    #[expect(clippy::cast_possible_truncation, reason = "an address of this machine")]
    std::ptr::with_exposed_provenance_mut(number as usize)
}

/// Returns the number of a handle.
pub(super) fn number<T>(handle: *mut T) -> u64 {
    handle.expose_provenance() as u64
}
