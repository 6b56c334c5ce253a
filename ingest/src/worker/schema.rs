//! What lanes look like to Flight clients.

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use feedstock_ops::{DType, TensorSpec};
use std::collections::HashMap;
use std::sync::Arc;

/// What a lane's batches look like: `sample_id` (UInt64), the tensors, what rides along.
pub(super) fn lane_schema(outputs: &[(String, TensorSpec)], rides: &Schema) -> SchemaRef {
    let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("sample_id", DataType::UInt64, false))];
    for (name, spec) in outputs {
        let shape = serde_json::json!({ "shape": spec.shape }).to_string();
        let item = Arc::new(Field::new("item", element(spec.dtype), false));
        let (list, extension) = match spec.is_ragged() {
            true => (DataType::List(item), "feedstock.ragged_tensor"),
            false => {
                let width = i32::try_from(spec.elements()).unwrap_or(i32::MAX);
                (DataType::FixedSizeList(item, width), "arrow.fixed_shape_tensor")
            }
        };
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), extension.to_owned()),
            ("ARROW:extension:metadata".to_owned(), shape),
        ]);
        fields.push(Arc::new(Field::new(name, list, false).with_metadata(metadata)));
        if spec.is_ragged() {
            fields.push(Arc::new(Field::new(format!("{name}_length"), DataType::Int64, false)));
        }
    }
    fields.extend(rides.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

/// The Arrow type of a tensor's elements.
pub(super) fn element(dtype: DType) -> DataType {
    match dtype {
        DType::U8 => DataType::UInt8,
        DType::U16 => DataType::UInt16,
        DType::I64 => DataType::Int64,
        _ => DataType::Float32,
    }
}
