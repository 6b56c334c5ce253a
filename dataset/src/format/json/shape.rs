//! The type of a column of JSON values, inferred value by value, and the number of values of its array.
//!
//! A value changes the shape in place: the cost depends on what it holds, however many keys the column has seen.
//!
//! Invariant: a type has at most [`MAX_DEPTH`] levels and [`MAX_FIELDS`] fields. What exceeds them is text.

use super::kind::{Flattened, MAX_FIELDS, MIXED, WIDE, list_of, merge};
use arrow::datatypes::{DataType, Field};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Limit on the levels of lists and objects in a column: COCO's segmentations have four.
pub(super) const MAX_DEPTH: usize = 16;

pub(super) const DEEP: &str = "its lists and objects are nested more than 16 levels deep";

/// The least type that holds all values seen.
#[derive(Debug, Default)]
pub(super) enum Shape {
    #[default]
    Null,
    /// Numbers, truth values or text; every mixture counts as text.
    Plain(DataType),
    List {
        item: Box<Shape>,
        /// Items of all lists together.
        items: u64,
    },
    Struct {
        fields: BTreeMap<String, Shape>,
        /// Fields of all levels below.
        total: usize,
    },
}

impl Shape {
    /// Widens the shape so that it holds `value`; sets `why` if lists or objects become text.
    pub(super) fn add(&mut self, value: &Value, why: &mut Flattened) {
        self.add_at(value, 0, why);
    }

    fn add_at(&mut self, value: &Value, depth: usize, why: &mut Flattened) {
        let is_nested = value.is_array() || value.is_object();
        match (&mut *self, value) {
            (_, Value::Null) => {}
            (Self::List { item, items }, Value::Array(values)) => {
                *items += values.len() as u64;
                values.iter().for_each(|value| item.add_at(value, depth + 1, why));
            }
            (Self::Struct { fields, total }, Value::Object(object)) => {
                add_keys(fields, total, object, depth, why);
                if *total > MAX_FIELDS {
                    self.flatten(WIDE, why);
                }
            }
            (Self::Null, _) if is_nested && depth == MAX_DEPTH => self.flatten(DEEP, why),
            (Self::Null, Value::Array(_)) => {
                *self = Self::List { item: Box::default(), items: 0 };
                self.add_at(value, depth, why);
            }
            (Self::Null, Value::Object(_)) => {
                *self = Self::Struct { fields: BTreeMap::new(), total: 0 };
                self.add_at(value, depth, why);
            }
            (Self::Null, plain) => *self = Self::Plain(plain_kind(plain)),
            (Self::Plain(kind), plain) if !is_nested => *kind = merge(kind, &plain_kind(plain), why),
            _ => self.flatten(MIXED, why),
        }
    }

    fn flatten(&mut self, because: &'static str, why: &mut Flattened) {
        why.get_or_insert(because);
        *self = Self::Plain(DataType::Utf8);
    }

    /// Returns the number of fields of its structs, all levels together.
    fn fields(&self) -> usize {
        match self {
            Self::Null | Self::Plain(_) => 0,
            Self::List { item, .. } => item.fields(),
            Self::Struct { total, .. } => *total,
        }
    }

    pub(super) fn kind(&self) -> DataType {
        match self {
            Self::Null => DataType::Null,
            Self::Plain(kind) => kind.clone(),
            Self::List { item, .. } => list_of(item.kind()),
            Self::Struct { fields, .. } => DataType::Struct(
                fields.iter().map(|(name, field)| Field::new(name, field.kind(), true)).collect(),
            ),
        }
    }

    /// Returns the number of values, nulls included, of an array of the shape with `rows` rows, of all its levels and
    /// fields.
    pub(super) fn cells(&self, rows: u64) -> u64 {
        match self {
            Self::Null | Self::Plain(_) => rows,
            Self::List { item, items } => rows.saturating_add(item.cells(*items)),
            Self::Struct { fields, .. } => {
                fields.values().fold(rows, |cells, field| cells.saturating_add(field.cells(rows)))
            }
        }
    }
}

/// Adds an object's keys, until there are too many.
fn add_keys(
    fields: &mut BTreeMap<String, Shape>,
    total: &mut usize,
    object: &Map<String, Value>,
    depth: usize,
    why: &mut Flattened,
) {
    for (key, value) in object {
        if !fields.contains_key(key) {
            fields.insert(key.clone(), Shape::Null);
            *total += 1;
        }
        if fields.len() > MAX_FIELDS {
            return;
        }
        let Some(field) = fields.get_mut(key) else { continue };
        let before = field.fields();
        field.add_at(value, depth + 1, why);
        *total = *total - before + field.fields();
    }
}

fn plain_kind(value: &Value) -> DataType {
    match value {
        Value::Bool(_) => DataType::Boolean,
        Value::Number(number) if number.as_i64().is_some() => DataType::Int64,
        Value::Number(_) => DataType::Float64,
        _ => DataType::Utf8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A union of types, which clones the 250 fields for each of the objects, took a minute.
    #[test]
    fn a_list_counts_its_items_and_the_fields_of_each() {
        let (mut shape, mut why) = (Shape::default(), None);
        let keys: Map<String, Value> = (0..250).map(|key| (key.to_string(), json!(key))).collect();
        let mut items = vec![Value::Object(keys)];
        items.resize(1_000_000, json!({}));
        shape.add(&Value::Array(items), &mut why);
        assert_eq!((why, shape.fields(), shape.cells(1)), (None, 250, 1 + 1_000_000 * 251));
    }

    #[test]
    fn a_field_that_becomes_text_frees_its_fields() {
        let (mut shape, mut why) = (Shape::default(), None);
        let wide =
            |from: usize| Value::Object((from..from + 200).map(|i| (i.to_string(), json!(i))).collect());
        shape.add(&json!({"a": {"b": wide(0)}, "c": 1}), &mut why);
        assert_eq!((shape.fields(), why), (203, None));
        shape.add(&json!({"a": {"b": wide(100)}}), &mut why);
        assert_eq!((shape.fields(), why), (3, Some(WIDE)));
        assert_eq!(shape.kind().to_string(), r#"Struct("a": Struct("b": Utf8), "c": Int64)"#);
    }
}
