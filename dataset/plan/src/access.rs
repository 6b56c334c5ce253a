//! What reading a few samples of a data set takes.

/// What reading a few consecutive samples takes. The default unit of a shuffle depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The whole block: its samples are compressed together (Parquet with large pages, compressed Arrow IPC).
    Blocks,
    /// Whole pages of more than one sample (Parquet with small pages of equal numbers of samples). Page i has the samples from
    /// i·`samples` on.
    Pages {
        /// Samples of a page.
        samples: u32,
        /// Whether pages take one request each, or requests cost little, as on local disks.
        is_local: bool,
    },
    /// One request for all of them (on object storage: tars, Arrow IPC, Parquet with a page for each sample).
    Ranges,
    /// One request for each, or requests that cost little (folders and manifests, local tars and Arrow IPC, local Parquet with a
    /// page for each sample).
    Samples,
}
