//! The options that bound the memory of a loader.

use feedstock_trainer_bridge::Pipeline;

/// The memory of each rank.
#[derive(clap::Args)]
pub(crate) struct MemoryArgs {
    /// Number of batches in memory for each rank.
    #[arg(long, default_value_t = 4)]
    pub(crate) slots: usize,
    /// Bytes of decompressed blocks in memory for each rank [default: 1 GiB].
    #[arg(long, value_name = "BYTES")]
    budget_bytes: Option<u64>,
    /// Bytes that each rank fetches for batches that have no slot yet [default: 64 MiB from a local disk, else 128 MiB].
    #[arg(long, value_name = "BYTES")]
    prefetch_bytes: Option<u64>,
    /// Bytes of working memory that each CPU thread may take for one sample. Larger samples borrow from
    /// --budget-bytes [default: 64 MiB].
    #[arg(long, value_name = "BYTES")]
    decoder_memory: Option<u64>,
}

impl MemoryArgs {
    pub(crate) fn apply(&self, mut pipeline: Pipeline) -> Pipeline {
        pipeline = pipeline.slots(self.slots);
        if let Some(bytes) = self.budget_bytes {
            pipeline = pipeline.budget_bytes(bytes);
        }
        if let Some(bytes) = self.prefetch_bytes {
            pipeline = pipeline.prefetch_bytes(bytes);
        }
        if let Some(bytes) = self.decoder_memory {
            pipeline = pipeline.decoder_memory(bytes);
        }
        pipeline
    }
}
