//! The columns of a mix or a concatenation: those of its parts by name, in types that hold the values of all parts.

use crate::catalog::{CLASS_NAMES_KEY, DATASET, UnionInput};
use crate::{Error, Result};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use std::sync::Arc;

/// Returns the metadata columns of all parts in the order of their first appearance, then `dataset`, then the payload columns.
pub(super) fn schema_of(what: &str, inputs: &[UnionInput]) -> Result<(SchemaRef, Vec<String>)> {
    let (mut metadata, mut payload): (Vec<Field>, Vec<Field>) = (Vec::new(), Vec::new());
    for (at, input) in inputs.iter().enumerate() {
        let catalog = &input.stored.catalog;
        for &column in input.columns.iter() {
            let field = catalog.schema.field(column);
            if field.name() == DATASET {
                return Err(Error::config(format!(
                    "{}: this part has a column `{DATASET}`, in which a {what} stores the names of its parts; choose its other \
                     columns with Dataset::columns",
                    input.name
                )));
            }
            let encoded = catalog.is_payload(field.name());
            let (mine, others) = if encoded { (&mut payload, &metadata) } else { (&mut metadata, &payload) };
            if others.iter().any(|other| other.name() == field.name()) {
                return Err(Error::config(format!(
                    "column {} holds encoded bytes in one part of the {what} but not in {}; choose other columns with \
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
            let fields = input.columns.iter().map(|&column| input.stored.catalog.schema.field(column));
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

/// Returns a field that holds the values of both.
fn widened(known: &Field, field: &Field, before: &[UnionInput], input: &UnionInput) -> Result<Field> {
    let parts = || {
        let has = |part: &&UnionInput| part.stored.catalog.schema.column_with_name(known.name()).is_some();
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
    let classes = |field: &Field| field.metadata().get(CLASS_NAMES_KEY).cloned();
    if classes(known) != classes(field) {
        return Err(Error::config(format!(
            "column {} numbers its classes differently in {} and in {}, so one number would mean two things; leave it out of \
             one part with Dataset::columns",
            known.name(),
            parts(),
            input.name
        )));
    }
    Ok(known.clone().with_data_type(wide))
}

/// Returns the narrowest type that holds the values of both: integers up to Int64, numbers up to Float64, texts, lists of
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
        // i64 cannot hold half of u64's numbers.
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

/// Returns a struct with the fields of both by name, each nullable.
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
