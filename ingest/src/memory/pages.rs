//! Memory of large, reused buffers.

use feedstock_base::PAGE_BYTES;
use memmap2::{MmapMut, MmapRaw};
use std::ptr::NonNull;

/// Page-aligned bytes, shared by their owner, the tasks that write them and the views that read them.
///
/// A separate mapping, which the system gets back whole: batches are the largest things here and change their size, and
/// a general allocator that has freed one keeps all later things of that size among its small ones, holes included.
pub struct Pages {
    bytes: MmapRaw,
}

impl Pages {
    /// At least `bytes` bytes of zeros; `None` where there is no memory for them.
    pub fn new(bytes: usize) -> Option<Self> {
        let size = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let mapped = MmapMut::map_anon(size).ok()?; // zeros, once they are touched
        Some(Self { bytes: mapped.into() })
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The address of byte `offset`.
    ///
    /// # Panics
    /// If `offset` exceeds the size.
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.size(), "byte {offset} is outside of {} bytes of memory", self.size());
        // SAFETY: just checked to lie inside the mapping or at its end.
        let address = unsafe { self.bytes.as_mut_ptr().add(offset) };
        #[expect(clippy::expect_used, reason = "no mapping begins at address 0")]
        NonNull::new(address).expect("a mapping has an address")
    }
}
