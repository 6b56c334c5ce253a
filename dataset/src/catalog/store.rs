//! Catalogs on disk or beside the data: Arrow IPC tables, and a small `catalog.json` written last.
//!
//! The tables carry the hash of their bytes in their names, so that writers of different catalogs never meet, and the JSON
//! holds each table's size and CRC-32: what does not match is rebuilt, never trusted. A catalog that is replaced is kept
//! for a while ([`super::kept`]).

use super::{Added, BlockTable, Catalog, CatalogStore, Content, Objects, SampleTable, UnitStore, VIEW_BYTES};
use super::{files, identity, kept};
use crate::format::Probed;
use crate::format::columns::map_columns;
use crate::format::ipc;
use crate::storage::endpoints;
use crate::{Error, ErrorKind, Layout, ObjectRef, OpenOptions, Result, Storage};
use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use feedstock_plan::DataHashes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;
use std::sync::Arc;

/// Raised whenever what is stored changes its form or its meaning. 4: the identity and the cut into blocks have a hash
/// each. Catalogs of version 3 are converted, others are rebuilt.
const VERSION: u32 = 4;
const CONVERTED_VERSION: u32 = 3;
/// Folders are named as version 3 named them, so that its catalogs are found.
const FOLDER_SEED: u64 = 3;
const INDEX: &str = "catalog.json";

/// Raised when the columns of a layout are made otherwise: its older catalogs are rebuilt. The order stays the same, and
/// so do the catalogs of the other layouts. WebDataset 1: lists and objects of JSON members are columns. Parquet 1: the
/// columns that statistics prove to have nulls are listed. Parquet 2: blocks have their memory, which only footers tell.
fn columns_version(layout: Layout) -> u32 {
    match layout {
        Layout::WebDataset => 1,
        Layout::HfParquet => 2,
        _ => 0,
    }
}

/// Units up to this are read and checked when the catalog is opened, in a few milliseconds (about 20,000 row groups);
/// more of them stay in the store and are checked one by one.
const UNITS_IN_MEMORY_BYTES: u64 = 8 << 20;

/// The folder of one stored catalog.
pub(crate) struct Place {
    folder: String,
    cache: bool,
}

impl Place {
    /// `None` where catalogs are not kept.
    pub(crate) fn of(uri: &str, options: &OpenOptions) -> Result<Option<Self>> {
        let mut hasher = twox_hash::XxHash64::with_seed(FOLDER_SEED);
        hasher.write(options.layout.map_or("", Layout::name).as_bytes());
        hasher.write_u64(options.block_bytes);
        hasher.write(options.split.as_deref().unwrap_or("").as_bytes());
        hasher.write_u8(u8::from(options.probes())); // a catalog with durations is another one
        if !options.bad_shards.is_default() {
            hasher.write(b"bad_shards"); // one that leaves shards out is another one, too
        }
        match &options.catalog.store {
            CatalogStore::Nowhere => Ok(None),
            CatalogStore::Cache(root) => {
                hasher.write(absolute(uri)?.as_bytes());
                // Two stores may have buckets of one name.
                for endpoint in endpoints(uri, &options.storage, std::env::vars_os()) {
                    hasher.write_u8(0xff);
                    hasher.write(endpoint.as_bytes());
                }
                let folder = root.join(format!("{:016x}", hasher.finish()));
                let folder = folder.to_str().ok_or_else(|| {
                    Error::config(format!("the catalog cache folder {} is not UTF-8", root.display()))
                })?;
                Ok(Some(Self { folder: folder.to_owned(), cache: true }))
            }
            CatalogStore::Beside => {
                let (root, rest) = crate::format::split_root(uri);
                hasher.write(rest.as_bytes());
                let slash = if root.is_empty() || root.ends_with('/') { "" } else { "/" };
                let folder = format!("{root}{slash}_feedstock/{:016x}", hasher.finish());
                Ok(Some(Self { folder, cache: false }))
            }
        }
    }

    pub(super) fn is_cache(&self) -> bool {
        self.cache
    }

    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    pub(super) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }
}

/// The URI, absolute if it is a plain path: that means another place from another working directory.
pub(crate) fn resolved(uri: &str) -> Result<String> {
    if uri.contains("://") {
        return Ok(uri.to_owned());
    }
    let path = std::path::absolute(uri)
        .map_err(|e| Error::config(format!("{uri}: not a path on this machine")).with_source(e))?;
    Ok(path.to_string_lossy().into_owned())
}

/// As [`resolved`], and the same with and without a `/` at its end.
pub(crate) fn absolute(uri: &str) -> Result<String> {
    Ok(resolved(uri)?.trim_end_matches('/').to_owned())
}

/// A stored catalog and what it was built from.
pub(super) struct Found {
    pub(super) catalog: Catalog,
    /// It is of an older version, and to be stored again.
    pub(super) converted: bool,
}

pub(super) enum Stored {
    Found(Box<Found>),
    Nothing,
    Unusable(String),
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Index {
    version: u32,
    uri: String,
    layout: Layout,
    block_bytes: u64,
    /// `None` in version 3, as `blocks`.
    #[serde(default)]
    pub(super) identity: Option<u64>,
    #[serde(default)]
    blocks: Option<u64>,
    /// The legacy hash, under the name that it had.
    pub(super) content_hash: u64,
    /// The hash of the listing.
    fingerprint: u64,
    /// As [`Catalog::is_resumed`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_resumed: bool,
    #[serde(default)]
    probed: Probed,
    /// Seconds since 1970 when another catalog took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) superseded: Option<u64>,
    base: String,
    payload: Vec<String>,
    audio: Vec<String>,
    key: Option<usize>,
    /// Names of the tables that list the samples.
    lists: Vec<String>,
    notes: Vec<String>,
    #[serde(default)]
    listing_notes: Option<usize>,
    #[serde(default)]
    null_columns: Vec<String>,
    #[serde(default)]
    columns_version: u32,
    pub(super) tables: BTreeMap<String, Table>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) file: String,
    bytes: u64,
    /// `None` for the units, which are checked one by one as they are read.
    crc32: Option<u32>,
}

/// A catalog's tables as they are written.
struct Encoded<'a> {
    tables: Vec<(&'a str, Bytes)>,
    key: Option<usize>,
    /// Names of the tables that list the samples.
    lists: Vec<String>,
}

fn encode(catalog: &Catalog) -> Result<Encoded<'_>> {
    let whole = |batch: RecordBatch| files::encode(&batch.schema(), &[batch]);
    let mut tables: Vec<(&str, Bytes)> = vec![
        ("objects", whole(catalog.objects.to_batch()?)?),
        ("blocks", whole(catalog.blocks.to_stored()?)?),
        ("schema", files::encode(&catalog.schema, &[])?),
    ];
    let (mut key, mut lists) = (None, Vec::new());
    match &catalog.content {
        Content::Located(samples) => {
            key = samples.key();
            lists = samples.lists().to_vec();
            let metadata = samples.metadata_batches();
            let places = samples.place_batches()?;
            let first = |batches: &[RecordBatch]| {
                batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema)
            };
            tables.push(("samples", files::encode(&first(&metadata), &metadata)?));
            tables.push(("places", files::encode(&first(&places), &places)?));
        }
        Content::Units { units, source_schema, added, .. } => {
            if let Some(added) = added {
                tables.push(("added", whole(added.rows().clone())?));
            }
            tables.push(("source", files::encode(source_schema, &[])?));
            tables.push(("unit_index", whole(unit_index(units)?)?));
            if let Some(bytes) = units.bytes() {
                tables.push(("units", bytes.clone()));
            }
        }
        Content::Union(_) => {
            return Err(Error::new(
                ErrorKind::Bug,
                "a mix is made of stored catalogs, and not stored itself",
            ));
        }
    }
    Ok(Encoded { tables, key, lists })
}

impl Index {
    fn of(
        catalog: &Catalog,
        key: Option<usize>,
        lists: Vec<String>,
        tables: BTreeMap<String, Table>,
    ) -> Self {
        Self {
            version: VERSION,
            uri: catalog.uri.clone(),
            layout: catalog.layout,
            block_bytes: catalog.block_bytes,
            identity: Some(catalog.hashes.identity),
            blocks: Some(catalog.hashes.blocks),
            content_hash: catalog.hashes.legacy,
            fingerprint: catalog.listing,
            is_resumed: catalog.is_resumed,
            probed: catalog.probed,
            superseded: None,
            base: catalog.objects.base().to_owned(),
            payload: catalog.payload.clone(),
            audio: catalog.audio.clone(),
            key,
            lists,
            notes: catalog.notes.clone(),
            listing_notes: catalog.listing_notes,
            null_columns: catalog.null_columns.clone(),
            columns_version: columns_version(catalog.layout),
            tables,
        }
    }
}

pub(super) async fn save(catalog: &mut Catalog, place: &Place, storage: &Storage) -> Result<()> {
    let Encoded { tables: encoded, key, lists } = encode(catalog)?;
    let mut tables = BTreeMap::new();
    for (name, bytes) in encoded {
        let extension = if name == "units" { "bin" } else { "arrow" };
        let file = format!("{name}-{:016x}.{extension}", twox_hash::XxHash64::oneshot(0, &bytes));
        let crc32 = (name != "units").then(|| crc32fast::hash(&bytes));
        tables.insert(name.to_owned(), Table { file: file.clone(), bytes: bytes.len() as u64, crc32 });
        storage.write(&place.file(&file), bytes).await?;
    }
    let index = Index::of(catalog, key, lists, tables);
    let before = read_index(&place.file(INDEX), storage).await.ok().filter(|old| old.tables != index.tables);
    let is_other = |before: &Index| before.identity != index.identity || before.probed != index.probed;
    if let Some(before) = before.clone().filter(is_other) {
        kept::keep(before, place, storage).await?;
    }
    write_index(&index, &place.file(INDEX), storage).await?;
    kept::clean(before, &index, place, storage).await;
    release_units(catalog, &index, place);
    Ok(())
}

pub(super) async fn write_index(index: &Index, uri: &str, storage: &Storage) -> Result<()> {
    let json = serde_json::to_vec_pretty(index)
        .map_err(|e| Error::new(ErrorKind::Bug, "the catalog's index is not JSON").with_source(e))?;
    storage.write(uri, Bytes::from(json)).await
}

pub(super) async fn read_index(uri: &str, storage: &Storage) -> Result<Index> {
    let json = read_whole(uri, storage).await?;
    serde_json::from_slice(&json).map_err(|e| Error::config(format!("{uri}: {e}")))
}

/// Stores that the catalog's listing was compared with a later one, unless another catalog has taken its place meanwhile.
pub(super) async fn save_compared(catalog: &Catalog, place: &Place, storage: &Storage) -> Result<()> {
    let index = read_index(&place.file(INDEX), storage).await?;
    let hashes = DataHashes {
        identity: index.identity.unwrap_or_default(),
        blocks: index.blocks.unwrap_or_default(),
        legacy: index.content_hash,
    };
    if (hashes, index.fingerprint) != (catalog.hashes, catalog.listing) {
        return Ok(());
    }
    write_index(&Index { is_resumed: false, ..index }, &place.file(INDEX), storage).await
}

/// Large units go back to the store once they are written.
fn release_units(catalog: &mut Catalog, index: &Index, place: &Place) {
    let (Content::Units { units, .. }, Some(table)) = (&mut catalog.content, index.tables.get("units"))
    else {
        return;
    };
    if units.bytes().is_some_and(|bytes| bytes.len() as u64 > UNITS_IN_MEMORY_BYTES) {
        let object = ObjectRef { uri: place.file(&table.file), size: table.bytes, etag: None };
        if let Ok(stored) = UnitStore::stored(units.ends().into(), units.checks().into(), object) {
            *units = stored;
        }
    }
}

pub(super) async fn load(place: &Place, storage: &Storage) -> Result<Stored> {
    let json = match read_whole(&place.file(INDEX), storage).await {
        Ok(json) => json,
        Err(error) if error.kind() == ErrorKind::Gone => return Ok(Stored::Nothing),
        Err(error) if place.is_cache() => return Ok(Stored::Unusable(error.to_string())),
        Err(error) => return Err(error.context("reading the stored catalog")),
    };
    let index: Index = match serde_json::from_slice(&json) {
        Ok(index) => index,
        Err(error) => return Ok(Stored::Unusable(format!("{INDEX}: {error}"))),
    };
    if index.version != VERSION && index.version != CONVERTED_VERSION {
        return Ok(Stored::Unusable(format!(
            "it has version {}, this program reads {VERSION}",
            index.version
        )));
    }
    if index.columns_version != columns_version(index.layout) {
        return Ok(Stored::Unusable(format!(
            "it was stored by a release that made other columns of the layout {}",
            index.layout
        )));
    }
    if index.version == CONVERTED_VERSION && index.layout == Layout::CommonVoiceTar {
        return Ok(Stored::Unusable("an older release stored it, without the names of its archives".into()));
    }
    match load_tables(index, place, storage).await {
        Ok(found) => Ok(Stored::Found(Box::new(found))),
        Err(why) => Ok(Stored::Unusable(why)),
    }
}

async fn read_whole(uri: &str, storage: &Storage) -> Result<Bytes> {
    let object = storage.head(uri).await?;
    let size = object.size;
    storage.read(&object, 0..size).await
}

/// The catalog that an index describes.
pub(super) async fn load_index(index: Index, place: &Place, storage: &Storage) -> Result<Catalog, String> {
    load_tables(index, place, storage).await.map(|found| found.catalog)
}

/// The objects of one catalog, without the rest of it.
pub(super) async fn read_objects(index: &Index, place: &Place, storage: &Storage) -> Result<Objects, String> {
    let (_, batches) =
        read_table(index.tables.get("objects").ok_or("no table objects")?, place, storage).await?;
    let [batch] = batches.as_slice() else { return Err("no table objects".into()) };
    Objects::from_batch(index.base.clone(), batch)
}

async fn read_table(
    table: &Table,
    place: &Place,
    storage: &Storage,
) -> Result<(SchemaRef, Vec<RecordBatch>), String> {
    let stored = files::read(&place.file(&table.file), table.bytes, storage).await?;
    let table = table.clone();
    let checked = tokio::task::spawn_blocking(move || {
        if table.crc32 != Some(crc32fast::hash(&stored.bytes)) {
            return Err(format!("{} is damaged", table.file));
        }
        let decoded = files::decode(stored.bytes.clone()).map_err(|e| format!("{}: {e}", table.file));
        stored.release();
        decoded
    });
    checked.await.map_err(|_| "checking a table was ended".to_owned())?
}

/// The tables of one catalog, read and checked.
struct Tables(BTreeMap<String, (SchemaRef, Vec<RecordBatch>)>);

impl Tables {
    async fn read(index: &Index, place: &Place, storage: &Storage) -> Result<Self, String> {
        let tables = index.tables.iter().filter(|(_, table)| table.crc32.is_some());
        let tables = tables.map(|(name, table)| async move {
            Ok::<_, String>((name.clone(), read_table(table, place, storage).await?))
        });
        Ok(Self(futures::future::try_join_all(tables).await?.into_iter().collect()))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The table that is one batch.
    fn one(&self, name: &str) -> Result<&RecordBatch, String> {
        match self.0.get(name).map(|(_, batches)| batches.as_slice()) {
            Some([batch]) => Ok(batch),
            _ => Err(format!("no table {name}")),
        }
    }

    fn schema_of(&self, name: &str) -> Result<SchemaRef, String> {
        self.0.get(name).map(|(schema, _)| schema.clone()).ok_or_else(|| format!("no table {name}"))
    }

    fn take(&mut self, name: &str) -> Vec<RecordBatch> {
        self.0.remove(name).map(|(_, batches)| batches).unwrap_or_default()
    }
}

async fn load_tables(index: Index, place: &Place, storage: &Storage) -> Result<Found, String> {
    let mut tables = Tables::read(&index, place, storage).await?;
    let objects = Objects::from_batch(index.base.clone(), tables.one("objects")?)?;
    let mut blocks = BlockTable::from_batch(tables.one("blocks")?)?;
    let has_memory = BlockTable::has_memory(tables.one("blocks")?);
    let schema = tables.schema_of("schema")?;
    if index.payload.iter().any(|p| schema.index_of(p).is_err())
        || index.payload.len() > schema.fields().len()
    {
        return Err("a payload column is missing from the schema".into());
    }
    let content = match tables.has("samples") {
        true => load_samples(&mut tables, &index, &objects, &blocks)?,
        false => {
            let table = index.tables.get("units").ok_or("no units")?;
            let object = ObjectRef { uri: place.file(&table.file), size: table.bytes, etag: None };
            let units = load_units(&tables, object, storage).await?;
            if !blocks.units_fit(units.len(), objects.len()) {
                return Err("a block lies in a unit that is not there".into());
            }
            columns_of_units(&tables, units, &schema, blocks.samples())?
        }
    };
    if !has_memory {
        blocks = with_memory(blocks, &content, index.layout, index.payload.len(), storage).await?;
    }
    if index.version != VERSION
        && let Content::Located(samples) = &content
        && let Some(many) = blocks_of_many_objects(samples, &blocks)
    {
        return Err(format!(
            "an older release cut a block of {many} files, more than the {} of today",
            crate::format::MAX_BLOCK_OBJECTS
        ));
    }
    let hashes = hashes_of(&index, &objects, &blocks, &content, storage).await?;
    let catalog = Catalog {
        uri: index.uri,
        layout: index.layout,
        block_bytes: index.block_bytes,
        objects,
        blocks,
        content,
        schema,
        payload: index.payload,
        audio: index.audio,
        notes: index.notes,
        listing_notes: index.listing_notes,
        null_columns: index.null_columns,
        hashes,
        listing: index.fingerprint,
        is_resumed: index.is_resumed,
        probed: index.probed,
    };
    Ok(Found { catalog, converted: index.version != VERSION || !has_memory })
}

fn load_samples(
    tables: &mut Tables,
    index: &Index,
    objects: &Objects,
    blocks: &BlockTable,
) -> Result<Content, String> {
    let (metadata, places) = (tables.take("samples"), tables.take("places"));
    let samples =
        SampleTable::from_batches(metadata, &places, index.payload.len(), objects.len(), index.key)?
            .with_lists(index.lists.clone())?;
    if samples.len() != blocks.samples() {
        return Err(format!("{} samples in {} samples of blocks", samples.len(), blocks.samples()));
    }
    Ok(Content::Located(samples))
}

async fn load_units(tables: &Tables, object: ObjectRef, storage: &Storage) -> Result<UnitStore, String> {
    let batch = tables.one("unit_index")?;
    let ends = super::blocks::column::<UInt64Type>(batch, "end")?;
    let checks = super::blocks::column::<UInt32Type>(batch, "crc32")?;
    let units = UnitStore::stored(ends.to_vec().into(), checks.to_vec().into(), object.clone())?;
    if object.size > UNITS_IN_MEMORY_BYTES {
        return Ok(units);
    }
    let bytes = storage.read(&object, 0..object.size).await.map_err(|e| e.to_string())?;
    units.held(bytes)
}

/// `schema`: of the data set, with what was added.
fn columns_of_units(
    tables: &Tables,
    units: UnitStore,
    schema: &SchemaRef,
    samples: u64,
) -> Result<Content, String> {
    let source_schema = tables.schema_of("source")?;
    let mut mapping = map_columns(&source_schema, &HashMap::new()).map_err(|e| e.to_string())?;
    let added = match tables.has("added") {
        true => Some(Added::new(
            tables.one("added")?.clone(),
            mapping.schema.fields().len() - mapping.payload.len(),
        )),
        false => None,
    };
    let columns = added.as_ref().map_or(0, |a| a.rows().num_columns());
    if mapping.schema.fields().len() + columns != schema.fields().len() {
        return Err("the columns are not those of the files".into());
    }
    if added.as_ref().is_some_and(|a| a.rows().num_rows() as u64 != samples) {
        return Err("the columns that were added have another length".into());
    }
    mapping.schema = match &added {
        Some(added) => added.without(schema).map_err(|e| e.to_string())?,
        None => schema.clone(), // with its class names
    };
    Ok(Content::Units { units, source_schema, mapping: Arc::new(mapping), added })
}

/// The stored hashes; those that version 3 lacks are computed.
async fn hashes_of(
    index: &Index,
    objects: &Objects,
    blocks: &BlockTable,
    content: &Content,
    storage: &Storage,
) -> Result<DataHashes, String> {
    if let (Some(identity), Some(blocks)) = (index.identity, index.blocks) {
        return Ok(DataHashes { identity, blocks, legacy: index.content_hash });
    }
    let identity = identity::identity(index.layout, None, objects, content, storage).await;
    Ok(DataHashes {
        identity: identity.map_err(|e| e.to_string())?,
        blocks: identity::blocks(blocks, index.block_bytes).map_err(|e| e.to_string())?,
        legacy: index.content_hash,
    })
}

/// The blocks of a catalog that was stored without their memory, which follows from their bytes where nothing is compressed.
async fn with_memory(
    blocks: BlockTable,
    content: &Content,
    layout: Layout,
    payloads: usize,
    storage: &Storage,
) -> Result<BlockTable, String> {
    let known = match content {
        Content::Located(_) => Some(blocks.with_memory_per_sample(VIEW_BYTES * payloads as u64)),
        Content::Units { units, mapping, .. } if layout == Layout::ArrowIpc => {
            let units = units.all(storage).await.map_err(|e| e.to_string())?;
            ipc::memory_of_stored(blocks, &units, mapping).map_err(|e| e.to_string())?
        }
        Content::Units { .. } | Content::Union(_) => None,
    };
    known.ok_or_else(|| {
        "an older release stored it, without the memory that its compressed blocks take".into()
    })
}

/// The number of files of the first block that spans more of them than a new catalog's may.
fn blocks_of_many_objects(samples: &SampleTable, blocks: &BlockTable) -> Option<usize> {
    let ranges = blocks.starts().windows(2).map(|pair| pair[0]..pair[1]);
    ranges
        .map(|range| samples.objects_in(range))
        .find(|files| *files > crate::format::MAX_BLOCK_OBJECTS as usize)
}

fn unit_index(units: &UnitStore) -> Result<RecordBatch> {
    let schema = Schema::new(vec![
        Field::new("end", DataType::UInt64, false),
        Field::new("crc32", DataType::UInt32, false),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(units.ends().to_vec())),
        Arc::new(UInt32Array::from(units.checks().to_vec())),
    ];
    RecordBatch::try_new(Arc::new(schema), columns)
        .map_err(|e| Error::new(ErrorKind::Bug, "units do not make a table").with_source(e))
}

#[cfg(test)]
mod tests {
    use super::super::{BlockRow, BlockTableBuilder, UnitStoreBuilder};
    use super::*;
    use crate::{BlockId, CatalogOptions, IoRuntime, StorageOptions};
    use std::time::Instant;

    const BLOCKS: u32 = 1_000_000;

    fn million_blocks() -> Catalog {
        let objects: Vec<ObjectRef> = (0..10_000)
            .map(|i| ObjectRef {
                uri: format!("s3://b/train-{i:05}.parquet"),
                size: 1 << 30,
                etag: Some(format!("{i:032x}")),
            })
            .collect();
        let (mut blocks, mut units) = (BlockTableBuilder::default(), UnitStoreBuilder::default());
        for b in 0..BLOCKS {
            let unit = units.push(format!("{b:064}").as_bytes()).unwrap();
            blocks
                .push(BlockRow {
                    shard: b / 100,
                    samples: 1_000,
                    bytes: 4 << 20,
                    memory: 4 << 20,
                    unit,
                    first_row: 0,
                })
                .unwrap();
        }
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("image", DataType::Binary, true)]));
        let mapping = map_columns(&schema, &HashMap::new()).unwrap();
        Catalog {
            uri: "s3://b".into(),
            layout: Layout::HfParquet,
            block_bytes: 4 << 20,
            objects: Objects::new(&objects),
            blocks: blocks.finish(),
            schema: mapping.schema.clone(),
            payload: mapping.payload.clone(),
            content: Content::Units {
                units: units.finish(),
                source_schema: schema,
                mapping: Arc::new(mapping),
                added: None,
            },
            audio: Vec::new(),
            notes: Vec::new(),
            listing_notes: None,
            is_resumed: false,
            probed: Probed::Nothing,
            null_columns: Vec::new(),
            hashes: DataHashes { identity: 7, blocks: 7, legacy: 7 },
            listing: 1,
        }
    }

    #[test]
    fn buckets_of_one_name_have_catalogs_of_their_own() {
        let at = |uri: &str, endpoint: &str, store: CatalogStore| {
            let options = OpenOptions {
                storage: StorageOptions::default().with("aws_endpoint", endpoint),
                catalog: CatalogOptions { store, ..CatalogOptions::default() },
                ..OpenOptions::default()
            };
            Place::of(uri, &options).unwrap().unwrap().folder
        };
        let cache = || CatalogStore::Cache("/catalogs".into());
        let (one, two) = ("http://one:9000", "http://two:9000");
        assert_ne!(at("s3://b/x", one, cache()), at("s3://b/x", two, cache()));
        assert_eq!(at("s3://b/x", one, cache()), at("s3://b/x", one, cache()));
        assert_eq!(at("/data/x", one, cache()), at("/data/x", two, cache()), "no bucket");
        let beside = || CatalogStore::Beside; // in the bucket itself
        assert_eq!(at("s3://b/x", one, beside()), at("s3://b/x", two, beside()));
    }

    /// `cargo test -p feedstock-dataset million_blocks -- --nocapture` prints how long it takes: less than a second.
    #[test]
    fn a_million_blocks_open_with_mapped_tables_and_one_read_of_a_unit() {
        let folder = tempfile::tempdir().unwrap();
        let io = IoRuntime::new().unwrap();
        let storage = Storage::new(StorageOptions::default(), io.clone()).unwrap();
        let store = CatalogStore::Cache(folder.path().into());
        let catalog = CatalogOptions { store, ..CatalogOptions::default() };
        let place = Place::of("s3://b", &OpenOptions { catalog, ..OpenOptions::default() }).unwrap().unwrap();
        let mut built = million_blocks();
        let shared = (storage.clone(), Arc::new(place));
        let (storage, place) = shared.clone();
        io.block_on(async move {
            save(&mut built, &place, &storage).await?;
            assert!(matches!(&built.content, Content::Units { units, .. } if units.bytes().is_none()));
            Ok(())
        })
        .unwrap();
        let index = std::fs::metadata(shared.1.file(INDEX)).unwrap().len();
        let before = shared.0.stats();
        let start = Instant::now();
        let (storage, place) = shared.clone();
        let found = io
            .block_on(async move {
                let Stored::Found(found) = load(&place, &storage).await? else { panic!("not found") };
                let Content::Units { units, .. } = &found.catalog.content else { panic!("no units") };
                assert_eq!(units.read(777_777, &storage).await?, format!("{:064}", 777_777));
                Ok(found)
            })
            .unwrap();
        let took = start.elapsed();
        println!("{BLOCKS} blocks, {} samples: opened in {took:?}", found.catalog.samples());
        assert_eq!(found.catalog.samples(), 1_000_000_000);
        assert_eq!(found.catalog.block_samples(BlockId(999_999)).end, 1_000_000_000);
        // The index, which is asked for its size, too; and one of the units, 64 bytes each.
        let after = shared.0.stats();
        let (requests, bytes) = (after.requests - before.requests, after.read_bytes - before.read_bytes);
        assert_eq!((requests, bytes), (3, index + 64));
    }
}
