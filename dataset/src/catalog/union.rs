//! The catalog of a mix or a concatenation: its parts' catalogs one after another, under one schema.
//!
//! ```text
//! part 0: objects, blocks, samples │ part 1: …        ids count on; each part is read with its own storage and cache
//! columns of all parts by name: a part that lacks one gives nulls; `dataset` names the part
//! ```
//! Cost: the block tables once more, 44 bytes a block, and the objects' names.

use super::{BlockRow, BlockTable, BlockTableBuilder, Catalog, Content, Objects, VIEW_BYTES};
use crate::composition::index;
use crate::dataset::Opened;
use crate::format::{Probed, widen};
use crate::held::{held_type, named};
use crate::{BlockId, BlockReader, Error, ErrorKind, Result, SampleId};
use arrow::array::{ArrayRef, StringViewBuilder, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use feedstock_plan::DataHashes;
use std::ops::Range;
use std::sync::Arc;

/// The column that names the part a sample comes from.
pub(crate) const DATASET: &str = "dataset";

/// What a union is made of: one stored data set, never another union.
pub(crate) struct UnionInput {
    /// What the part is called in the column [`DATASET`] and in errors.
    pub(crate) name: String,
    pub(crate) opened: Arc<Opened>,
    /// The chosen columns of its catalog.
    pub(crate) columns: Arc<[usize]>,
}

/// The parts of a union catalog.
pub(crate) struct Union {
    parts: Vec<Part>,
}

struct Part {
    name: String,
    opened: Arc<Opened>,
    first_object: u32,
    first_block: u32,
    first_unit: u32,
    first_sample: u64,
    /// For each column of the union, the column of the part's catalog.
    columns: Vec<Option<usize>>,
}

impl Union {
    /// The catalog of all parts; `what` they make, a mix or a concatenation, is named in errors and in its URI.
    ///
    /// # Errors
    /// `BadConfig` for a column `dataset` in a part, columns of one name whose types or classes do not go together,
    /// and more blocks or objects than ids.
    pub(crate) fn catalog(what: &str, inputs: Vec<UnionInput>) -> Result<Catalog> {
        let (schema, payload) = schema_of(what, &inputs)?;
        let blocks = blocks_of(what, &inputs, schema.fields().len())?;
        let mut objects = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let hashes: Vec<DataHashes> = inputs.iter().map(|input| input.opened.catalog.hashes).collect();
        let listings: Vec<u64> = inputs.iter().map(|input| input.opened.catalog.listing).collect();
        let (mut first_block, mut first_unit, mut first_sample) = (0, 0, 0);
        for input in inputs {
            let catalog = &input.opened.catalog;
            let first_object = id(what, objects.len())?;
            objects.extend((0..catalog.objects.len()).map(|object| catalog.objects.get(object)));
            let columns = schema.fields().iter().map(|field| {
                input.columns.iter().copied().find(|&c| catalog.schema.field(c).name() == field.name())
            });
            let (columns, counts) = (columns.collect(), (catalog.blocks.len(), catalog.samples()));
            let units = units_of(catalog);
            let opened = input.opened.clone();
            parts.push(Part {
                name: input.name,
                opened,
                first_object,
                first_block,
                first_unit,
                first_sample,
                columns,
            });
            first_block += id(what, counts.0)?; // the table of blocks holds them all
            first_unit += id(what, units)?;
            first_sample += counts.1;
        }
        let first = &parts[0].opened.catalog;
        let named = |part: &Part, note: &String| format!("{}: {note}", part.name);
        let catalogs = || parts.iter().map(|part| &part.opened.catalog);
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
                .flat_map(|part| part.opened.catalog.notes.iter().map(|note| named(part, note)))
                .collect(),
            listing_notes: None,
            is_resumed: false,
            probed: Probed::Nothing,
            schema,
            null_columns: Vec::new(),
            hashes: super::identity::joined(&hashes),
            listing: super::identity::sequence(hashes.len() as u64, listings.into_iter()),
            content: Content::Union(Arc::new(Self { parts })),
        })
    }

    /// The part that holds a sample.
    fn part_of(&self, sample: u64) -> usize {
        self.parts.partition_point(|part| part.first_sample <= sample) - 1
    }

    /// The parts again, as inputs of another union that has these `columns` of this one.
    pub(crate) fn inputs(&self, columns: &[usize]) -> impl Iterator<Item = UnionInput> {
        self.parts.iter().map(|part| UnionInput {
            name: part.name.clone(),
            opened: part.opened.clone(),
            columns: columns.iter().filter_map(|&column| part.columns[column]).collect(),
        })
    }

    /// The parts' catalogs and the blocks before each.
    pub(crate) fn block_offsets(&self) -> impl Iterator<Item = (&Arc<Opened>, u32)> {
        self.parts.iter().map(|part| (&part.opened, part.first_block))
    }

    /// Whether some of the samples that `kept` keeps (`None`: all) certainly have no value in `column`.
    pub(crate) fn proves_nulls(&self, column: &str, kept: Option<&BooleanBuffer>) -> bool {
        self.parts.iter().any(|part| {
            let catalog = &part.opened.catalog;
            let kept = kept.map(|kept| kept.slice(index(part.first_sample), index(catalog.samples())));
            if kept.as_ref().is_some_and(|kept| kept.count_set_bits() == 0) || column == DATASET {
                return false;
            }
            let has_column =
                part.columns.iter().flatten().any(|&own| catalog.schema.field(own).name() == column);
            !has_column || catalog.proves_nulls(column, kept.as_ref())
        })
    }

    /// Bytes that a sample holds in memory when it is fetched alone.
    pub(crate) fn sample_memory_bytes(&self, sample: SampleId) -> u64 {
        let part = &self.parts[self.part_of(sample.0)];
        part.opened.catalog.sample_memory_bytes(SampleId(sample.0 - part.first_sample))
    }

    /// What an error calls a sample.
    pub(crate) fn describe_sample(&self, sample: SampleId) -> String {
        let part = &self.parts[self.part_of(sample.0)];
        let local = part.opened.catalog.describe_sample(SampleId(sample.0 - part.first_sample));
        format!("{}: {local}", part.name)
    }

    /// The URI of the object that holds a sample.
    pub(crate) fn sample_uri(&self, sample: SampleId) -> String {
        let part = &self.parts[self.part_of(sample.0)];
        part.opened.catalog.sample_uri(SampleId(sample.0 - part.first_sample))
    }

    /// What an error calls a block that starts with `first_sample`.
    pub(crate) fn describe_block(&self, block: BlockId, first_sample: u64) -> String {
        let part = &self.parts[self.part_of(first_sample)];
        let local = part.opened.catalog.describe_block(BlockId(block.0 - part.first_block));
        format!("{}: {local}", part.name)
    }
}

/// Reads the chosen columns of a union: one reader a part.
pub(crate) struct UnionReader {
    union: Arc<Union>,
    schema: SchemaRef,
    readers: Vec<(BlockReader, Vec<Source>)>,
}

/// Where a column of a part's rows comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// A column of the part's reader.
    Read(usize),
    /// The part lacks it.
    Null,
    /// The name of the part.
    Name,
}

impl UnionReader {
    /// Reads `columns` of the union, through the parts' disk caches if `cached`.
    pub(crate) fn new(union: &Arc<Union>, columns: &[usize], schema: SchemaRef, cached: bool) -> Self {
        let readers = union.parts.iter().map(|part| {
            let mut read = Vec::new();
            let sources =
                columns.iter().zip(schema.fields()).map(|(&column, field)| match part.columns[column] {
                    Some(own) => {
                        read.push(own);
                        Source::Read(read.len() - 1)
                    }
                    None if field.name() == DATASET => Source::Name,
                    None => Source::Null,
                });
            let sources: Vec<Source> = sources.collect();
            let opened = &part.opened;
            let cache = opened.cache.clone().filter(|_| cached);
            (BlockReader::new(opened.catalog.clone(), opened.storage.clone(), cache, read), sources)
        });
        Self { readers: readers.collect(), union: union.clone(), schema }
    }

    /// Rows of one unit: `place` is the object, the unit and the first row in it, as the union counts them.
    pub(crate) async fn read(
        &self,
        (object, unit, first_row): (u32, u32, u64),
        samples: Range<u64>,
        next_use: u64,
    ) -> Result<RecordBatch> {
        let at = self.union.part_of(samples.start);
        let (part, (reader, sources)) = (&self.union.parts[at], &self.readers[at]);
        let rows = usize::try_from(samples.end - samples.start)
            .map_err(|_| Error::config("a block has more rows than memory has addresses"))?;
        let read = if reader.schema().fields().is_empty() {
            Vec::new()
        } else {
            let place = (object - part.first_object, unit - part.first_unit, first_row);
            let samples = samples.start - part.first_sample..samples.end - part.first_sample;
            reader.read_place(place, samples, next_use).await?.columns().to_vec() // text as views
        };
        let arrays = sources.iter().zip(self.schema.fields()).map(|(source, field)| match source {
            Source::Read(column) => held(&read[*column], field.data_type(), rows),
            Source::Null => Ok(new_null_array(&held_type(field.data_type()), rows)),
            Source::Name => {
                let mut names = StringViewBuilder::with_capacity(rows).with_deduplicate_strings();
                (0..rows).for_each(|_| names.append_value(&part.name));
                Ok(Arc::new(names.finish()) as ArrayRef)
            }
        });
        let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
        named(&self.schema, arrays, rows)
    }
}

/// A part's column in the type in which the union holds it. Types that differ are widened first, as the file holds them.
fn held(column: &ArrayRef, declared: &DataType, rows: usize) -> Result<ArrayRef> {
    let kind = held_type(declared);
    let held = match column.data_type() {
        own if own.is_nested() && held_type(own) != kind => {
            cast(&widen(Some(column), declared, rows)?, &kind)
        }
        DataType::Null => Ok(new_null_array(&kind, rows)),
        _ => cast(column, &kind),
    };
    held.map_err(bug)
}

fn bug(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "a part's rows do not fit the union").with_source(error)
}

fn id(what: &str, count: usize) -> Result<u32> {
    u32::try_from(count)
        .map_err(|_| Error::config(format!("the parts of the {what} have more than 2³² objects or blocks")))
}

/// Units of a catalog, at least one: ids of the next part's begin behind them.
fn units_of(catalog: &Catalog) -> usize {
    match &catalog.content {
        Content::Units { units, .. } => units.len(),
        Content::Located(_) | Content::Union(_) => 1,
    }
}

/// The blocks of all parts. Columns that a part lacks, of `columns` in all, take a view for each sample.
fn blocks_of(what: &str, inputs: &[UnionInput], columns: usize) -> Result<BlockTable> {
    let mut blocks = BlockTableBuilder::default();
    let (mut first_object, mut first_unit) = (0, 0);
    for input in inputs {
        let catalog = &input.opened.catalog;
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

/// Metadata columns of all parts in the order of their first appearance, `dataset`, then payload columns.
fn schema_of(what: &str, inputs: &[UnionInput]) -> Result<(SchemaRef, Vec<String>)> {
    let (mut metadata, mut payload): (Vec<Field>, Vec<Field>) = (Vec::new(), Vec::new());
    for (at, input) in inputs.iter().enumerate() {
        let catalog = &input.opened.catalog;
        for &column in input.columns.iter() {
            let field = catalog.schema.field(column);
            if field.name() == DATASET {
                return Err(Error::config(format!(
                    "{}: a {what} names its parts in a column `{DATASET}`, which this part has of its own; choose its other \
                     columns with Dataset::columns",
                    input.name
                )));
            }
            let encoded = catalog.is_payload(field.name());
            let (mine, others) = if encoded { (&mut payload, &metadata) } else { (&mut metadata, &payload) };
            if others.iter().any(|other| other.name() == field.name()) {
                return Err(Error::config(format!(
                    "column {} holds encoded bytes in one part of the {what} and not in {}; choose other columns with \
                     Dataset::columns",
                    field.name(),
                    input.name
                )));
            }
            match mine.iter_mut().find(|known| known.name() == field.name()) {
                Some(known) => *known = widened(known, field, &inputs[..at], input)?,
                None => mine.push(field.clone()),
            }
        }
    }
    let everywhere = |field: &Field| {
        inputs.iter().all(|input| {
            let fields = input.columns.iter().map(|&column| input.opened.catalog.schema.field(column));
            fields.filter(|own| own.name() == field.name()).any(|own| !own.is_nullable())
        })
    };
    let names = payload.iter().map(|field| field.name().clone()).collect();
    metadata.push(Field::new(DATASET, DataType::Utf8, false));
    let fields = metadata.into_iter().chain(payload);
    let fields: Vec<FieldRef> = fields
        .map(|field| {
            let nullable = field.name() != DATASET && !everywhere(&field);
            Arc::new(field.with_nullable(nullable))
        })
        .collect();
    Ok((Arc::new(Schema::new(fields)), names))
}

/// A field that holds what both hold.
fn widened(known: &Field, field: &Field, before: &[UnionInput], input: &UnionInput) -> Result<Field> {
    let parts = || {
        let has = |part: &&UnionInput| part.opened.catalog.schema.column_with_name(known.name()).is_some();
        let names: Vec<&str> = before.iter().filter(has).map(|part| part.name.as_str()).collect();
        names.join(", ")
    };
    let Some(wide) = wider(known.data_type(), field.data_type()) else {
        return Err(Error::config(format!(
            "column {} is {} in {} and {} in {}: no type holds both; leave it out of one part with Dataset::columns",
            known.name(),
            known.data_type(),
            parts(),
            field.data_type(),
            input.name
        )));
    };
    let classes = |field: &Field| field.metadata().get(super::CLASS_NAMES_KEY).cloned();
    if classes(known) != classes(field) {
        return Err(Error::config(format!(
            "column {} numbers other classes in {} than in {}: one number would mean two things; leave it out of one \
             part with Dataset::columns",
            known.name(),
            parts(),
            input.name
        )));
    }
    Ok(known.clone().with_data_type(wide))
}

/// The narrowest type that holds the values of both: whole numbers up to Int64, numbers up to Float64, texts, lists of
/// such, structs with the fields of both.
fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Dictionary, Float64, Int64, LargeUtf8, List, Null, Struct, UInt64, Utf8, Utf8View};
    let text = |t: &DataType| match t {
        Dictionary(_, values) => matches!(**values, Utf8 | LargeUtf8 | Utf8View),
        other => matches!(other, Utf8 | LargeUtf8 | Utf8View),
    };
    match (a, b) {
        _ if a.equals_datatype(b) => Some(a.clone()),
        (Null, other) | (other, Null) => Some(other.clone()),
        _ if text(a) && text(b) => Some(if *a == LargeUtf8 || *b == LargeUtf8 { LargeUtf8 } else { Utf8 }),
        // Half of u64's numbers have no place in i64.
        _ if a.is_integer() && b.is_integer() => match (a, b) {
            (UInt64, other) | (other, UInt64) if other.is_unsigned_integer() => Some(UInt64),
            (UInt64, _) | (_, UInt64) => None,
            _ => Some(Int64),
        },
        _ if number(a) && number(b) => Some(Float64),
        (List(a), List(b)) => {
            let item = wider(a.data_type(), b.data_type())?;
            Some(List(Arc::new(Field::new(a.name(), item, true))))
        }
        (Struct(a), Struct(b)) => wider_struct(a, b),
        _ => None,
    }
}

/// A struct with the fields of both by name, each of which may be null.
fn wider_struct(a: &Fields, b: &Fields) -> Option<DataType> {
    let mut fields: Vec<Field> = a.iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    for field in b {
        match fields.iter_mut().find(|known| known.name() == field.name()) {
            Some(known) => known.set_data_type(wider(known.data_type(), field.data_type())?),
            None => fields.push(field.as_ref().clone().with_nullable(true)),
        }
    }
    Some(DataType::Struct(fields.into()))
}

fn number(t: &DataType) -> bool {
    t.is_integer() || t.is_floating()
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::{
        Boolean, Float32, Float64, Int16, Int32, Int64, LargeUtf8, Null, UInt8, UInt32, UInt64, Utf8,
    };

    #[test]
    fn types_widen_as_far_as_they_hold_both() {
        let dictionary = DataType::Dictionary(Box::new(Int32), Box::new(Utf8));
        for (a, b, wide) in [
            (Utf8, Utf8, Some(Utf8)),
            (Utf8, LargeUtf8, Some(LargeUtf8)),
            (dictionary, Utf8, Some(Utf8)),
            (Int16, Int32, Some(Int64)),
            (UInt32, Int64, Some(Int64)),
            (UInt8, UInt64, Some(UInt64)),
            (UInt64, Int64, None),
            (Int64, Float32, Some(Float64)),
            (Float32, Float64, Some(Float64)),
            (Boolean, Int64, None),
            (Utf8, Int64, None),
            (Null, Boolean, Some(Boolean)),
        ] {
            assert_eq!((wider(&a, &b), wider(&b, &a)), (wide.clone(), wide), "{a} {b}");
        }
    }
}
