//! Whether and how durations of audio clips are read from their headers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// From the first bytes of an audio clip and its whole length to its duration in seconds.
type Read = dyn Fn(&[u8], u64) -> Option<f64> + Send + Sync;

/// Reads a clip's duration in seconds out of its first bytes. Cheap to clone.
#[derive(Clone)]
pub struct AudioProbe {
    pub(crate) version: u32,
    read: Arc<Read>,
}

impl AudioProbe {
    /// A probe that calls `read` with a clip's first bytes and the clip's whole length in bytes: on I/O threads, with 16 KiB,
    /// perhaps again with 256 KiB and 8 MiB, or with a whole clip. It must not decode. `None`, a negative number or one that is
    /// not finite mean that the duration is unknown.
    ///
    /// `version`, at least 1, is to be raised when `read` returns another duration for the same clip: durations in stored
    /// catalogs are read again then. The identity of a data set and its order without bucketing stay the same.
    ///
    /// # Panics
    /// If `version` is 0.
    pub fn new(version: u32, read: impl Fn(&[u8], u64) -> Option<f64> + Send + Sync + 'static) -> Self {
        assert!(version > 0, "versions of a probe begin at 1");
        Self { version, read: Arc::new(read) }
    }

    /// The duration, if there is one.
    pub(crate) fn seconds(&self, head: &[u8], bytes: u64) -> Option<f64> {
        (self.read)(head, bytes).filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
    }
}

impl fmt::Debug for AudioProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AudioProbe").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Are durations looked for where a data set of audio does not tell them?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durations {
    /// From the clips' headers, if there is an [`AudioProbe`]: once, when the catalog is built. The default, because
    /// filters and bucketing by length need them, and a plan cannot wait for decoding.
    ///
    /// 16 KiB of each clip are read where clips are files or members of tars. **Of Parquet and Arrow IPC all of the audio
    /// is read**, for clips in their pages cannot be read in part: opening such a data set for the first time takes as
    /// long as copying it. The log says how much it is; keep the catalog beside the data, so that it is read once.
    #[default]
    Auto,
    /// Never: the catalog is built faster, without the column. For Parquet that neither is filtered nor bucketed by
    /// length.
    Never,
}
