//! JSON schemas of ops, from the types that descriptions are read into.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::info::OpInfo;

/// Returns the schema of the op whose parameters are `T`.
pub(super) fn of<T: Serialize + DeserializeOwned>(
    name: &'static str,
    summary: &'static str,
    positional: &'static [&'static str],
) -> Value {
    let info = OpInfo::of::<T>(name, summary, positional);
    let (given, op) = least::<T>();
    let defaults = op.and_then(|op| serde_json::to_value(op).ok()).unwrap_or_default();
    let mut properties = Map::from_iter([("op".to_owned(), json!({ "const": name }))]);
    for &parameter in info.parameters {
        let default = defaults.get(parameter).filter(|_| !given.contains_key(parameter));
        let property = default.map_or_else(|| json!({}), |default| json!({ "default": default }));
        properties.insert(parameter.to_owned(), property);
    }
    let required: Vec<&str> = ["op"]
        .into_iter()
        .chain(info.parameters.iter().copied().filter(|name| given.contains_key(*name)))
        .collect();
    json!({
        "title": name,
        "description": info.summary,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
        "positional": info.unnamed,
    })
}

/// Returns the schema of a description of any of these ops.
pub(super) fn one_of(ops: &[Value]) -> Value {
    json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "oneOf": ops })
}

/// Returns the parameters that `T` requires, with values that it accepts, and the `T` made of them with all defaults.
fn least<T: DeserializeOwned>() -> (Map<String, Value>, Option<T>) {
    /// Values of the types that required parameters have: numbers, lists of them, sizes, words, and lists of ops.
    const VALUES: [fn() -> Value; 3] = [|| json!(1), || json!("x"), || json!([])];
    let read = |given: &Map<String, Value>| {
        serde_json::from_value::<T>(given.clone().into()).map_err(|error| error.to_string())
    };
    let mut given = Map::new();
    loop {
        let missing = match read(&given) {
            Ok(op) => return (given, Some(op)),
            Err(error) => error
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split_once('`'))
                .map(|(name, _)| name.to_owned()),
        };
        let Some(missing) = missing else { return (given, None) };
        let takes = |value: &Value| {
            let mut given = given.clone();
            given.insert(missing.clone(), value.clone());
            read(&given).err().is_none_or(|error| error.starts_with("missing field"))
        };
        let value = VALUES.iter().map(|value| value()).find(takes).unwrap_or_default();
        given.insert(missing, value);
    }
}
