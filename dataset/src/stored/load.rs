//! Opens a stored catalog. What does not match its index is rebuilt, never trusted.

use super::index::{CONVERTED_VERSION, INDEX, Index, Table, UNITS_IN_MEMORY_BYTES, VERSION, read_whole};
use super::place::Place;
use super::{files, identity};
use crate::catalog::columns::map_columns;
use crate::catalog::{
    Added, BlockTable, Catalog, Content, Objects, Parts, SampleTable, UnitStore, VIEW_BYTES, column,
};
use crate::format::{self, MAX_BLOCK_OBJECTS};
use crate::{ErrorKind, Layout, ObjectRef, Result, Storage};
use arrow::datatypes::{SchemaRef, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use feedstock_plan::DataHashes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A stored catalog and what it was built from.
pub(crate) struct Found {
    pub(crate) catalog: Catalog,
    /// Whether it has an older version and must be stored again.
    pub(crate) converted: bool,
}

pub(crate) enum Stored {
    Found(Box<Found>),
    Nothing,
    Unusable(String),
}

pub(crate) async fn load(place: &Place, storage: &Storage) -> Result<Stored> {
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
    if index.columns_version != format::of(index.layout).columns_version() {
        return Ok(Stored::Unusable(format!(
            "it was stored by a release that made other columns of the layout {}",
            index.layout
        )));
    }
    if index.version == CONVERTED_VERSION && format::of(index.layout).reads_copies() {
        return Ok(Stored::Unusable("an older release stored it, without the names of its archives".into()));
    }
    match load_tables(index, place, storage).await {
        Ok(found) => Ok(Stored::Found(Box::new(found))),
        Err(why) => Ok(Stored::Unusable(why)),
    }
}

/// Returns the catalog that an index describes.
pub(crate) async fn load_index(index: Index, place: &Place, storage: &Storage) -> Result<Catalog, String> {
    load_tables(index, place, storage).await.map(|found| found.catalog)
}

/// Reads the objects of one catalog, without the rest of it.
pub(crate) async fn read_objects(index: &Index, place: &Place, storage: &Storage) -> Result<Objects, String> {
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

    /// Returns a table that is one batch.
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
                return Err("a block is in a unit that does not exist".into());
            }
            let parts = match index.parts() {
                Some(parts) => parts,
                None => parts_of_stored(&units, index.layout, storage).await?,
            };
            columns_of_units(&tables, units, &schema, blocks.samples(), parts)?
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
            "an older release cut a block of {many} files, over the limit of {}",
            MAX_BLOCK_OBJECTS
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
        unsupported: index.unsupported,
    };
    let states_parts = index.has_parts.is_some() || !matches!(catalog.content, Content::Units { .. });
    Ok(Found { catalog, converted: index.version != VERSION || !has_memory || !states_parts })
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
        return Err(format!("{} samples, but the blocks have {}", samples.len(), blocks.samples()));
    }
    Ok(Content::Located(samples))
}

async fn load_units(tables: &Tables, object: ObjectRef, storage: &Storage) -> Result<UnitStore, String> {
    let batch = tables.one("unit_index")?;
    let ends = column::<UInt64Type>(batch, "end")?;
    let checks = column::<UInt32Type>(batch, "crc32")?;
    let units = UnitStore::stored(ends.to_vec().into(), checks.to_vec().into(), object.clone())?;
    if object.size > UNITS_IN_MEMORY_BYTES {
        return Ok(units);
    }
    let bytes = storage.read(&object, 0..object.size).await.map_err(|e| e.to_string())?;
    units.held(bytes)
}

async fn parts_of_stored(units: &UnitStore, layout: Layout, storage: &Storage) -> Result<Parts, String> {
    let units = units.all(storage).await.map_err(|e| e.to_string())?;
    format::of(layout).parts_of_stored(&units).map_err(|e| e.to_string())
}

/// `schema` is that of the data set, with the added columns.
fn columns_of_units(
    tables: &Tables,
    units: UnitStore,
    schema: &SchemaRef,
    samples: u64,
    parts: Parts,
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
        return Err("the added columns have another length".into());
    }
    mapping.schema = match &added {
        Some(added) => added.without(schema).map_err(|e| e.to_string())?,
        None => schema.clone(), // with its class names
    };
    Ok(Content::Units { units, source_schema, mapping: Arc::new(mapping), added, parts })
}

/// Returns the stored hashes; computes those that version 3 lacks.
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

/// Returns the blocks of a catalog that was stored without their memory, which follows from their bytes if nothing is
/// compressed.
async fn with_memory(
    blocks: BlockTable,
    content: &Content,
    layout: Layout,
    payloads: usize,
    storage: &Storage,
) -> Result<BlockTable, String> {
    let known = match content {
        Content::Located(_) => Some(blocks.with_memory_per_sample(VIEW_BYTES * payloads as u64)),
        Content::Units { units, mapping, .. } => {
            let known = format::of(layout).memory_of_stored(blocks, units, mapping, storage);
            known.await.map_err(|e| e.to_string())?
        }
        Content::Union(_) | Content::Derived(_) => None,
    };
    known.ok_or_else(|| {
        "an older release stored it, without the memory that its compressed blocks take".into()
    })
}

/// Returns the number of files of the first block that spans more of them than a new catalog's may.
fn blocks_of_many_objects(samples: &SampleTable, blocks: &BlockTable) -> Option<usize> {
    let ranges = blocks.starts().windows(2).map(|pair| pair[0]..pair[1]);
    ranges.map(|range| samples.objects_in(range)).find(|files| *files > MAX_BLOCK_OBJECTS as usize)
}
