//! Memory of large, reused buffers.

use feedstock_base::PAGE_BYTES;
use memmap2::{MmapMut, MmapRaw};
use std::ptr::NonNull;

/// Page-aligned bytes, shared by their owner, the tasks that write them and the views that read them.
///
/// It is a separate mapping, which the system gets back whole. Batches are the largest allocations and change their size. A
/// general allocator would keep freed ones, and put later allocations of that size among its small ones, with holes.
///
/// ```
/// use feedstock_ingest::Pages;
///
/// let pages = Pages::new(5_000).unwrap();
/// assert_eq!(pages.size(), 8_192); // whole pages of 4,096 bytes
/// assert_eq!(pages.at(0).as_ptr() as usize % 4_096, 0);
/// assert!(Pages::new(usize::MAX).is_none());
/// ```
pub struct Pages {
    bytes: MmapRaw,
}

impl Pages {
    /// Allocates at least `bytes` bytes of zeros; `None` if the system has too little memory.
    pub fn new(bytes: usize) -> Option<Self> {
        let size = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let mapped = MmapMut::map_anon(size).ok()?; // zeros, once they are touched
        Some(Self { bytes: mapped.into() })
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the address of byte `offset`.
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
