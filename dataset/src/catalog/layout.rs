//! Names of layouts.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a data set's objects are laid out. It is recognised from the objects, or named in [`crate::OpenOptions::layout`] if
/// they can be read in more than one way.
///
/// ```
/// use feedstock_dataset::Layout;
///
/// assert_eq!("webdataset".parse::<Layout>()?, Layout::WebDataset);
/// assert_eq!(Layout::HfParquet.to_string(), "parquet");
/// let error = "zip".parse::<Layout>().unwrap_err();
/// assert!(error.message().starts_with("no layout named zip; there are: parquet, folder, webdataset"));
/// # Ok::<(), feedstock_dataset::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Parquet files as on the Hugging Face hub: payloads in `struct<bytes, path>` or binary columns.
    #[serde(rename = "parquet")]
    HfParquet,
    /// `class/*.jpg` or `class/*.flac`, or files without classes.
    Folder,
    /// Tars whose members are grouped by key, as WebDataset writes them.
    WebDataset,
    /// ILSVRC's original `ILSVRC2012_img_train.tar` (a tar of tars) or its flat `…_val.tar`.
    #[serde(rename = "ilsvrc")]
    IlsvrcTar,
    /// Arrow IPC files or streams, as `datasets` saves and caches them.
    #[serde(rename = "ipc")]
    ArrowIpc,
    /// A CSV, TSV or Parquet table with a column of URIs.
    Manifest,
    /// Mozilla Common Voice, unpacked: `<locale>/clips/*.mp3` next to `train.tsv`, `dev.tsv` …
    #[serde(rename = "common_voice")]
    CommonVoice,
    /// Mozilla's archive of Common Voice: a `.tar.gz`, of which a seekable copy is made once, or a `.tar` read in place.
    #[serde(rename = "common_voice_tar")]
    CommonVoiceTar,
    /// Common Voice as Hugging Face's loading scripts expect it: `audio/<locale>/<split>/*.tar` and
    /// `transcript/<locale>/<split>.tsv`.
    #[serde(rename = "common_voice_hf")]
    CommonVoiceHf,
    /// Folders of files that belong together by their names ([`crate::OpenOptions::pair`]), such as images and masks.
    Pair,
    /// Images with COCO's file of annotations ([`crate::OpenOptions::annotations`]).
    Coco,
}

impl Layout {
    /// Every layout with its name, in the order of the declaration.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::HfParquet, "parquet"),
        (Self::Folder, "folder"),
        (Self::WebDataset, "webdataset"),
        (Self::IlsvrcTar, "ilsvrc"),
        (Self::ArrowIpc, "ipc"),
        (Self::Manifest, "manifest"),
        (Self::CommonVoice, "common_voice"),
        (Self::CommonVoiceTar, "common_voice_tar"),
        (Self::CommonVoiceHf, "common_voice_hf"),
        (Self::Pair, "pair"),
        (Self::Coco, "coco"),
    ];

    /// Returns its name, which [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|(_, n)| *n == name).map(|(layout, _)| layout).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(_, n)| *n).collect();
            Error::config(format!("no layout named {name}; there are: {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_layouts() {
        for (at, (layout, name)) in Layout::ALL.into_iter().enumerate() {
            assert_eq!((layout as usize, layout.name()), (at, name));
            assert_eq!(serde_json::to_value(layout).unwrap(), name);
        }
    }
}
