//! What every layout provides: how its objects are recognised, catalogued and read back.

use super::cataloguing::Cataloguing;
use super::kinds::{Kind, Named, kind_of};
use super::listing::{Choice, Listing, Sources};
use super::units::UnitRows;
use crate::cache::RangeReader;
use crate::catalog::columns::Mapping;
use crate::catalog::{BlockTable, Draft, Parts, UnitStore};
use crate::{Error, ErrorKind, Layout, Result, Storage};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;

/// A layout. [`FORMATS`](super::FORMATS) has one value of each.
///
/// Samples of most layouts are at byte ranges of objects, which need only [`catalog`](Self::catalog). Columnar files are
/// read in units (row groups, record batches); the methods about units are for them.
#[async_trait]
pub(crate) trait Format: Send + Sync {
    fn layout(&self) -> Layout;

    /// Whether an object of this name is data of the layout.
    fn is_data(&self, name: &str) -> bool;

    /// Returns the layout of the listed objects, if it is this one or one that only their content distinguishes from it.
    async fn recognise(&self, _seen: &Seen<'_>, _storage: &Storage) -> Result<Option<Layout>> {
        Ok(None)
    }

    /// Whether names alone show that a data set has this layout.
    fn is_recognised_by_names(&self) -> bool {
        false
    }

    /// Chooses the objects of the data set: by default by their names; overridden if names alone do not show them.
    async fn choose(&self, listing: Listing, _choice: &Choice<'_>, _storage: &Storage) -> Result<Chosen> {
        Ok(Chosen::ByName(listing))
    }

    /// Returns where names contain the split.
    fn splits(&self) -> Splits {
        Splits::Names
    }

    /// Returns what a user should know about the objects, and about those that are not data.
    fn note(&self, _data: &[Named], _others: &[Named]) -> Option<String> {
        None
    }

    /// Whether indexes next to its objects are used.
    fn has_indexes(&self) -> bool {
        false
    }

    /// Whether the objects of its catalogs are copies of those that the user named.
    fn reads_copies(&self) -> bool {
        false
    }

    /// Catalogs the objects.
    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft>;

    /// Raised when its columns change, so that older catalogs are rebuilt. The order stays the same, and so do the catalogs
    /// of other layouts.
    fn columns_version(&self) -> u32 {
        0
    }

    /// Whether a header precedes each payload. It is compared with the catalog when the payload is read.
    fn has_headers(&self) -> bool {
        false
    }

    /// Whether units are row groups with Parquet statistics, by which a query skips them.
    fn has_statistics(&self) -> bool {
        false
    }

    /// Hashes what a unit states about the data, independent of the cut into blocks and of the release that stored it.
    fn unit_digest(&self, _unit: &Bytes) -> Result<u64> {
        Err(no_units(self.layout()))
    }

    /// Returns the blocks of a catalog that was stored without their memory; `None` if its units do not state it.
    async fn memory_of_stored(
        &self,
        _blocks: BlockTable,
        _units: &UnitStore,
        _mapping: &Mapping,
        _storage: &Storage,
    ) -> Result<Option<BlockTable>> {
        Ok(None)
    }

    /// Returns which parts of blocks can be read, for a catalog that was stored without it.
    fn parts_of_stored(&self, _units: &[Bytes]) -> Result<Parts> {
        Ok(Parts::None)
    }

    /// Reads `columns` of rows of one unit.
    async fn read_unit(
        &self,
        _unit: UnitRows,
        _source: &SchemaRef,
        _mapping: &Mapping,
        _columns: &[usize],
        _reader: &RangeReader,
    ) -> Result<RecordBatch> {
        Err(no_units(self.layout()))
    }
}

fn no_units(layout: Layout) -> Error {
    Error::new(ErrorKind::Bug, format!("layout {layout} has no units"))
}

/// The objects that a layout chooses from a listing.
pub(crate) enum Chosen {
    Sources(Sources),
    /// The objects whose names are those of data.
    ByName(Listing),
}

/// Where the names of a layout's objects contain the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splits {
    /// In their first folder or in a word of the file's name.
    Names,
    /// In their first folder.
    Folders,
    /// Nowhere: the objects contain the splits.
    Inside,
    /// The layout has no splits.
    Absent,
}

/// Listed objects, and the number of each kind, by their names.
pub(crate) struct Seen<'a> {
    pub(super) uri: &'a str,
    pub(super) listed: &'a [Named],
    pub(super) kinds: BTreeMap<Kind, usize>,
}

impl<'a> Seen<'a> {
    pub(super) fn new(uri: &'a str, listed: &'a [Named]) -> Self {
        let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
        for kind in listed.iter().filter_map(|(name, _)| kind_of(name)) {
            *kinds.entry(kind).or_default() += 1;
        }
        Self { uri, listed, kinds }
    }

    /// Whether there are files of single samples.
    pub(super) fn has_files(&self) -> bool {
        self.kinds.contains_key(&Kind::Picture) || self.kinds.contains_key(&Kind::Audio)
    }

    /// Whether there are files of many samples.
    pub(super) fn has_shards(&self) -> bool {
        self.kinds.keys().any(|kind| kind.is_shard())
    }

    /// Whether the data are files of one kind, of many samples each.
    pub(super) fn has_only(&self, kind: Kind) -> bool {
        !self.has_files() && self.kinds.keys().filter(|kind| kind.is_shard()).eq([&kind])
    }

    pub(super) fn tables(&self) -> usize {
        self.kinds.get(&Kind::Table).copied().unwrap_or(0)
    }
}
