//! The catalog: which objects, blocks and samples a data set consists of.
//!
//! ```text
//! listing ─▶ format::catalog_* ─▶ Draft ─▶ Catalog ─▶ store (Arrow IPC tables, then catalog.json)
//!                                            ▲                 │
//!                                            └──── open ◀──────┘  checked against one listing
//! ```
//! Invariants: samples are numbered in catalog order (objects sorted by URI, rows in object order), a block is a
//! contiguous run of them in one shard, and blocks follow one another without gaps.
//! Cost: 44 bytes a block in memory. Only layouts that need them have per-sample tables (folders, tars, manifests: about 20
//! bytes and the metadata columns a sample). Parquet footers and IPC messages stay in the store and are read back one unit at
//! a time.

mod access;
mod added;
mod blocks;
pub(crate) mod columns;
mod continued;
mod derived;
mod etags;
mod layout;
mod memory;
mod names;
mod nulls;
mod objects;
mod options;
mod probed;
mod recent;
mod samples;
mod union;
mod units;
mod unsupported;

pub use access::MAX_PAGE_BYTES;
pub(crate) use added::{Added, FoundIn};
pub(crate) use blocks::{BlockRow, BlockTable, BlockTableBuilder, VIEW_BYTES, column};
pub(crate) use derived::{ColumnValues, Derived, DerivedColumn};
pub use layout::Layout;
pub(crate) use memory::Counted;
pub(crate) use names::{CLASS_NAMES_KEY, DURATION, SAMPLE_ID};
pub use objects::Objects;
pub use options::{CatalogCheck, CatalogOptions, CatalogSource, CatalogStore, Progress, ProgressFn};
pub(crate) use probed::Probed;
pub(crate) use recent::Recent;
pub(crate) use samples::{Places, SampleChunk, SampleTable};
pub(crate) use union::{DATASET, Part, StoredPart, Union, UnionInput, index};
pub(crate) use units::{Parts, UnitStore, UnitStoreBuilder};
pub use unsupported::UnsupportedAudio;
pub(crate) use unsupported::UnsupportedTally;

use crate::{BlockId, Error, ErrorKind, Extent, Result, SampleId};
use arrow::datatypes::SchemaRef;
use columns::Mapping;
use feedstock_plan::DataHashes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One block: what a plan and a prefetcher need to know without reading from storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSpec {
    /// The object that holds it, as an index into [`Catalog::objects`]; for folders the first of its files.
    pub shard: u32,
    /// Samples in it, selected or not.
    pub samples: u32,
    /// Its encoded bytes, all columns together; blocks and windows are cut by them. For Parquet they are estimated from the
    /// column's mean compression.
    pub bytes: u64,
    /// The most bytes that it holds in memory once fetched and decompressed, all columns together; budgets count it. At least
    /// `bytes`.
    pub memory_bytes: u64,
}

/// The catalog before it is hashed and stored: what a format finds in the objects.
pub(crate) struct Draft {
    pub(crate) objects: Objects,
    pub(crate) blocks: BlockTable,
    pub(crate) content: Content,
    /// Metadata columns, then payload columns.
    pub(crate) schema: SchemaRef,
    pub(crate) payload: Vec<String>,
    /// The payload columns that hold audio.
    pub(crate) audio: Vec<String>,
    /// Notes for the user: files ignored, labels missing.
    pub(crate) notes: Vec<String>,
    /// Columns that statistics of the files prove to have nulls.
    pub(crate) null_columns: Vec<String>,
    /// Hashed in place of `objects` if those are copies of what the user named.
    pub(crate) copied_from: Option<CopiedFrom>,
}

/// The original of a draft's objects, which are copies.
pub(crate) struct CopiedFrom {
    pub(crate) objects: Objects,
    /// What was extracted from it.
    pub(crate) detail: String,
}

/// Where the samples' columns come from.
#[derive(Clone)]
pub(crate) enum Content {
    /// Metadata in memory, payloads at byte ranges of objects: folders, tars, manifests.
    Located(SampleTable),
    /// Columnar files read in units (row groups, record batches), whose descriptions the catalog keeps.
    Units {
        units: UnitStore,
        source_schema: SchemaRef,
        mapping: Arc<Mapping>,
        /// Columns that are not in the files.
        added: Option<Added>,
        /// Which parts of any block can be read without the rest of it.
        parts: Parts,
    },
    /// The catalogs of the parts of a mix.
    Union(Arc<Union>),
    /// Another catalog, with other columns.
    Derived(Derived),
}

/// The objects, blocks and columns of one data set. Immutable; shared by everything that reads it.
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
/// let dataset = Dataset::open_with(uri, options).await?;
/// let catalog = dataset.catalog();
/// assert_eq!((catalog.samples(), catalog.blocks()), (3, 1));
/// assert_eq!(catalog.block_of(SampleId(2)), BlockId(0));
/// assert_eq!(catalog.class_names("label").unwrap(), ["cat", "dog"]);
/// assert_eq!(catalog.describe_sample(SampleId(2)), "dog/3.jpg");
/// assert_eq!(catalog.payload_columns(), ["image"]);
/// # Ok::<(), feedstock_dataset::Error>(())
/// # }).unwrap();
/// ```
pub struct Catalog {
    pub(crate) uri: String,
    pub(crate) layout: Layout,
    pub(crate) block_bytes: u64,
    pub(crate) objects: Objects,
    pub(crate) blocks: BlockTable,
    pub(crate) content: Content,
    pub(crate) schema: SchemaRef,
    pub(crate) payload: Vec<String>,
    pub(crate) audio: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// The number of notes that are about the listing; they come first. `None` if unknown.
    pub(crate) listing_notes: Option<usize>,
    /// Columns that statistics of the files prove to have nulls; not part of the identity.
    pub(crate) null_columns: Vec<String>,
    pub(crate) hashes: DataHashes,
    /// A hash of the listing that the catalog was built from: names, sizes, versions.
    pub(crate) listing: u64,
    /// Whether that listing was resumed and has not been compared with a later one. Objects that appeared or vanished between
    /// its two parts may be missed.
    pub(crate) is_resumed: bool,
    /// The probe that read its durations; not part of the identity.
    pub(crate) probed: Probed,
    /// Audio clips whose codecs are not decoded; not part of the identity. Empty for a union, whose parts have theirs.
    pub(crate) unsupported: Vec<UnsupportedAudio>,
}

impl Catalog {
    /// Returns a catalog that was shared while it was read.
    ///
    /// # Errors
    /// `Bug` if it still is shared.
    pub(crate) fn only_owner(catalog: Arc<Self>) -> Result<Self> {
        Arc::try_unwrap(catalog)
            .map_err(|_| Error::new(ErrorKind::Bug, "a catalog that was read is still in use"))
    }

    /// Replaces the notes about the listing.
    pub(crate) fn renew_notes(&mut self, notes: Vec<String>) {
        let Some(stale) = self.listing_notes.filter(|&stale| stale <= self.notes.len()) else { return };
        self.listing_notes = Some(notes.len());
        self.notes.splice(..stale, notes);
    }

    /// Returns the URI it was built from, without credentials; for a mix, the names of its parts.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns how the objects are read; for a mix, the layout of its first part.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the number of samples, filtered or not.
    pub fn samples(&self) -> u64 {
        self.blocks.samples()
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns a block's shard, samples, bytes and memory.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, id: BlockId) -> BlockSpec {
        let row = self.blocks.row(id);
        BlockSpec { shard: row.shard, samples: row.samples, bytes: row.bytes, memory_bytes: row.memory }
    }

    /// Returns the sample ids of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block_samples(&self, id: BlockId) -> Range<u64> {
        self.blocks.samples_of(id)
    }

    /// Returns the first sample of every block, then the number of samples: blocks + 1 values, rising.
    pub fn block_starts(&self) -> &[u64] {
        self.blocks.starts()
    }

    /// Returns the block that holds a sample; O(log blocks).
    ///
    /// # Panics
    /// If the sample does not exist.
    pub fn block_of(&self, sample: SampleId) -> BlockId {
        self.blocks.block_of(sample)
    }

    /// Returns the identity of the data set: a hash of the layout, names, sizes, and what cataloguing reads (footers of Parquet
    /// and IPC files, places of samples in tars, the files that a list names). A copy has the same identity, whatever its
    /// times, inodes and ETags. It changes when files are added, removed or rewritten.
    pub fn content_hash(&self) -> u64 {
        self.hashes.identity
    }

    /// Returns the identity, the cut into blocks, and the hash of both that releases before 0.2 saved.
    pub fn hashes(&self) -> DataHashes {
        self.hashes
    }

    /// Returns the metadata columns, then the payload columns ([`arrow::datatypes::DataType::BinaryView`]).
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the names of the columns that hold encoded bytes (images, audio).
    pub fn payload_columns(&self) -> &[String] {
        &self.payload
    }

    /// Returns the names of the payload columns that hold audio, as known from the layout, the files' features or their names.
    pub fn audio_columns(&self) -> &[String] {
        &self.audio
    }

    /// Whether this is a payload column.
    pub fn is_payload(&self, column: &str) -> bool {
        self.payload.iter().any(|p| p == column)
    }

    /// Returns the stored objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns notes for the user about the data set: files ignored, labels that could not be found.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the class names of an integer label column (folder names, the `ClassLabel` of a Hugging Face file), if known.
    pub fn class_names(&self, column: &str) -> Option<Vec<String>> {
        let field = self.schema.field_with_name(column).ok()?;
        serde_json::from_str(field.metadata().get(CLASS_NAMES_KEY)?).ok()
    }

    /// Whether `samples` begin or end within a block.
    pub(crate) fn is_part_of_block(&self, samples: &Range<u64>) -> bool {
        let bounds = |sample: u64| self.block_samples(self.block_of(SampleId(sample)));
        bounds(samples.start).start < samples.start || samples.end < bounds(samples.end.saturating_sub(1)).end
    }

    /// Returns an error's name for a sample: `train-0042.parquet row 17`.
    pub fn describe_sample(&self, sample: SampleId) -> String {
        if sample.0 >= self.samples() {
            return format!("sample {sample} (of {})", self.samples());
        }
        let block = self.block_of(sample);
        match &self.content {
            Content::Located(table) => table.describe(sample.0, &self.objects),
            Content::Union(union) => union.describe_sample(sample),
            Content::Derived(derived) => derived.base().describe_sample(sample),
            Content::Units { .. } => {
                let shard = self.blocks.row(block).shard;
                let row = sample.0 - self.blocks.first_sample_of_shard(shard);
                let what = if self.layout == Layout::WebDataset { "sample" } else { "row" };
                format!("{} {what} {row}", self.objects.name(shard as usize))
            }
        }
    }

    /// Returns the URI of the stored object that holds a sample: a shard, a tar, or the sample's own file.
    ///
    /// # Panics
    /// If the sample does not exist.
    pub fn sample_uri(&self, sample: SampleId) -> String {
        match &self.content {
            Content::Located(table) => self.objects.get(table.object_of(sample.0)).uri,
            Content::Union(union) => union.sample_uri(sample),
            Content::Derived(derived) => derived.base().sample_uri(sample),
            Content::Units { .. } => {
                self.objects.get(self.blocks.row(self.block_of(sample)).shard as usize).uri
            }
        }
    }

    /// Returns an error's name for what is fetched at once: a sample, a block, or some samples of one.
    pub fn describe_extent(&self, extent: Extent) -> String {
        match extent.samples {
            _ if extent.range() == self.block_samples(extent.block) => self.describe_block(extent.block),
            1 => self.describe_sample(extent.first),
            more => format!("{} and the {} samples after it", self.describe_sample(extent.first), more - 1),
        }
    }

    /// Returns an error's name for a block: `block 7 (train-0042.parquet rows 400..500)`.
    pub fn describe_block(&self, block: BlockId) -> String {
        if block.0 as usize >= self.blocks() {
            return format!("block {block} (of {})", self.blocks());
        }
        let range = self.block_samples(block);
        let shard = self.blocks.row(block).shard;
        let name = self.objects.name(shard as usize);
        match &self.content {
            Content::Located(_) => format!("block {block} ({name}, samples {}..{})", range.start, range.end),
            Content::Units { .. } => {
                let first = self.blocks.first_sample_of_shard(shard);
                format!("block {block} ({name} rows {}..{})", range.start - first, range.end - first)
            }
            Content::Union(union) => union.describe_block(block, range.start),
            Content::Derived(derived) => derived.base().describe_block(block),
        }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog")
            .field("uri", &crate::storage::shown(&self.uri))
            .field("layout", &self.layout)
            .field("objects", &self.objects.len())
            .field("blocks", &self.blocks())
            .field("samples", &self.samples())
            .finish_non_exhaustive()
    }
}

/// Returns the indices of the columns `names` in `schema`, in the order of the names.
pub(crate) fn project(schema: &SchemaRef, names: &[&str]) -> Result<Vec<usize>> {
    names
        .iter()
        .map(|name| {
            schema.index_of(name).map_err(|_| {
                let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
                crate::Error::config(format!("no column named {name}; the columns are: {}", known.join(", ")))
            })
        })
        .collect()
}
