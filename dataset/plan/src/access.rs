//! What reading a few samples of a data set takes.

/// What reading a few consecutive samples takes. The default unit of a shuffle depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The whole block: its samples are compressed together (Parquet, compressed Arrow IPC).
    Blocks,
    /// One request for all of them (tars and Arrow IPC on object storage).
    Ranges,
    /// One request for each, or requests that cost little (folders and manifests, local tars and
    /// Arrow IPC).
    Samples,
}
