//! Options of every subcommand.

use super::storage::StorageArgs;
use clap::Args;
use std::num::NonZeroUsize;

/// Options of every subcommand.
#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print results as JSON, one value per line, and no progress.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no progress.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Number of CPU threads [default: the CPUs that this process may use].
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
}

impl Common {
    /// The number of CPU threads. `LOCAL_WORLD_SIZE` does not apply, because a command is not a rank.
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(feedstock_ingest::available_threads, NonZeroUsize::get)
    }
}
