//! When the headers of WebDataset tars are read.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// When the headers of WebDataset tars are read.
///
/// ```
/// use feedstock_dataset::TarHeaders;
///
/// assert_eq!(TarHeaders::default(), TarHeaders::Open);
/// assert_eq!("read".parse(), Ok(TarHeaders::Read));
/// assert_eq!("never".parse::<TarHeaders>(), Err("must be open or read; got never".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TarHeaders {
    /// When the data set is opened for the first time: the catalog has the key and the members of every sample. Indexes next
    /// to the tars make that faster and change nothing else.
    #[default]
    Open,
    /// When samples are read. Every tar must have an index of offsets (`x.tar.idx` of Megatron Energon), and opening reads two
    /// objects of a few KiB for each tar. For tars of many TB whose samples have no text.
    ///
    /// - Columns are `key` and the members of the first sample. A sample that lacks one has a null there. Members of other
    ///   extensions are ignored, with one warning for each extension; a sample's only image (`x.png` for `x.jpg`, not `x.mask.png`)
    ///   is `image`.
    /// - A filter on `key` reads the headers of all tars each time the data set is opened.
    /// - Samples are read whole, also if only some of their columns are.
    /// - The order and the identity differ from those of [`Open`](Self::Open), so a cursor of one does not fit the other, and
    ///   `on_change="remap"` refuses it.
    /// - The identity has the first member of each tar. Other members that were replaced by members of the same size are not noticed.
    /// - If the first sample has text (`.json`, `.txt`, `.cls` …) or audio, headers are read as with [`Open`](Self::Open),
    ///   and the catalog has a note.
    Read,
}

impl TarHeaders {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for TarHeaders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => Ok(Self::Open),
            "read" => Ok(Self::Read),
            _ => Err(format!("must be open or read; got {text}")),
        }
    }
}
