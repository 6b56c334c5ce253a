//! Selected samples by their number, with the bytes that are stored: for looking at data.

use crate::catalog::columns::bug;
use crate::held::as_declared;
use crate::{Block, BlockId, Dataset, Extent, Result, SampleId};
use arrow::array::{ArrayRef, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use futures::{StreamExt, TryStreamExt};
use std::ops::Range;
use std::sync::Arc;

/// Blocks fetched at once: enough to hide a round trip. They take 4 × 4 MiB.
const FETCHES: usize = 4;

impl Dataset {
    /// Reads the selected samples with these numbers, in catalog order: number 0 is the first one. Nothing is decoded.
    /// Numbers from [`len`](Self::len) on are left out. With weights, a sample has a number for each of its draws.
    ///
    /// The columns are `sample_id` (UInt64) and the chosen ones. Of each block, the samples from the first to the last number are
    /// fetched at once.
    ///
    /// ```
    /// use arrow::array::AsArray;
    /// use arrow::datatypes::UInt64Type;
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?.filter("path <> 'cat/2.jpg'").await?;
    /// let rows = dataset.rows(1..5).await?; // there is one sample after the first
    /// assert_eq!(rows["sample_id"].as_primitive::<UInt64Type>().values(), &[2]);
    /// assert_eq!(rows["image"].as_binary_view().value(0), b"ccc");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`BlockReader::fetch`](crate::BlockReader::fetch).
    pub async fn rows(&self, numbers: Range<u64>) -> Result<RecordBatch> {
        let ids = self.ids(numbers.start..numbers.end.min(self.len()));
        if self.columns.is_empty() {
            return with_ids(&RecordBatch::new_empty(Arc::new(Schema::empty())), ids);
        }
        let reader = self.block_reader();
        let schema = reader.schema().clone();
        let fetch = |(block, ids): (BlockId, Vec<u64>)| {
            let (reader, schema) = (reader.clone(), schema.clone());
            async move {
                let range =
                    ids.first().map_or(0..0, |first| *first..ids.last().map_or(*first, |last| last + 1));
                let block = reader.fetch_extent(Extent::new(block, range), u64::MAX).await?;
                rows_of(&block, &ids, &schema)
            }
        };
        let blocks = futures::stream::iter(self.by_block(&ids)).map(fetch).buffered(FETCHES);
        let blocks: Vec<RecordBatch> = blocks.try_collect().await?;
        with_ids(&concat_batches(&schema, &blocks).map_err(bug)?, ids)
    }

    /// Returns the ids of the selected samples with these numbers.
    fn ids(&self, numbers: Range<u64>) -> Vec<u64> {
        if numbers.is_empty() {
            return Vec::new();
        }
        match self.selection() {
            None => numbers.collect(),
            Some(kept) => kept.range(numbers).map(|sample| sample.0).collect(),
        }
    }

    fn by_block(&self, ids: &[u64]) -> Vec<(BlockId, Vec<u64>)> {
        let mut blocks: Vec<(BlockId, Vec<u64>)> = Vec::new();
        for &id in ids {
            let block = self.catalog().block_of(SampleId(id));
            match blocks.last_mut() {
                Some((last, ids)) if *last == block => ids.push(id),
                _ => blocks.push((block, vec![id])),
            }
        }
        blocks
    }
}

/// Returns the rows of these samples, in the declared types.
fn rows_of(block: &Block, ids: &[u64], schema: &SchemaRef) -> Result<RecordBatch> {
    let rows: UInt64Array = ids.iter().map(|id| id - block.first_sample).collect();
    as_declared(&take_record_batch(&block.rows, &rows).map_err(bug)?, schema)
}

fn with_ids(rows: &RecordBatch, ids: Vec<u64>) -> Result<RecordBatch> {
    let mut fields = vec![Arc::new(Field::new("sample_id", DataType::UInt64, false))];
    fields.extend(rows.schema().fields().iter().cloned());
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(ids))];
    arrays.extend(rows.columns().iter().cloned());
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(bug)
}
