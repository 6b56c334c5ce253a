//! The encoded images of one sample, as a chain of lists gets them.

use feedstock_base::Result;

/// The encoded images of one sample.
pub trait ImageList {
    /// Returns their number.
    fn count(&self) -> usize;

    /// Returns the encoded bytes of image `number` (from 0).
    ///
    /// # Errors
    /// `BadSample` if there are none, for example because the image is null.
    fn image(&self, number: usize) -> Result<&[u8]>;
}

impl ImageList for Vec<&[u8]> {
    fn count(&self) -> usize {
        self.len()
    }

    fn image(&self, number: usize) -> Result<&[u8]> {
        Ok(self[number])
    }
}
