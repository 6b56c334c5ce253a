//! Whether and how the durations of audio clips are read from their headers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Returns the duration in seconds, given the first bytes of an audio clip and its whole length.
type Read = dyn Fn(&[u8], u64) -> Option<f64> + Send + Sync;

/// Returns the name of the codec in the first bytes of an audio clip, if it is not decoded.
type Unsupported = dyn Fn(&[u8]) -> Option<&'static str> + Send + Sync;

/// Reads the duration of an audio clip, in seconds, from its first bytes. Cheap to clone.
///
/// ```
/// use feedstock_dataset::{AudioProbe, Dataset};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # for (name, bytes) in [("1.flac", vec![0; 32_000]), ("2.flac", vec![0; 8_000])] {
/// #     std::fs::write(folder.path().join(name), bytes).unwrap();
/// # }
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let uri = folder.path().to_str().unwrap();
/// let probe = AudioProbe::new(1, |_head, bytes| Some(bytes as f64 / 16_000.0)); // of a constant bit rate
/// let options = OpenOptions { audio_probe: Some(probe), catalog, ..OpenOptions::default() };
/// # futures::executor::block_on(async {
/// let dataset = Dataset::open_with(uri, options).await?; // 1.flac: 32,000 bytes, 2.flac: 8,000 bytes
/// assert_eq!(dataset.lengths("duration").await?.values()[..], [2.0, 0.5]);
/// assert_eq!(dataset.filter("duration >= 1").await?.len(), 1);
/// # Ok::<(), feedstock_dataset::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AudioProbe {
    pub(crate) version: u32,
    read: Arc<Read>,
    unsupported: Option<Arc<Unsupported>>,
}

/// What the first bytes of an audio clip state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probe {
    pub(crate) seconds: Option<f64>,
    /// The name of a codec that is not decoded.
    pub(crate) unsupported: Option<&'static str>,
}

impl Probe {
    /// Whether more bytes would add nothing.
    pub(crate) fn is_enough(&self) -> bool {
        self.seconds.is_some() || self.unsupported.is_some()
    }
}

impl AudioProbe {
    /// Creates a probe that calls `read` on I/O threads with the first bytes of an audio clip and its whole length in bytes.
    /// It gets 16 KiB, then perhaps 256 KiB and 8 MiB, or the whole audio clip, and must not decode. `None`, a negative number
    /// or one that is not finite mean that the duration is unknown.
    ///
    /// Raise `version`, at least 1, when `read` returns another duration for the same audio clip: then the durations in
    /// stored catalogs are read again. The identity of a data set, and its order without bucketing, stay the same.
    ///
    /// # Panics
    /// If `version` is 0.
    pub fn new(version: u32, read: impl Fn(&[u8], u64) -> Option<f64> + Send + Sync + 'static) -> Self {
        assert!(version > 0, "versions of a probe begin at 1");
        Self { version, read: Arc::new(read), unsupported: None }
    }

    /// Also calls `name` with the first bytes of each audio clip. It returns the name of the codec if that is not decoded.
    /// The catalog stores the names: see [`Dataset::unsupported_audio`](crate::Dataset::unsupported_audio).
    ///
    /// Raise the version when `name` no longer names a codec.
    #[must_use]
    pub fn unsupported(self, name: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static) -> Self {
        Self { unsupported: Some(Arc::new(name)), ..self }
    }

    /// Reads the first bytes of an audio clip of `bytes` bytes.
    pub(crate) fn read(&self, head: &[u8], bytes: u64) -> Probe {
        let seconds = (self.read)(head, bytes).filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        Probe { seconds, unsupported: self.unsupported_in(head) }
    }

    /// Returns the codec that the first bytes of an audio clip name, if it is not decoded.
    pub(crate) fn unsupported_in(&self, head: &[u8]) -> Option<&'static str> {
        self.unsupported.as_ref().and_then(|name| name(head))
    }

    /// Whether it names codecs that are not decoded.
    pub(crate) fn names_codecs(&self) -> bool {
        self.unsupported.is_some()
    }
}

impl fmt::Debug for AudioProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AudioProbe").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Whether durations are read from headers if a data set of audio does not state them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durations {
    /// From the headers of audio clips, if there is an [`AudioProbe`]: once, when the catalog is built. This is the default,
    /// because filters and bucketing by length need durations, and a plan cannot wait for decoding.
    ///
    /// Audio clips that are files or members of tars are read for 16 KiB each. **In Parquet and Arrow IPC files, all of the
    /// audio is read**, because pages cannot be read in part. Opening such a data set for the first time takes as long as
    /// copying it. The log states the amount; keep the catalog next to the data, so that it is read once.
    #[default]
    Auto,
    /// Never: the catalog is built faster, without the column. Only some headers are read, to name codecs that are not decoded
    /// ([`Dataset::unsupported_audio`](crate::Dataset::unsupported_audio)). For Parquet files that are neither filtered nor bucketed by
    /// length.
    Never,
}
