//! Columns whose type is learnt from their values: JSON members of tars.
//!
//! Each tar makes its own typed column; the data set's type is the one that holds all of them: whole numbers beside
//! fractions become float64, any other mixture becomes text.

use super::columns::bug;
use crate::Result;
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, NullArray, StringArray, new_null_array,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use serde_json::Value;
use std::sync::Arc;

/// One value of such a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Scalar {
    /// A JSON scalar; lists and objects are none.
    pub(super) fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) => n.as_i64().map(Self::Int).or_else(|| n.as_f64().map(Self::Float))?,
            Value::String(s) => Self::Text(s.clone()),
            Value::Array(_) | Value::Object(_) => return None,
        })
    }

    fn kind(&self) -> DataType {
        match self {
            Self::Null => DataType::Null,
            Self::Bool(_) => DataType::Boolean,
            Self::Int(_) => DataType::Int64,
            Self::Float(_) => DataType::Float64,
            Self::Text(_) => DataType::Utf8,
        }
    }

    fn text(&self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Bool(b) => Some(b.to_string()),
            Self::Int(i) => Some(i.to_string()),
            Self::Float(f) => Some(f.to_string()),
            Self::Text(s) => Some(s.clone()),
        }
    }
}

/// The type that holds both.
pub(super) fn unify(a: &DataType, b: &DataType) -> DataType {
    match (a, b) {
        (a, b) if a == b => a.clone(),
        (DataType::Null, other) | (other, DataType::Null) => other.clone(),
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => DataType::Float64,
        _ => DataType::Utf8,
    }
}

/// One tar's values as an array of the least type that holds them.
pub(super) fn array_of(values: &[Scalar]) -> ArrayRef {
    let kind = values.iter().fold(DataType::Null, |kind, v| unify(&kind, &v.kind()));
    match kind {
        DataType::Null => Arc::new(NullArray::new(values.len())),
        DataType::Boolean => Arc::new(
            values
                .iter()
                .map(|v| if let Scalar::Bool(b) = v { Some(*b) } else { None })
                .collect::<BooleanArray>(),
        ),
        DataType::Int64 => Arc::new(
            values
                .iter()
                .map(|v| if let Scalar::Int(i) = v { Some(*i) } else { None })
                .collect::<Int64Array>(),
        ),
        DataType::Float64 => {
            #[expect(clippy::cast_precision_loss, reason = "what a column of mixed numbers means")]
            let float = |v: &Scalar| match v {
                Scalar::Float(f) => Some(*f),
                Scalar::Int(i) => Some(*i as f64),
                _ => None,
            };
            Arc::new(values.iter().map(float).collect::<Float64Array>())
        }
        _ => Arc::new(values.iter().map(Scalar::text).collect::<StringArray>()),
    }
}

/// Does it hold numbers alone, be it as text?
pub(super) fn is_numbers(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Boolean => false,
        DataType::Utf8 => {
            let mut texts = array.as_string::<i32>().iter().flatten();
            texts.all(|t| t.trim().parse::<f64>().is_ok_and(f64::is_finite))
        }
        _ => true,
    }
}

/// A tar's column as the data set's type; `None`: the tar has no such column.
pub(super) fn widen(array: Option<&ArrayRef>, kind: &DataType, rows: usize) -> Result<ArrayRef> {
    match array {
        None => Ok(new_null_array(kind, rows)),
        Some(array) if array.data_type() == &DataType::Null => Ok(new_null_array(kind, rows)),
        Some(array) => cast(array, kind).map_err(bug),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixtures_become_the_least_type_that_holds_them() {
        let array = |v: &[Scalar]| array_of(v).data_type().clone();
        assert_eq!(array(&[Scalar::Int(1), Scalar::Null]), DataType::Int64);
        assert_eq!(array(&[Scalar::Int(1), Scalar::Float(0.5)]), DataType::Float64);
        assert_eq!(array(&[Scalar::Bool(true), Scalar::Int(1)]), DataType::Utf8);
        assert_eq!(array(&[Scalar::Null]), DataType::Null);
        let widened = widen(Some(&array_of(&[Scalar::Int(7)])), &DataType::Utf8, 1).unwrap();
        assert_eq!(arrow::array::AsArray::as_string::<i32>(&widened).value(0), "7");
    }
}
