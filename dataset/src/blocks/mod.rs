//! Fetches blocks: runs of samples, each as one record batch.
//!
//! ```text
//! BlockId ─▶ catalog (which ranges) ─▶ disk cache ─▶ storage ─▶ RecordBatch: metadata columns, payload views
//! ```
//! Payload columns are [`arrow::array::BinaryViewArray`]s over one buffer per block (`payload.rs`), so a block holds only
//! its own bytes. Holding one row keeps its block's buffer.
//!
//! Many blocks are fetched at once, but only a few are decompressed and copied at a time
//! ([`IoRuntime::making`](crate::IoRuntime)), which bounds the memory for it.

mod derived;
mod parts;
mod reads;

use crate::cache::RangeReader;
use crate::catalog::columns::Mapping;
use crate::catalog::{Catalog, Content, FoundIn, Parts};
use crate::format::guard::guarding;
use crate::format::sides::Sides;
use crate::format::units::UnitRows;
use crate::format::{self, located};
use crate::held::{as_declared, named};
use crate::payload::own_views;
use crate::{BlockId, DiskCache, Error, ErrorKind, Extent, Result, SampleId, Storage};
use arrow::array::ArrayRef;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use derived::DerivedReader;
use futures::future::BoxFuture;
use parts::UnionReader;
pub(crate) use reads::extent_reads;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A fetched block, or an extent of one: a row for each sample, selected or not, in catalog order.
///
/// Row `i` is sample `first_sample + i`. Payload columns are `BinaryView`. A null or empty payload stays null or empty; the
/// decoder decides what that means.
#[derive(Debug, Clone)]
pub struct Block {
    /// The block of row 0.
    pub id: BlockId,
    /// The sample of row 0.
    pub first_sample: u64,
    /// The data set's selected columns. In a block from [`BlockReader::fetch_held`], texts may be views, whatever text type
    /// the schema declares.
    pub rows: RecordBatch,
}

impl Block {
    /// Returns the sample in a row.
    pub fn sample(&self, row: usize) -> SampleId {
        SampleId(self.first_sample + row as u64)
    }
}

/// Fetches blocks of one data set. Clones share everything, and many fetches may run at once.
#[derive(Clone)]
pub struct BlockReader(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    storage: Storage,
    cache: Option<DiskCache>,
    columns: Vec<usize>,
    schema: SchemaRef,
    /// Reads the parts of a mix.
    union: Option<UnionReader>,
    /// Reads the catalog that this one is derived from.
    derived: Option<DerivedReader>,
    sides: Sides,
}

impl BlockReader {
    /// Creates a reader of `columns`, which are indices into the catalog's schema.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        storage: Storage,
        cache: Option<DiskCache>,
        columns: Vec<usize>,
    ) -> Self {
        let fields: Vec<FieldRef> = columns.iter().map(|&c| catalog.schema.fields()[c].clone()).collect();
        let schema = Arc::new(Schema::new(fields));
        let cached = cache.is_some();
        let union = match &catalog.content {
            Content::Union(union) => Some(UnionReader::new(union, &columns, schema.clone(), cached)),
            Content::Located(_) | Content::Units { .. } | Content::Derived(_) => None,
        };
        let derived = match &catalog.content {
            Content::Derived(derived) => {
                Some(DerivedReader::new(derived, &columns, schema.clone(), (storage.clone(), cache.clone())))
            }
            Content::Located(_) | Content::Units { .. } | Content::Union(_) => None,
        };
        let sides = Sides::default();
        Self(Arc::new(Inner { catalog, storage, cache, columns, schema, union, derived, sides }))
    }

    /// Returns the columns of every block.
    pub fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    /// Fetches a block with one (coalesced) ranged read, through the disk cache if there is one.
    ///
    /// `next_use` states how soon the plan needs this block again, for the cache's eviction: smaller is sooner, `u64::MAX`
    /// is never.
    ///
    /// ```
    /// use feedstock_dataset::{BlockId, Dataset, SampleId};
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
    /// let reader = Dataset::open_with(uri, options).await?.columns(&["path"])?.block_reader();
    /// let block = reader.fetch(BlockId(0), u64::MAX).await?;
    /// assert_eq!((block.rows.num_rows(), block.rows.num_columns()), (3, 1));
    /// assert_eq!(block.sample(2), SampleId(2));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Gone` if an object changed or vanished since it was catalogued; `Retryable` after storage's deadline; `BadConfig`
    /// for a damaged file. All name the block.
    ///
    /// # Panics
    /// If there is no such block.
    pub async fn fetch(&self, id: BlockId, next_use: u64) -> Result<Block> {
        let block = self.fetch_held(id, next_use).await?;
        let rows = as_declared(&block.rows, &self.0.schema);
        let rows = rows.map_err(|e| e.context(self.0.catalog.describe_block(id)))?;
        Ok(Block { rows, ..block })
    }

    /// As [`fetch`](Self::fetch), with texts and nested bytes as views if the file lets samples share them. The block then holds no more
    /// than the catalog counts ([`BlockSpec::memory_bytes`](crate::BlockSpec::memory_bytes)).
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    ///
    /// # Panics
    /// If there is no such block.
    pub async fn fetch_held(&self, id: BlockId, next_use: u64) -> Result<Block> {
        self.fetch_extent(Extent::new(id, self.0.catalog.block_samples(id)), next_use).await
    }

    /// Fetches some consecutive samples of a block, as a block of fewer rows: a piece, of whose block the rest would be wasted. They
    /// may end in the next block if that goes on in the same object (in the same row group or record batch, in Parquet and Arrow
    /// IPC files). Texts may be views. Errors as [`fetch`](Self::fetch).
    ///
    /// ```
    /// use arrow::array::AsArray;
    /// use feedstock_dataset::{BlockId, Dataset, Extent};
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
    /// let reader = Dataset::open_with(uri, options).await?.block_reader();
    /// let block = reader.fetch_extent(Extent::new(BlockId(0), 1..3), u64::MAX).await?;
    /// assert_eq!((block.rows.num_rows(), block.first_sample), (2, 1));
    /// assert_eq!(block.rows["image"].as_binary_view().value(1), b"ccc");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// If the block does not exist, or if these samples are not in it, or in it and the next one.
    pub async fn fetch_extent(&self, extent: Extent, next_use: u64) -> Result<Block> {
        let inner = self.0.clone();
        let io = inner.storage.io().clone();
        io.run(async move {
            let Extent { block: id, first, samples } = extent;
            let whole = inner.catalog.block_samples(id);
            assert!(inner.catalog.has_extent(extent), "{extent:?} of {whole:?}");
            let row = inner.catalog.blocks.row(id);
            let first_row = row.first_row + (first.0 - whole.start);
            let rows = inner.read_rows(row.shard, row.unit, first_row, extent.range(), next_use).await;
            let rows = rows.map_err(|e| e.context(inner.catalog.describe_extent(extent)))?;
            if rows.num_rows() != samples as usize {
                let what =
                    format!("{}: {} rows came back", inner.catalog.describe_extent(extent), rows.num_rows());
                return Err(Error::new(ErrorKind::Bug, what));
            }
            Ok(Block { id, first_sample: first.0, rows })
        })
        .await
    }

    /// Fetches one sample: see [`fetch_extent`](Self::fetch_extent).
    ///
    /// # Panics
    /// If the sample does not exist.
    pub async fn fetch_sample(&self, sample: SampleId, next_use: u64) -> Result<Block> {
        let block = self.0.catalog.block_of(sample);
        self.fetch_extent(Extent::new(block, sample.0..sample.0 + 1), next_use).await
    }

    /// Reads rows of one unit, from `first_row` of the unit on.
    ///
    /// Boxed: the reader of a mix calls this for its parts, and a future cannot hold itself.
    pub(crate) fn read_place(
        &self,
        (object, unit, first_row): (u32, u32, u64),
        samples: Range<u64>,
        next_use: u64,
    ) -> BoxFuture<'static, Result<RecordBatch>> {
        let inner = self.0.clone();
        let io = inner.storage.io().clone();
        let read = async move { inner.read_rows(object, unit, first_row, samples, next_use).await };
        Box::pin(async move { io.run(read).await })
    }

    /// Reads rows of several consecutive blocks of one unit, for scans that read no payload.
    pub(crate) async fn fetch_run(&self, blocks: Range<u32>) -> Result<(u64, RecordBatch)> {
        let inner = self.0.clone();
        let io = inner.storage.io().clone();
        io.run(async move {
            let first = inner.catalog.block_samples(BlockId(blocks.start)).start;
            let end = inner.catalog.block_samples(BlockId(blocks.end - 1)).end;
            let row = inner.catalog.blocks.row(BlockId(blocks.start));
            let rows = inner.read_rows(row.shard, row.unit, row.first_row, first..end, u64::MAX).await;
            rows.and_then(|rows| as_declared(&rows, &inner.schema))
                .map(|rows| (first, rows))
                .map_err(|e| e.context(inner.catalog.describe_block(BlockId(blocks.start))))
        })
        .await
    }
}

impl Inner {
    /// Returns the rows in separate memory; text may be held as views.
    async fn read_rows(
        &self,
        shard: u32,
        unit: u32,
        first_row: u64,
        samples: Range<u64>,
        next_use: u64,
    ) -> Result<RecordBatch> {
        if let Some(union) = &self.union {
            return union.read((shard, unit, first_row), samples, next_use).await;
        }
        if let Some(derived) = &self.derived {
            return derived.read((shard, unit, first_row), samples, next_use).await;
        }
        let reader = RangeReader { storage: self.storage.clone(), cache: self.cache.clone(), next_use };
        let catalog = &self.catalog;
        let (units, source_schema, mapping, added, parts) = match &catalog.content {
            Content::Located(table) => {
                let counted = catalog.counted(&samples);
                let has_headers = format::of(catalog.layout).has_headers();
                let fetched =
                    located::fetch(catalog, table, samples, (&self.columns, has_headers), &reader).await?;
                let _permit = self.storage.io().making(counted.making).await?;
                return own_views(&fetched.rows(catalog, &self.columns)?);
            }
            Content::Units { units, source_schema, mapping, added, parts } => {
                (units, source_schema, mapping, added, parts)
            }
            Content::Union(_) | Content::Derived(_) => {
                return Err(Error::new(ErrorKind::Bug, "it is read through what it is made of"));
            }
        };
        let unit = UnitRows {
            object: catalog.objects.get(shard as usize),
            number: unit,
            description: units.read(unit, &self.storage).await?,
            rows: first_row..first_row + (samples.end - samples.start),
            is_of_pages: matches!(parts, Parts::Pages(_)) && catalog.is_part_of_block(&samples),
            counted: catalog.counted(&samples),
            sides: self.sides.clone(),
        };
        let Some(added) = added else {
            return self.read_unit(unit, source_schema, mapping, &self.columns, &reader).await;
        };
        let found: Vec<FoundIn> = self.columns.iter().map(|&c| added.place(c)).collect();
        let columns: Vec<usize> = found
            .iter()
            .filter_map(|f| if let FoundIn::File(column) = f { Some(*column) } else { None })
            .collect();
        let from_file = if columns.is_empty() {
            Vec::new() // nothing to read
        } else {
            self.read_unit(unit, source_schema, mapping, &columns, &reader).await?.columns().to_vec()
        };
        let mut from_file = from_file.into_iter();
        let arrays = found.iter().map(|f| match f {
            FoundIn::Added(column) => Some(added.column(*column, &samples)),
            FoundIn::File(_) => from_file.next(),
        });
        let arrays: Option<Vec<ArrayRef>> = arrays.collect();
        let arrays = arrays.ok_or_else(|| Error::new(ErrorKind::Bug, "a column was not read"))?;
        let rows = usize::try_from(samples.end - samples.start)
            .map_err(|_| Error::config("a block has more rows than memory has addresses"))?;
        named(&self.schema, arrays, rows)
    }

    /// Reads columns of the files for rows of one unit.
    async fn read_unit(
        &self,
        unit: UnitRows,
        source_schema: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
        reader: &RangeReader,
    ) -> Result<RecordBatch> {
        let object = unit.object.clone();
        let format = format::of(self.catalog.layout);
        let read = format.read_unit(unit, source_schema, mapping, columns, reader);
        guarding(&object, read).await
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockReader").field("schema", &self.0.schema).finish_non_exhaustive()
    }
}
