//! The description of a data set: what another process needs to open the same one.

use super::options::OpenOptions;
use super::probe::Durations;
use crate::steps::SelectionStep;
use crate::storage::{absolute, shown};
use crate::{BadShards, Layout, Result, Stop, TarHeaders};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which samples and columns, of which data set. It holds no endpoints, and no credentials except those in URLs; the process
/// that opens it adds its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// What is opened.
    pub source: SourceSpec,
    /// The filters, as one SQL expression; of a mix or a concatenation, in addition to those of its parts.
    pub filter: Option<String>,
    /// What selects samples after the filter, in sequence; if not empty, filters are here too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<SelectionStep>,
    /// The other data sets of the joins among the steps, in their sequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<DatasetSpec>,
    /// The chosen columns; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Its name in a mix or a concatenation.
    pub name: Option<String>,
}

/// One data set, or several.
///
/// ```
/// use feedstock_dataset::{BadShards, Durations, SourceSpec, TarHeaders};
///
/// let source = SourceSpec::Uri {
///     uri: "https://user:pw@h.example/train.tar?sig=1f".into(),
///     layout: None,
///     split: None,
///     durations: Durations::Never,
///     block_bytes: 4 << 20,
///     bad_shards: BadShards::Raise,
///     tar_headers: TarHeaders::Open,
///     pair: Default::default(),
///     annotations: None,
/// };
/// assert!(format!("{source:?}").contains("https://***@h.example/train.tar?***")); // nothing secret in a log
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SourceSpec {
    /// A data set, and the [`OpenOptions`] that its order depends on.
    Uri {
        /// A folder, an object or a pattern; absolute. It includes the credentials of a URL, since the other process needs
        /// them; `Debug` does not print them.
        uri: String,
        /// The layout; `None`: recognised.
        layout: Option<Layout>,
        /// The split, where there are several.
        split: Option<String>,
        /// Whether durations are read from the headers of audio clips.
        durations: Durations,
        /// Target of the encoded bytes of a block.
        block_bytes: u64,
        /// What happens to damaged shards.
        #[serde(default, skip_serializing_if = "BadShards::is_default")]
        bad_shards: BadShards,
        /// When the headers of WebDataset tars are read.
        #[serde(default, skip_serializing_if = "TarHeaders::is_default")]
        tar_headers: TarHeaders,
        /// The patterns of files that belong together, by column.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pair: BTreeMap<String, String>,
        /// The URI of COCO's file of annotations; absolute, with its credentials as `uri`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        annotations: Option<String>,
    },
    /// A weighted mix.
    Mix {
        /// The parts and their weights.
        parts: Vec<(DatasetSpec, f64)>,
        /// When an epoch ends.
        stop: Stop,
    },
    /// Data sets end to end.
    Concat {
        /// The parts, in their order; a part may be a concatenation itself.
        parts: Vec<DatasetSpec>,
    },
}

impl fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri {
                uri,
                layout,
                split,
                durations,
                block_bytes,
                bad_shards,
                tar_headers,
                pair,
                annotations,
            } => f
                .debug_struct("Uri")
                .field("uri", &shown(uri))
                .field("layout", layout)
                .field("split", split)
                .field("durations", durations)
                .field("block_bytes", block_bytes)
                .field("bad_shards", bad_shards)
                .field("tar_headers", tar_headers)
                .field("pair", pair)
                .field("annotations", &annotations.as_deref().map(shown))
                .finish(),
            Self::Mix { parts, stop } => {
                f.debug_struct("Mix").field("parts", parts).field("stop", stop).finish()
            }
            Self::Concat { parts } => f.debug_struct("Concat").field("parts", parts).finish(),
        }
    }
}

impl DatasetSpec {
    /// Returns every URI that it names: of data sets, each followed by that of its annotations.
    pub fn uris(&self) -> Vec<&str> {
        self.sources().into_iter().flat_map(SourceSpec::uris).collect()
    }

    /// Returns the data sets at one URI that it consists of, then those of its joins.
    pub fn sources(&self) -> Vec<&SourceSpec> {
        let mut sources: Vec<&SourceSpec> = match &self.source {
            SourceSpec::Uri { .. } => vec![&self.source],
            SourceSpec::Mix { parts, .. } => parts.iter().flat_map(|(part, _)| part.sources()).collect(),
            SourceSpec::Concat { parts } => parts.iter().flat_map(Self::sources).collect(),
        };
        sources.extend(self.joined.iter().flat_map(Self::sources));
        sources
    }
}

impl SourceSpec {
    /// Returns its URI; `None` for several data sets.
    pub(crate) fn uri(&self) -> Option<&str> {
        match self {
            Self::Uri { uri, .. } => Some(uri),
            Self::Mix { .. } | Self::Concat { .. } => None,
        }
    }

    /// Returns its URI and that of its annotations.
    fn uris(&self) -> impl Iterator<Item = &str> {
        let annotations = match self {
            Self::Uri { annotations, .. } => annotations.as_deref(),
            Self::Mix { .. } | Self::Concat { .. } => None,
        };
        self.uri().into_iter().chain(annotations)
    }

    pub(crate) fn of(uri: &str, options: &OpenOptions) -> Result<Self> {
        Ok(Self::Uri {
            uri: absolute(uri)?,
            layout: options.layout,
            split: options.split.clone(),
            durations: if options.probes() { Durations::Auto } else { Durations::Never },
            block_bytes: options.block_bytes,
            bad_shards: options.bad_shards,
            tar_headers: options.tar_headers,
            pair: options.pair.clone(),
            annotations: options.annotations.clone(),
        })
    }
}
