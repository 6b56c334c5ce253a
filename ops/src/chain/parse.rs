//! The command line's form of a chain, read into the same JSON that [`Op`] deserialises from, so that both forms
//! know the same ops, parameters and defaults.

use serde_json::{Map, Value};

use super::{ChainSpec, Op};
use crate::error::{Error, Result};

/// The parameters that may be given without their names, per op, in the order of the constructors.
fn positional(op: &str) -> &'static [&'static str] {
    match op {
        "resize" | "center_crop" | "random_crop" | "random_resized_crop" => &["size"],
        "horizontal_flip" | "random_erasing" => &["probability"],
        "color_jitter" => &["brightness", "contrast", "saturation", "hue"],
        "rand_augment" => &["num_ops", "magnitude"],
        "normalize" => &["mean", "std"],
        _ => &[],
    }
}

pub(super) fn chain(text: &str) -> Result<ChainSpec> {
    text.split(',').enumerate().map(|(index, op)| one(index, op.trim())).collect()
}

fn one(index: usize, text: &str) -> Result<Op> {
    let mut parts = text.split(':').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let mut unnamed = positional(name).iter();
    let mut fields = Map::new();
    for part in parts {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), value.trim()),
            None => match unnamed.next() {
                Some(key) => (*key, part),
                None => {
                    return Err(Error::config(format!(
                        "op {index} ({name}): `{part}` has no parameter to go to; write key=value"
                    )));
                }
            },
        };
        if fields.insert(key.to_owned(), value_of(value)).is_some() {
            return Err(Error::config(format!("op {index} ({name}): `{key}` is given twice")));
        }
    }
    fields.insert("op".to_owned(), Value::from(name));
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| Error::config(format!("op {index} ({name}): {error}")))
}

fn value_of(text: &str) -> Value {
    let number = |text: &str| -> Option<Value> {
        text.parse::<u64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from)).ok()
    };
    let list = |separator| -> Option<Value> {
        let parts: Option<Vec<Value>> = text.split(separator).map(number).collect();
        parts.filter(|parts| parts.len() > 1).map(Value::Array)
    };
    if let Some(value) = number(text) {
        return value;
    }
    if let Ok(value) = text.parse::<bool>() {
        return value.into();
    }
    list("..").or_else(|| list("x")).or_else(|| list("/")).unwrap_or_else(|| text.into())
}
