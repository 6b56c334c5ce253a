//! The face of a data set for those who train.

use crate::pipeline::Pipeline;
use crate::{BatchSize, Result};
use feedstock_dataset::{OpenOptions, Shuffle};
use feedstock_ingest::{RawBatches, RawOptions};
use feedstock_ops::ChainSpec;
use std::ops::Deref;

/// An opened data set: where a pipeline begins.
///
/// It adds maps, shuffling and batches to [`feedstock_dataset::Dataset`], to which it dereferences for the catalog,
/// SQL and the plan.
#[derive(Debug, Clone)]
pub struct Dataset(feedstock_dataset::Dataset);

impl Dataset {
    /// Opens `uri` (`s3://…`, `gs://…`, `az://…`, `http(s)://…`, `file://…`, a path), recognising the layout.
    ///
    /// # Errors
    /// See [`feedstock_dataset::Dataset::open`].
    pub async fn open(uri: &str) -> Result<Self> {
        Ok(Self(feedstock_dataset::Dataset::open(uri).await?))
    }

    /// Opens `uri` with options: credentials, the layout by name, where the catalog is kept.
    ///
    /// # Errors
    /// See [`feedstock_dataset::Dataset::open`].
    pub async fn open_with(uri: &str, options: OpenOptions) -> Result<Self> {
        Ok(Self(feedstock_dataset::Dataset::open_with(uri, options).await?))
    }

    /// Keeps the samples for which the SQL expression over the catalog's columns is true. Blocks while it reads
    /// the columns that the expression names.
    ///
    /// # Errors
    /// `BadConfig` for an expression that does not parse, an unknown column (the message lists them all), or one
    /// that keeps no sample.
    pub fn filter(self, sql: &str) -> Result<Self> {
        let (io, sql) = (self.0.io().clone(), sql.to_owned());
        Ok(Self(io.block_on(async move { self.0.filter(&sql).await })?))
    }

    /// Keeps only these columns in batches.
    ///
    /// # Errors
    /// `BadConfig` for an unknown column.
    pub fn columns(self, names: &[&str]) -> Result<Self> {
        Ok(Self(self.0.columns(names)?))
    }

    /// Runs each sample's `column` through a chain of ops; see [`Pipeline::map`].
    pub fn map(self, column: &str, ops: impl Into<ChainSpec>) -> Pipeline {
        Pipeline::new(self.0).map(column, ops)
    }

    /// Sets the order; see [`Pipeline::shuffle`].
    pub fn shuffle(self, shuffle: Shuffle) -> Pipeline {
        Pipeline::new(self.0).shuffle(shuffle)
    }

    /// Sets the batch size; see [`Pipeline::batch`].
    pub fn batch(self, size: BatchSize) -> Pipeline {
        Pipeline::new(self.0).batch(size)
    }

    /// A rank's share, or everything, as Arrow record batches in plan order, without decoding.
    ///
    /// # Errors
    /// `BadConfig` where the plan or the budget does not fit.
    pub fn record_batches(&self, options: &RawOptions) -> Result<RawBatches> {
        RawBatches::start(&self.0, options)
    }
}

impl Deref for Dataset {
    type Target = feedstock_dataset::Dataset;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<feedstock_dataset::Dataset> for Dataset {
    fn from(dataset: feedstock_dataset::Dataset) -> Self {
        Self(dataset)
    }
}
