//! Stores a catalog: its tables, then its index.

use super::index::{INDEX, Index, Table, UNITS_IN_MEMORY_BYTES, read_index, write_index};
use super::place::Place;
use super::{files, kept};
use crate::catalog::{Catalog, Content, UnitStore};
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use feedstock_plan::DataHashes;
use std::collections::BTreeMap;
use std::sync::Arc;

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
        Content::Union(_) | Content::Derived(_) => {
            return Err(Error::new(ErrorKind::Bug, "what is made of stored catalogs is not stored"));
        }
    }
    Ok(Encoded { tables, key, lists })
}

/// Returns the name of a table's file, which contains the hash of its bytes.
pub(crate) fn table_file(name: &str, bytes: &[u8]) -> String {
    let extension = if name == "units" { "bin" } else { "arrow" };
    format!("{name}-{:016x}.{extension}", twox_hash::XxHash64::oneshot(0, bytes))
}

pub(crate) async fn save(catalog: &mut Catalog, place: &Place, storage: &Storage) -> Result<()> {
    let Encoded { tables: encoded, key, lists } = encode(catalog)?;
    let mut tables = BTreeMap::new();
    for (name, bytes) in encoded {
        let file = table_file(name, &bytes);
        let crc32 = (name != "units").then(|| crc32fast::hash(&bytes));
        tables.insert(name.to_owned(), Table { file: file.clone(), bytes: bytes.len() as u64, crc32 });
        storage.write(&place.file(&file), bytes).await?;
    }
    let index = Index::of(catalog, key, lists, tables);
    replace_index(&index, place, storage).await?;
    release_units(catalog, &index, place);
    Ok(())
}

/// Stores the index of a catalog whose tables are stored. The catalog that it replaces is kept for a while.
pub(crate) async fn replace_index(index: &Index, place: &Place, storage: &Storage) -> Result<()> {
    let before = read_index(&place.file(INDEX), storage).await.ok().filter(|old| old.tables != index.tables);
    let is_other = |before: &Index| before.identity != index.identity || before.probed != index.probed;
    if let Some(before) = before.clone().filter(is_other) {
        kept::keep(before, place, storage).await?;
    }
    write_index(index, &place.file(INDEX), storage).await?;
    kept::clean(before, index, place, storage).await;
    Ok(())
}

/// Records that the catalog's listing was compared with a later one, unless another catalog has replaced it meanwhile.
pub(crate) async fn save_compared(catalog: &Catalog, place: &Place, storage: &Storage) -> Result<()> {
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

/// Releases large units from memory once they are written to the store.
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
