//! What an op on text has to implement.

use crate::resources::{Needs, Resources};
use crate::scratch::Part;
use feedstock_base::Result;

/// An op on text.
pub(crate) trait TextOp {
    /// Checks the parameters, and prepares the op.
    ///
    /// # Errors
    /// `BadConfig` with the reason.
    fn compile(&self, resources: &Resources) -> Result<Box<dyn TextStep>>;

    /// True if the op takes a sample's bytes, so that a chain can start with it.
    fn takes_bytes(&self) -> bool {
        true
    }

    /// Lists what the op refers to.
    fn refer(&self, _: &mut Needs) {}
}

/// A prepared op: a text into token ids.
pub(crate) trait TextStep: Send + Sync {
    /// Bytes of the longest text.
    fn max_bytes(&self) -> usize;

    /// Bytes of working memory for each byte of a text.
    fn memory_a_byte(&self) -> u64;

    /// Adds the ids to those of `scratch`.
    ///
    /// # Errors
    /// `BadSample` for a text that the op cannot work on.
    fn run(&self, text: &[u8], scratch: &mut TextScratch) -> Result<()>;
}

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct TextScratch {
    pub(crate) ids: Vec<i64>,
    pub(crate) lowered: String,
}

impl Part for TextScratch {
    fn kept_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<i64>() + self.lowered.capacity()
    }
}
