//! The description of a data set: what another process needs to open the same one.

use crate::storage::shown;
use crate::{BadShards, Dataset, Durations, Error, Layout, OpenOptions, Result, Stop};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Stored data sets at most in a description from outside.
const PARTS_MAX: usize = 4096;

/// Which samples and columns, of which data set. It holds no endpoints and no credentials but those in URLs; the
/// process that opens it brings the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// What is opened.
    pub source: SourceSpec,
    /// The filters, as one SQL expression; of a mix or a concatenation, in addition to those of its parts.
    pub filter: Option<String>,
    /// The chosen columns; `None` for all.
    pub columns: Option<Vec<String>>,
    /// What it is called in a mix or a concatenation.
    pub name: Option<String>,
}

/// One data set or several.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SourceSpec {
    /// A data set, and the [`OpenOptions`] that its order depends on.
    Uri {
        /// A folder, an object or a pattern; absolute. It has the credentials of a URL, since the other process needs them;
        /// `Debug` does not print them.
        uri: String,
        /// The layout; `None`: recognised.
        layout: Option<Layout>,
        /// The split, where there are several.
        split: Option<String>,
        /// Are clips' headers read for durations?
        durations: Durations,
        /// Encoded bytes a block aims at.
        block_bytes: u64,
        /// What happens to damaged shards.
        #[serde(default, skip_serializing_if = "BadShards::is_default")]
        bad_shards: BadShards,
    },
    /// A weighted mix.
    Mix {
        /// The parts and their weights.
        parts: Vec<(DatasetSpec, f64)>,
        /// When an epoch ends.
        stop: Stop,
    },
    /// Data sets one after another.
    Concat {
        /// The parts, in their order; a part may be a concatenation itself.
        parts: Vec<DatasetSpec>,
    },
}

impl fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri { uri, layout, split, durations, block_bytes, bad_shards } => f
                .debug_struct("Uri")
                .field("uri", &shown(uri))
                .field("layout", layout)
                .field("split", split)
                .field("durations", durations)
                .field("block_bytes", block_bytes)
                .field("bad_shards", bad_shards)
                .finish(),
            Self::Mix { parts, stop } => {
                f.debug_struct("Mix").field("parts", parts).field("stop", stop).finish()
            }
            Self::Concat { parts } => f.debug_struct("Concat").field("parts", parts).finish(),
        }
    }
}

impl DatasetSpec {
    /// Opens it; `options` gives each data set what a description does not hold: storage, caches, functions.
    ///
    /// # Errors
    /// As [`Dataset::open_with`], [`Dataset::mix`], [`Dataset::concat`] and [`Dataset::filter`].
    pub async fn open(&self, options: &(dyn Fn() -> OpenOptions + Sync)) -> Result<Dataset> {
        let stored = self.uris().len();
        if stored > PARTS_MAX {
            return Err(Error::config(format!(
                "the description names {stored} data sets; it may name at most {PARTS_MAX}"
            )));
        }
        self.open_part(options).await
    }

    /// Every URI that it names.
    pub fn uris(&self) -> Vec<&str> {
        match &self.source {
            SourceSpec::Uri { uri, .. } => vec![uri],
            SourceSpec::Mix { parts, .. } => parts.iter().flat_map(|(part, _)| part.uris()).collect(),
            SourceSpec::Concat { parts } => parts.iter().flat_map(Self::uris).collect(),
        }
    }

    /// Opens the source, then filters it and chooses its columns.
    ///
    /// Boxed, since it calls itself for parts. JSON's parser bounds how deep descriptions from outside are nested.
    fn open_part<'a>(
        &'a self,
        options: &'a (dyn Fn() -> OpenOptions + Sync),
    ) -> BoxFuture<'a, Result<Dataset>> {
        Box::pin(async move {
            let mut dataset = self.source.open(options).await?;
            if let Some(filter) = &self.filter {
                dataset = dataset.filter(filter).await?;
            }
            self.chosen(dataset)
        })
    }

    fn chosen(&self, mut dataset: Dataset) -> Result<Dataset> {
        if let Some(name) = &self.name {
            dataset = dataset.named(name);
        }
        match &self.columns {
            Some(columns) => dataset.columns(&columns.iter().map(String::as_str).collect::<Vec<_>>()),
            None => Ok(dataset),
        }
    }
}

impl SourceSpec {
    async fn open(&self, options: &(dyn Fn() -> OpenOptions + Sync)) -> Result<Dataset> {
        match self {
            Self::Uri { uri, layout, split, durations, block_bytes, bad_shards } => {
                let options = OpenOptions {
                    layout: *layout,
                    split: split.clone(),
                    durations: *durations,
                    block_bytes: *block_bytes,
                    bad_shards: *bad_shards,
                    ..options()
                };
                Dataset::open_with(uri, options).await
            }
            Self::Mix { parts, stop } => {
                let mut opened = Vec::with_capacity(parts.len());
                for (part, weight) in parts {
                    opened.push((part.open_part(options).await?, *weight));
                }
                Dataset::mix(opened, *stop)
            }
            Self::Concat { parts } => {
                let mut opened = Vec::with_capacity(parts.len());
                for part in parts {
                    opened.push(part.open_part(options).await?);
                }
                Dataset::concat(opened)
            }
        }
    }

    pub(crate) fn of(uri: &str, options: &OpenOptions) -> Result<Self> {
        Ok(Self::Uri {
            uri: crate::catalog::absolute(uri)?,
            layout: options.layout,
            split: options.split.clone(),
            durations: if options.probes() { Durations::Auto } else { Durations::Never },
            block_bytes: options.block_bytes,
            bad_shards: options.bad_shards,
        })
    }
}

impl Dataset {
    /// Its description, for another process.
    pub fn spec(&self) -> DatasetSpec {
        let fields = self.catalog().schema().fields();
        let all = self.columns.iter().copied().eq(0..fields.len());
        let names = self.columns.iter().map(|&column| fields[column].name().clone());
        DatasetSpec {
            source: self.opened.source.clone(),
            filter: self.filter_sql().map(str::to_owned),
            columns: (!all).then(|| names.collect()),
            name: self.name.as_deref().map(str::to_owned),
        }
    }
}
