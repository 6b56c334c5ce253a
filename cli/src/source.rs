//! Naming a data set: URI, layout, filter, catalog.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::progress::Reporter;
use clap::Args;
use feedstock_dataset::{
    BadShards, CatalogCheck, CatalogOptions, CatalogStore, Dataset, Layout, OpenOptions, Shuffle,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Which data set, and which of its samples.
#[derive(Args, Debug, Clone)]
pub(crate) struct SourceArgs {
    /// A folder, a file or a pattern: /data/train, s3://bucket/train, 's3://bucket/train-{000..099}.tar'.
    pub(crate) uri: String,
    #[command(flatten)]
    pub(crate) how: OpenArgs,
}

/// How a data set is opened, and which of its samples are taken.
#[derive(Args, Debug, Clone)]
pub(crate) struct OpenArgs {
    /// The layout, where it cannot be recognised: parquet, folder, webdataset, ilsvrc, ipc, manifest, common_voice,
    /// common_voice_tar, common_voice_hf.
    #[arg(long)]
    layout: Option<Layout>,
    /// What happens to a shard whose footer or headers are damaged, or whose schema differs from that of most shards: raise
    /// is an error, skip leaves it out.
    #[arg(long, value_name = "HOW", default_value = "raise")]
    bad_shards: BadShards,
    /// The split, where a place holds several: train, dev, test, validated …
    #[arg(long)]
    split: Option<String>,
    /// Keep the samples for which this SQL expression is true ("label < 100 and width > 64").
    #[arg(long, value_name = "SQL")]
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    catalog: StoreArgs,
    /// Encoded bytes that a block aims at; other blocks are another order [default: 4 MiB].
    #[arg(long, value_name = "BYTES")]
    block_bytes: Option<u64>,
}

/// Where catalogs are kept.
#[derive(Args, Debug, Clone)]
pub(crate) struct StoreArgs {
    /// Keep the catalog in this folder [default: $FEEDSTOCK_CACHE/catalogs, else ~/.cache/feedstock/catalogs].
    #[arg(long, value_name = "DIR", conflicts_with = "beside")]
    catalog_dir: Option<PathBuf>,
    /// Keep the catalog beside the data, in _feedstock/.
    #[arg(long)]
    beside: bool,
    /// How a stored catalog is compared with the storage: auto lists the objects if there are at most 100,000; list
    /// always does.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    check: CatalogCheck,
}

impl StoreArgs {
    /// Where catalogs are kept and how stored ones are checked; the other options have their defaults.
    pub(crate) fn options(&self) -> CatalogOptions {
        CatalogOptions { store: self.store(), check: self.check, ..CatalogOptions::default() }
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
    /// Opens the data set and filters it.
    pub(crate) fn open(&self, common: &Common) -> Outcome<Dataset> {
        self.how.open(&self.uri, common, false)
    }
}

impl OpenArgs {
    /// Where the catalog is kept.
    pub(crate) fn store(&self) -> CatalogStore {
        self.catalog.store()
    }

    /// Opens the data set at `uri` and filters it; with `rebuild`, from the objects themselves.
    pub(crate) fn open(&self, uri: &str, common: &Common, rebuild: bool) -> Outcome<Dataset> {
        let reporter = Arc::new(Reporter::new(common, "opening"));
        let told = reporter.clone();
        let mut options = OpenOptions {
            storage: common.storage.options(),
            catalog: CatalogOptions {
                rebuild,
                progress: Some(Arc::new(move |now| told.tell(now.stage, now.done, now.total, None))),
                ..self.catalog.options()
            },
            layout: self.layout,
            split: self.split.clone(),
            bad_shards: self.bad_shards,
            audio_probe: Some(feedstock_trainer_bridge::audio_probe()),
            functions: feedstock_ops::sql_functions(),
            ..OpenOptions::default()
        };
        if let Some(block_bytes) = self.block_bytes {
            options.block_bytes = block_bytes;
        }
        let opened = futures::executor::block_on(async {
            let dataset = Dataset::open_with(uri, options).await?;
            match &self.filter {
                Some(filter) => dataset.filter(filter).await,
                None => Ok(dataset),
            }
        });
        reporter.end();
        Ok(opened?)
    }
}

/// The order.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Order")]
pub(crate) struct ShuffleArgs {
    /// Seed of the order and of the ops' randomness.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Samples shuffled among each other [default: what fits 512 MiB of encoded bytes].
    #[arg(long, value_name = "SAMPLES")]
    window: Option<u64>,
    /// Lanes; large jobs set a multiple of their largest world size [default: up to 64].
    #[arg(long, value_name = "N")]
    lanes: Option<u32>,
    /// window: blocks, then samples in windows; full: every sample on its own; none: the catalog's order.
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
        if let Some(window) = self.window {
            if self.shuffle != "window" {
                return Err(Failure::config(format!(
                    "--window says nothing with --shuffle {}",
                    self.shuffle
                )));
            }
            shuffle = shuffle.window(window);
        }
        if let Some(lanes) = self.lanes {
            shuffle = shuffle.lanes(lanes);
        }
        Ok(shuffle)
    }
}
