//! Audio clips as Arrow columns, as in Hugging Face's Common Voice: `audio: struct<bytes: binary, path: string>`, the
//! TSV's columns, and in addition `split`. There is no duration column: readers get it from the MP3's headers.

use super::super::columns::FEATURES_KEY;
use crate::speech::{Clip, SAMPLE_RATE};
use crate::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// A text column: its name, and the function that returns its value.
type Text = (&'static str, fn(&Clip) -> &str);
/// A column of counts in the same form.
type Count = (&'static str, fn(&Clip) -> i64);

const TEXTS: [Text; 10] = [
    ("client_id", |clip| &clip.client_id),
    ("path", |clip| &clip.path),
    ("sentence", |clip| &clip.sentence),
    ("age", |clip| &clip.age),
    ("gender", |clip| &clip.gender),
    ("accent", |clip| &clip.accents),
    ("locale", |clip| clip.locale.name()),
    ("segment", |_| ""),
    ("variant", |_| ""),
    ("split", |clip| clip.split.name()),
];
const VOTES: [Count; 2] =
    [("up_votes", |clip| clip.up_votes.into()), ("down_votes", |clip| clip.down_votes.into())];

/// Returns the schema, with the features in its metadata.
pub(crate) fn schema() -> SchemaRef {
    let metadata =
        HashMap::from([(FEATURES_KEY.to_owned(), json!({ "info": { "features": features() } }).to_string())]);
    let mut fields = vec![Field::new("audio", DataType::Struct(audio_fields()), true)];
    fields.extend(TEXTS.map(|(name, _)| Field::new(name, DataType::Utf8, true)));
    fields.extend(VOTES.map(|(name, _)| Field::new(name, DataType::Int64, true)));
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

fn features() -> Value {
    let value = |dtype: &str| json!({ "dtype": dtype, "_type": "Value" });
    let mut features = Map::new();
    features.insert("audio".to_owned(), json!({ "sampling_rate": SAMPLE_RATE, "_type": "Audio" }));
    features.extend(TEXTS.map(|(name, _)| (name.to_owned(), value("string"))));
    features.extend(VOTES.map(|(name, _)| (name.to_owned(), value("int64"))));
    Value::Object(features)
}

fn audio_fields() -> Fields {
    let bytes = Field::new("bytes", DataType::Binary, true);
    let path = Field::new("path", DataType::Utf8, true);
    Fields::from(vec![bytes, path])
}

/// Moves all of `clips` into one record batch.
pub(crate) fn take_batch(schema: &SchemaRef, clips: &mut Vec<Clip>) -> Result<RecordBatch> {
    let bytes = BinaryArray::from_iter_values(clips.iter().map(|clip| &clip.mp3));
    let paths = StringArray::from_iter_values(clips.iter().map(|clip| &clip.path));
    let audio: Vec<ArrayRef> = vec![Arc::new(bytes), Arc::new(paths)];
    let mut columns: Vec<ArrayRef> = vec![Arc::new(StructArray::new(audio_fields(), audio, None))];
    columns.extend(
        TEXTS.map(|(_, value)| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(clips.iter().map(value)))
        }),
    );
    columns.extend(
        VOTES.map(|(_, value)| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(clips.iter().map(value)))
        }),
    );
    clips.clear();
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Error::new(ErrorKind::Bug, format!("audio clip columns do not fit their schema: {e}")))
}
