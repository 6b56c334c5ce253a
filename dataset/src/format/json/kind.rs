//! Types of columns of JSON values, and the type that holds several of them.
//!
//! Invariant: a type has at most [`MAX_FIELDS`] fields. What exceeds them is kept as JSON text.

use arrow::datatypes::{DataType, Field, Fields};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields of the structs of one column, all levels together: objects whose keys are ids would make one each.
pub(in crate::format) const MAX_FIELDS: usize = 256;

pub(in crate::format) const MIXED: &str = "some of its lists or objects are next to values of another kind";
pub(in crate::format) const WIDE: &str = "its objects have more than 256 different keys";

/// Why lists or objects of a column are kept as text; the first reason found.
pub(in crate::format) type Flattened = Option<&'static str>;

/// Returns the type that holds both.
pub(in crate::format) fn unify(a: &DataType, b: &DataType) -> DataType {
    merge(a, b, &mut None)
}

/// Returns the type that holds both; sets `why` if lists or objects become text.
pub(in crate::format) fn merge(a: &DataType, b: &DataType, why: &mut Flattened) -> DataType {
    match (a, b) {
        (a, b) if a == b => a.clone(),
        (DataType::Null, other) | (other, DataType::Null) => other.clone(),
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => DataType::Float64,
        (DataType::List(a), DataType::List(b)) => list_of(merge(a.data_type(), b.data_type(), why)),
        (DataType::Struct(a), DataType::Struct(b)) => {
            let kinds = |fields: &Fields| {
                let kind = |f: &Arc<Field>| (f.name().clone(), f.data_type().clone());
                fields.iter().map(kind).collect::<BTreeMap<_, _>>()
            };
            let mut all = kinds(a);
            for (name, kind) in kinds(b) {
                let known = all.entry(name).or_insert(DataType::Null);
                *known = merge(known, &kind, why);
            }
            struct_of(all, why)
        }
        (a, b) => {
            if a.is_nested() || b.is_nested() {
                why.get_or_insert(MIXED);
            }
            DataType::Utf8
        }
    }
}

pub(in crate::format) fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

/// Returns text if there are too many fields.
fn struct_of(kinds: BTreeMap<String, DataType>, why: &mut Flattened) -> DataType {
    if kinds.values().map(|kind| 1 + fields_of(kind)).sum::<usize>() > MAX_FIELDS {
        why.get_or_insert(WIDE);
        return DataType::Utf8;
    }
    DataType::Struct(kinds.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect())
}

/// Returns the number of fields of a type's structs, all levels together.
pub(in crate::format) fn fields_of(kind: &DataType) -> usize {
    match kind {
        DataType::List(item) => fields_of(item.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| 1 + fields_of(field.data_type())).sum(),
        _ => 0,
    }
}

/// Returns the type for a catalog: what is null everywhere, or an object without keys, is text, so that a filter can still
/// name it.
pub(in crate::format) fn settled(kind: DataType) -> DataType {
    match kind {
        DataType::Null => DataType::Utf8,
        DataType::List(item) => list_of(settled(item.data_type().clone())),
        DataType::Struct(fields) if fields.is_empty() => DataType::Utf8,
        DataType::Struct(fields) => {
            let settle = |f: &Arc<Field>| f.as_ref().clone().with_data_type(settled(f.data_type().clone()));
            DataType::Struct(fields.iter().map(settle).collect())
        }
        other => other,
    }
}
