//! Options of every subcommand.

use super::storage::StorageArgs;
use clap::Args;
use std::num::NonZeroUsize;

/// Options of every subcommand.
#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print results as JSON, one value a line, and no progress.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no progress.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// CPU threads [default: all CPUs that the process may use].
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

impl Common {
    /// A command is not a rank, so `LOCAL_WORLD_SIZE` does not apply.
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(feedstock_ingest::available_threads, NonZeroUsize::get)
    }
}
