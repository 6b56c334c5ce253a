//! The catalog of a mix or a concatenation: its parts' catalogs end to end, under one schema.
//!
//! ```text
//! columns of all parts by name: a part that lacks one has nulls; `dataset` names the part
//! ```
//! Cost: a copy of the block tables, 44 bytes a block, and of the objects' names.

use super::schema::schema_of;
use crate::catalog::{
    BlockRow, BlockTable, BlockTableBuilder, Catalog, Content, Objects, Part, Probed, Union, UnionInput,
    VIEW_BYTES,
};
use crate::stored::{joined, sequence};
use crate::{BlockId, Error, Result};
use feedstock_plan::DataHashes;
use std::sync::Arc;

/// Joins the catalogs of all parts; `what` they make, a mix or a concatenation, is named in errors and in the URI.
///
/// # Errors
/// `BadConfig` for a column `dataset` in a part, columns of the same name whose types or classes do not fit,
/// and more blocks or objects than ids.
pub(crate) fn union_catalog(what: &str, inputs: Vec<UnionInput>) -> Result<Catalog> {
    let (schema, payload) = schema_of(what, &inputs)?;
    let blocks = blocks_of(what, &inputs, schema.fields().len())?;
    let mut objects = Vec::new();
    let mut parts: Vec<Part> = Vec::new();
    let hashes: Vec<DataHashes> = inputs.iter().map(|input| input.stored.catalog.hashes).collect();
    let listings: Vec<u64> = inputs.iter().map(|input| input.stored.catalog.listing).collect();
    let (mut first_block, mut first_unit, mut first_sample) = (0, 0, 0);
    for input in inputs {
        let catalog = &input.stored.catalog;
        let first_object = id(what, objects.len())?;
        objects.extend((0..catalog.objects.len()).map(|object| catalog.objects.get(object)));
        let columns = schema.fields().iter().map(|field| {
            input.columns.iter().copied().find(|&c| catalog.schema.field(c).name() == field.name())
        });
        let (columns, counts) = (columns.collect(), (catalog.blocks.len(), catalog.samples()));
        let units = units_of(catalog);
        parts.push(Part {
            name: input.name,
            stored: input.stored.clone(),
            first_object,
            first_block,
            first_unit,
            first_sample,
            columns,
        });
        first_block += id(what, counts.0)?; // cannot overflow: the table of blocks holds them all
        first_unit += id(what, units)?;
        first_sample += counts.1;
    }
    let first = &parts[0].stored.catalog;
    let named = |part: &Part, note: &String| format!("{}: {note}", part.name);
    let catalogs = || parts.iter().map(|part| &part.stored.catalog);
    let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    names.dedup();
    Ok(Catalog {
        uri: format!("{what} of {}", names.join(", ")),
        layout: first.layout,
        block_bytes: first.block_bytes,
        objects: Objects::new(&objects),
        blocks,
        audio: payload
            .iter()
            .filter(|c| catalogs().any(|catalog| catalog.audio.contains(c)))
            .cloned()
            .collect(),
        payload,
        notes: parts
            .iter()
            .flat_map(|part| part.stored.catalog.notes.iter().map(|note| named(part, note)))
            .collect(),
        listing_notes: None,
        is_resumed: false,
        probed: Probed::Nothing,
        unsupported: Vec::new(),
        schema,
        null_columns: Vec::new(),
        hashes: joined(&hashes),
        listing: sequence(hashes.len() as u64, listings.into_iter()),
        content: Content::Union(Arc::new(Union::new(parts))),
    })
}

fn id(what: &str, count: usize) -> Result<u32> {
    u32::try_from(count)
        .map_err(|_| Error::config(format!("the parts of the {what} have more than 2³² objects or blocks")))
}

/// Returns the number of a catalog's units, at least one: the unit ids of the next part begin after them.
fn units_of(catalog: &Catalog) -> usize {
    match &catalog.content {
        Content::Units { units, .. } => units.len(),
        Content::Derived(derived) => units_of(derived.base()),
        Content::Located(_) | Content::Union(_) => 1,
    }
}

/// Joins the blocks of all parts. Each of the `columns` that a part lacks takes a view for each sample.
fn blocks_of(what: &str, inputs: &[UnionInput], columns: usize) -> Result<BlockTable> {
    let mut blocks = BlockTableBuilder::default();
    let (mut first_object, mut first_unit) = (0, 0);
    for input in inputs {
        let catalog = &input.stored.catalog;
        for block in 0..id(what, catalog.blocks.len())? {
            let row = catalog.blocks.row(BlockId(block));
            let lacking = (columns - input.columns.len()) as u64 * VIEW_BYTES * u64::from(row.samples);
            let (shard, unit) = (row.shard + first_object, row.unit + first_unit);
            blocks.push(BlockRow { shard, unit, memory: row.memory.saturating_add(lacking), ..row })?;
        }
        first_object += id(what, catalog.objects.len())?;
        first_unit += id(what, units_of(catalog))?;
    }
    Ok(blocks.finish())
}
