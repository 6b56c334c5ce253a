//! From the catalog's columns to the columns of the shards, as Hugging Face `datasets` reads them.
//!
//! ```text
//! image: BinaryView, image_path: Utf8, label: Int64   ─▶   image: struct<bytes: binary, path: string>, label: int64
//! ```
//! Every field may be null, as `datasets` has it: it takes a feature only where the field is exactly the feature's own.

use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, StructArray, new_null_array};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::Dataset;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Key of the features JSON in the metadata of a schema and of a Parquet file.
pub(super) const FEATURES_KEY: &str = "huggingface";

/// What a payload column holds, judged by its first sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PayloadKind {
    Image,
    Audio,
    Bytes,
}

/// A shard's columns, and which catalog columns they are made of.
#[derive(Debug, Clone)]
pub(super) struct ShardSchema {
    pub(super) schema: SchemaRef,
    columns: Vec<Column>,
}

#[derive(Debug, Clone)]
enum Column {
    Metadata(String),
    /// The payload, and the column that goes into the struct's `path`.
    Payload(String, Option<String>),
}

impl ShardSchema {
    /// The shards' columns for the chosen columns of `dataset`.
    pub(super) fn new(dataset: &Dataset, kinds: &BTreeMap<String, PayloadKind>) -> Self {
        let chosen = dataset.block_reader().schema().clone();
        let path_of = |payload: &str| {
            let name = format!("{payload}_path");
            chosen.field_with_name(&name).is_ok_and(|field| is_text(field.data_type())).then_some(name)
        };
        let paths: Vec<String> = kinds.keys().filter_map(|payload| path_of(payload)).collect();
        let (mut columns, mut fields, mut features) = (Vec::new(), Vec::<FieldRef>::new(), Map::new());
        for field in chosen.fields() {
            let name = field.name();
            if let Some(kind) = kinds.get(name) {
                columns.push(Column::Payload(name.clone(), path_of(name)));
                fields.push(Arc::new(Field::new(name, DataType::Struct(encoded_fields()), true)));
                features.insert(name.clone(), payload_feature(*kind));
            } else if !paths.contains(name) {
                columns.push(Column::Metadata(name.clone()));
                fields.push(Arc::new(Field::new(name, field.data_type().clone(), true)));
                let names = dataset.catalog().class_names(name);
                if let Some(feature) = feature(field.data_type(), names) {
                    features.insert(name.clone(), feature);
                }
            }
        }
        let info = json!({ "info": { "features": features } }).to_string();
        let metadata = HashMap::from([(FEATURES_KEY.to_owned(), info)]);
        Self { schema: Arc::new(Schema::new_with_metadata(fields, metadata)), columns }
    }

    /// A catalog batch as the shards hold it. Payload bytes are copied.
    pub(super) fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let column = |name: &str| {
            batch.column_by_name(name).ok_or_else(|| bug(format!("a record batch lacks column {name}")))
        };
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for source in &self.columns {
            arrays.push(match source {
                Column::Metadata(name) => column(name)?.clone(),
                Column::Payload(name, path) => {
                    let path = path.as_ref().map(|path| column(path)).transpose()?;
                    encoded(column(name)?, path)?
                }
            });
        }
        RecordBatch::try_new(self.schema.clone(), arrays).map_err(bug)
    }
}

fn encoded_fields() -> Fields {
    vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)].into()
}

fn encoded(payload: &ArrayRef, path: Option<&ArrayRef>) -> Result<ArrayRef> {
    let views = payload.as_binary_view_opt().ok_or_else(|| bug("a payload column is not BinaryView"))?;
    let total: usize = views.iter().flatten().map(<[u8]>::len).sum();
    if i32::try_from(total).is_err() {
        let message = format!("a payload of {total} bytes; a binary column of a shard holds up to 2 GiB");
        return Err(Error::new(ErrorKind::BadSample, message));
    }
    let mut bytes = BinaryBuilder::with_capacity(views.len(), total);
    views.iter().for_each(|view| bytes.append_option(view));
    let path = match path {
        Some(path) => arrow::compute::cast(path, &DataType::Utf8).map_err(bug)?,
        None => new_null_array(&DataType::Utf8, views.len()),
    };
    let children: Vec<ArrayRef> = vec![Arc::new(bytes.finish()), path];
    StructArray::try_new(encoded_fields(), children, None)
        .map(|array| Arc::new(array) as ArrayRef)
        .map_err(bug)
}

/// What the first payload of each column begins with.
pub(super) fn payload_kinds(dataset: &Dataset, first: &RecordBatch) -> BTreeMap<String, PayloadKind> {
    let schema = dataset.block_reader().schema().clone();
    let payloads = schema.fields().iter().filter(|field| dataset.catalog().is_payload(field.name()));
    payloads
        .map(|field| {
            let column = first.column_by_name(field.name()).and_then(|array| array.as_binary_view_opt());
            let mut kinds = column.into_iter().flat_map(|views| views.iter().flatten().filter_map(kind_of));
            (field.name().clone(), kinds.next().unwrap_or(PayloadKind::Bytes))
        })
        .collect()
}

/// Magic bytes of the formats that feedstock and `datasets` decode.
fn kind_of(bytes: &[u8]) -> Option<PayloadKind> {
    const IMAGES: [&[u8]; 5] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*"];
    const AUDIO: [&[u8]; 6] = [b"ID3", b"fLaC", b"OggS", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"];
    let riff = bytes.starts_with(b"RIFF").then(|| bytes.get(8..12)).flatten();
    if riff == Some(b"WEBP") || IMAGES.iter().any(|magic| bytes.starts_with(magic)) {
        return Some(PayloadKind::Image);
    }
    let audio = riff == Some(b"WAVE") || AUDIO.iter().any(|magic| bytes.starts_with(magic));
    audio.then_some(PayloadKind::Audio)
}

fn payload_feature(kind: PayloadKind) -> Value {
    match kind {
        PayloadKind::Image => json!({ "_type": "Image" }),
        PayloadKind::Audio => json!({ "_type": "Audio" }),
        PayloadKind::Bytes => json!({
            "bytes": { "dtype": "binary", "_type": "Value" },
            "path": { "dtype": "string", "_type": "Value" },
        }),
    }
}

/// The feature of a metadata column; `None` where `datasets` had better infer it from the Arrow type.
fn feature(kind: &DataType, class_names: Option<Vec<String>>) -> Option<Value> {
    // The names of lists, such as COCO's categories, have gaps, which `datasets` refuses.
    if let Some(names) = class_names.filter(|_| kind.is_integer()) {
        return Some(json!({ "names": names, "_type": "ClassLabel" }));
    }
    let dtype = match kind {
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::Date32 => "date32".to_owned(),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => format!("{kind:?}").to_lowercase(),
        DataType::Timestamp(unit, None) => {
            let unit = match unit {
                TimeUnit::Second => "s",
                TimeUnit::Millisecond => "ms",
                TimeUnit::Microsecond => "us",
                TimeUnit::Nanosecond => "ns",
            };
            format!("timestamp[{unit}]")
        }
        kind if kind.is_integer() => format!("{kind:?}").to_lowercase(),
        _ => return None,
    };
    Some(json!({ "dtype": dtype, "_type": "Value" }))
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn bug(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Bug, format!("cannot make a shard's columns: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_name_types_as_datasets_does() {
        let dtype = |kind| feature(&kind, None).map(|value| value["dtype"].clone());
        assert_eq!(dtype(DataType::Int64), Some(json!("int64")));
        assert_eq!(dtype(DataType::UInt8), Some(json!("uint8")));
        assert_eq!(dtype(DataType::Float32), Some(json!("float32")));
        assert_eq!(dtype(DataType::Timestamp(TimeUnit::Millisecond, None)), Some(json!("timestamp[ms]")));
        assert_eq!(dtype(DataType::Utf8View), None);
        let label = feature(&DataType::Int64, Some(vec!["cat".into()])).unwrap();
        assert_eq!(label, json!({ "names": ["cat"], "_type": "ClassLabel" }));
        let list = DataType::new_list(DataType::Int64, true);
        assert_eq!(feature(&list, Some(vec![String::new(), "cat".into(), String::new()])), None);
    }

    #[test]
    fn payloads_are_told_by_their_first_bytes() {
        assert_eq!(kind_of(b"\xff\xd8\xff\xe0"), Some(PayloadKind::Image));
        assert_eq!(kind_of(b"RIFF\0\0\0\0WEBPVP8 "), Some(PayloadKind::Image));
        assert_eq!(kind_of(b"RIFF\0\0\0\0WAVEfmt "), Some(PayloadKind::Audio));
        assert_eq!(kind_of(b"ID3\x04"), Some(PayloadKind::Audio));
        assert_eq!(kind_of(b""), None);
    }
}
