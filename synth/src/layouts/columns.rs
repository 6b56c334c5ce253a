//! Samples as Arrow columns, exactly as in Hugging Face's ImageNet: `image: struct<bytes: binary, path: string>` and
//! `label: int64`. In addition, `width` and `height` as int64.

use crate::painter::class_name;
use crate::{Error, ErrorKind, Result, Sample};
use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Key of the features JSON in the metadata of schemas and Parquet files.
pub(crate) const FEATURES_KEY: &str = "huggingface";

/// Returns the schema, with the features in its metadata.
pub(crate) fn schema(classes: u32) -> SchemaRef {
    let info = json!({ "info": { "features": features(classes) } });
    let metadata = HashMap::from([(FEATURES_KEY.to_owned(), info.to_string())]);
    let fields = vec![
        Field::new("image", DataType::Struct(image_fields()), true),
        Field::new("label", DataType::Int64, true),
        Field::new("width", DataType::Int64, true),
        Field::new("height", DataType::Int64, true),
    ];
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// Returns the features in the form that `datasets` uses.
pub(crate) fn features(classes: u32) -> Value {
    let names: Vec<String> = (0..classes).map(class_name).collect();
    let integer = json!({ "dtype": "int64", "_type": "Value" });
    json!({
        "image": { "_type": "Image" },
        "label": { "names": names, "_type": "ClassLabel" },
        "width": integer,
        "height": integer,
    })
}

fn image_fields() -> Fields {
    let bytes = Field::new("bytes", DataType::Binary, true);
    let path = Field::new("path", DataType::Utf8, true);
    Fields::from(vec![bytes, path])
}

/// Moves all of `samples` into one record batch.
pub(crate) fn take_batch(schema: &SchemaRef, samples: &mut Vec<Sample>) -> Result<RecordBatch> {
    let bytes = BinaryArray::from_iter_values(samples.iter().map(|sample| &sample.jpeg));
    let paths = StringArray::from_iter_values(samples.iter().map(|sample| &sample.name));
    let image: Vec<ArrayRef> = vec![Arc::new(bytes), Arc::new(paths)];
    let integers = |value: fn(&Sample) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(samples.iter().map(value)))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StructArray::new(image_fields(), image, None)),
        integers(|sample| sample.label),
        integers(|sample| sample.width.into()),
        integers(|sample| sample.height.into()),
    ];
    samples.clear();
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Error::new(ErrorKind::Bug, format!("sample columns do not fit their schema: {e}")))
}
