//! Options that select a data set: URI, layout, filter, catalog.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::progress::Reporter;
use clap::Args;
use feedstock_dataset::{
    BadShards, CatalogCheck, CatalogOptions, CatalogSource, CatalogStore, Dataset, Layout, OpenOptions,
    Shuffle, TarHeaders,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The data set and its selected samples.
#[derive(Args, Debug, Clone)]
pub(crate) struct SourceArgs {
    /// A folder, a file or a pattern: /data/train, s3://bucket/train, 's3://bucket/train-{000..099}.tar'.
    pub(crate) uri: String,
    #[command(flatten)]
    pub(crate) how: OpenArgs,
}

/// How a data set is opened, and which samples are selected.
#[derive(Args, Debug, Clone)]
pub(crate) struct OpenArgs {
    /// The layout [default: detected]: parquet, folder, webdataset, ilsvrc, ipc, manifest, common_voice,
    /// common_voice_tar, common_voice_hf, pair (with --pair), coco (with --annotations).
    #[arg(long)]
    layout: Option<Layout>,
    /// What to do with a shard whose footer or headers are damaged, or whose schema differs from that of most shards:
    /// raise stops with an error, skip leaves the shard out.
    #[arg(long, value_name = "HOW", default_value = "raise")]
    bad_shards: BadShards,
    /// When the headers of WebDataset tars are read: open, when the catalog is built, or read, with the samples. The latter
    /// needs an index of offsets (x.tar.idx) for each tar, and opens many TB in seconds.
    #[arg(long, value_name = "WHEN", default_value = "open")]
    tar_headers: TarHeaders,
    /// Files that belong together by their names, once for each column: --pair image=images/{}.jpg --pair mask=masks/{}.png.
    /// Patterns are relative to the URI; {} is the key of a sample.
    #[arg(long, value_name = "COLUMN=PATTERN", value_parser = column_and_pattern)]
    pair: Vec<(String, String)>,
    /// A file of annotations in COCO's format for the images at the URI: a URI, or a path relative to the data set's folder.
    #[arg(long, value_name = "JSON", conflicts_with = "pair")]
    annotations: Option<String>,
    /// The split, if the URI has several: train, dev, test, validated …
    #[arg(long)]
    split: Option<String>,
    /// Give a column another name. Can be repeated; names can be swapped. All flags below use the new names.
    #[arg(long, value_name = "OLD=NEW", value_parser = pair)]
    rename: Vec<(String, String)>,
    /// Add the metadata columns of the data set at this URI, where its keys are equal to keys of this one.
    #[arg(long, value_name = "URI", requires = "on")]
    join: Option<String>,
    /// The column of keys of --join, or a column here and one there. Can be repeated.
    #[arg(long, value_name = "KEY|HERE=THERE", requires = "join")]
    on: Vec<String>,
    /// Add a column of the values of an SQL expression ("words=length(sentence)"). Can be repeated; later expressions and --filter
    /// can use it.
    #[arg(long, value_name = "NAME=SQL", value_parser = pair)]
    with_column: Vec<(String, String)>,
    /// Keep the samples for which this SQL expression is true ("label < 100 and width > 64").
    #[arg(long, value_name = "SQL")]
    pub(crate) filter: Option<String>,
    /// Leave out the first samples that the filter keeps, in catalog order.
    #[arg(long, value_name = "SAMPLES")]
    skip: Option<u64>,
    /// Keep the first samples, in catalog order, after --filter and --skip; all of them if there are fewer.
    #[arg(long, value_name = "SAMPLES")]
    take: Option<u64>,
    #[command(flatten)]
    catalog: StoreArgs,
    /// Target size of a block in encoded bytes. Another size changes the order [default: 4 MiB].
    #[arg(long, value_name = "BYTES")]
    block_bytes: Option<u64>,
}

/// Reads `COLUMN=PATTERN`.
fn column_and_pattern(text: &str) -> Result<(String, String), String> {
    let (column, pattern) =
        text.split_once('=').ok_or("it must be COLUMN=PATTERN, such as image=images/{}.jpg")?;
    Ok((column.to_owned(), pattern.to_owned()))
}

/// Where catalogs are stored.
#[derive(Args, Debug, Clone)]
pub(crate) struct StoreArgs {
    /// Store the catalog in this folder [default: $FEEDSTOCK_CACHE/catalogs, else ~/.cache/feedstock/catalogs].
    #[arg(long, value_name = "DIR", conflicts_with = "beside")]
    catalog_dir: Option<PathBuf>,
    /// Store the catalog next to the data, in _feedstock/.
    #[arg(long)]
    beside: bool,
    /// Look for a ready catalog in this folder or bucket before building one; `beside`: in _feedstock/ next to the data. Can be
    /// repeated. `feedstock catalog --publish` stores ready catalogs.
    #[arg(long, value_name = "FOLDER")]
    catalogs_from: Vec<CatalogSource>,
    /// How a stored catalog is compared with storage: auto lists the objects if there are at most 100,000; list
    /// always does.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    check: CatalogCheck,
}

impl StoreArgs {
    /// Returns the options of where catalogs are stored and how they are checked; all others have their defaults.
    pub(crate) fn options(&self) -> CatalogOptions {
        CatalogOptions {
            store: self.store(),
            sources: self.catalogs_from.clone(),
            check: self.check,
            ..CatalogOptions::default()
        }
    }

    pub(crate) fn store(&self) -> CatalogStore {
        match (&self.catalog_dir, self.beside) {
            (Some(dir), _) => CatalogStore::Cache(dir.clone()),
            (None, true) => CatalogStore::Beside,
            (None, false) => CatalogStore::default(),
        }
    }
}

impl SourceArgs {
    /// Opens the data set and selects samples.
    pub(crate) fn open(&self, common: &Common) -> Outcome<Dataset> {
        self.how.open(&self.uri, common, false)
    }
}

impl OpenArgs {
    /// Returns where the catalog is stored.
    pub(crate) fn store(&self) -> CatalogStore {
        self.catalog.store()
    }

    /// Returns the patterns by column.
    fn pair(&self) -> Outcome<BTreeMap<String, String>> {
        let mut pair = BTreeMap::new();
        for (column, pattern) in &self.pair {
            if pair.insert(column.clone(), pattern.clone()).is_some() {
                return Err(Failure::config(format!("--pair has the column {column} twice")));
            }
        }
        Ok(pair)
    }

    /// Opens the data set at `uri` and selects samples. With `rebuild`, the catalog is built from the objects, even if a
    /// stored one is current.
    pub(crate) fn open(&self, uri: &str, common: &Common, rebuild: bool) -> Outcome<Dataset> {
        let reporter = Arc::new(Reporter::new(common, "opening"));
        let mut options = OpenOptions {
            layout: self.layout,
            split: self.split.clone(),
            bad_shards: self.bad_shards,
            tar_headers: self.tar_headers,
            pair: self.pair()?,
            annotations: self.annotations.clone(),
            ..self.options(common, &reporter, rebuild)
        };
        if let Some(block_bytes) = self.block_bytes {
            options.block_bytes = block_bytes;
        }
        let opened = futures::executor::block_on(async {
            let mut dataset = Dataset::open_with(uri, options).await?;
            if !self.rename.is_empty() {
                let names = self.rename.iter().map(|(old, new)| (old.as_str(), new.as_str()));
                dataset = dataset.rename(&names.collect::<Vec<_>>())?;
            }
            if let Some(other) = &self.join {
                let other = Dataset::open_with(other, self.options(common, &reporter, false)).await?;
                let keys =
                    self.on.iter().map(|key| key.split_once('=').unwrap_or((key.as_str(), key.as_str())));
                dataset = dataset.join(&other, &keys.collect::<Vec<_>>()).await?;
            }
            for (name, sql) in &self.with_column {
                dataset = dataset.with_column(name, sql).await?;
            }
            if let Some(filter) = &self.filter {
                dataset = dataset.filter(filter).await?;
            }
            if let Some(samples) = self.skip {
                dataset = dataset.skip(samples)?;
            }
            match self.take {
                Some(samples) => dataset.take(samples),
                None => Ok(dataset),
            }
        });
        reporter.end();
        Ok(opened?)
    }

    /// Returns the options that do not depend on what is opened.
    fn options(&self, common: &Common, reporter: &Arc<Reporter>, rebuild: bool) -> OpenOptions {
        let told = reporter.clone();
        OpenOptions {
            storage: common.storage.options(),
            catalog: CatalogOptions {
                rebuild,
                progress: Some(Arc::new(move |now| told.tell(now.stage, now.done, now.total, None))),
                ..self.catalog.options()
            },
            audio_probe: Some(feedstock_trainer_bridge::audio_probe()),
            functions: feedstock_ops::sql_functions(),
            ..OpenOptions::default()
        }
    }
}

/// Parses `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("it must be two texts with = between them".to_owned()),
    }
}

/// The order of samples.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Order")]
pub(crate) struct ShuffleArgs {
    /// Seed of the order and of random ops.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Number of samples that are shuffled together, over all ranks [default: by --shuffle-bytes].
    #[arg(long, value_name = "SAMPLES")]
    window: Option<u64>,
    /// Encoded bytes of the samples that are shuffled together, over all ranks [default: 256 MiB for pieces, 512 MiB for
    /// blocks].
    #[arg(long, value_name = "BYTES", conflicts_with = "window")]
    shuffle_bytes: Option<u64>,
    /// Number of consecutive samples that stay together until they are shuffled in a window: smaller pieces mix better and
    /// take more requests [default: for tars and uncompressed Arrow IPC on object storage, those of 256 KiB; with
    /// --window, blocks].
    #[arg(long, value_name = "SAMPLES")]
    piece: Option<u32>,
    /// Number of lanes; for large jobs, a multiple of the largest world size [default: up to 64].
    #[arg(long, value_name = "N")]
    lanes: Option<u32>,
    /// window mixes within a bounded memory: in folders, local tars and local uncompressed Arrow IPC, all samples; elsewhere
    /// pieces or blocks, and samples within windows. full shuffles all samples; none keeps the catalog order.
    #[arg(long, value_name = "KIND", default_value = "window", value_parser = ["window", "full", "none"])]
    shuffle: String,
}

impl ShuffleArgs {
    pub(crate) fn shuffle(&self) -> Outcome<Shuffle> {
        let mut shuffle = match self.shuffle.as_str() {
            "full" => Shuffle::full(self.seed),
            "none" => Shuffle::none(),
            _ => Shuffle::seeded(self.seed),
        };
        let options = [
            ("--window", self.window.is_some()),
            ("--shuffle-bytes", self.shuffle_bytes.is_some()),
            ("--piece", self.piece.is_some()),
        ];
        if let Some((option, _)) = options.iter().find(|(_, is_set)| *is_set && self.shuffle != "window") {
            return Err(Failure::config(format!(
                "{option} has no effect with --shuffle {}; leave it out, or set --shuffle window",
                self.shuffle
            )));
        }
        if let Some(window) = self.window {
            shuffle = shuffle.window(window);
        }
        if let Some(bytes) = self.shuffle_bytes {
            shuffle = shuffle.shuffle_bytes(bytes);
        }
        if let Some(samples) = self.piece {
            shuffle = shuffle.piece(samples);
        }
        if let Some(lanes) = self.lanes {
            shuffle = shuffle.lanes(lanes);
        }
        Ok(shuffle)
    }
}
