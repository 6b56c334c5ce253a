//! The two forms of a chain, JSON and the command line's. The latter is read into the same JSON that [`Op`] deserialises from,
//! so that both forms know the same ops, parameters and defaults, and have the same errors.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::op::Op;
use crate::op::info::{self, OpInfo};
use feedstock_base::{Error, Result};

/// Marks of quotations, in which nothing else is a mark.
const QUOTES: [char; 2] = ['"', '\''];

/// Reads the ops of a chain.
///
/// # Errors
/// `BadConfig`, naming the op and the parameter.
pub(super) fn ops(text: &str) -> Result<Vec<Op>> {
    let ops = split(text, ',').ok_or_else(|| Error::config(format!("`{text}`: a quotation has no end")))?;
    ops.into_iter().enumerate().map(|(index, op)| one(index, op.trim())).collect()
}

/// Reads the ops of a chain from JSON.
///
/// # Errors
/// `BadConfig`, naming the op and the parameter.
pub(super) fn ops_of_json(text: &str) -> Result<Vec<Op>> {
    let ops: Vec<Map<String, Value>> = serde_json::from_str(text)
        .map_err(|error| Error::config(format!("a chain must be a JSON list of objects: {error}")))?;
    ops.into_iter().enumerate().map(|(index, op)| one_of_json(index, op)).collect()
}

fn one_of_json(index: usize, mut given: Map<String, Value>) -> Result<Op> {
    let Some(Value::String(name)) = given.remove("op") else {
        return Err(Error::config(format!("op {index}: its `op` must be the name of an op")));
    };
    let info = OpInfo::find(&name, &Op::all()).map_err(|why| Error::config(format!("op {index}: {why}")))?;
    let wrong = |why: String| Error::config(format!("op {index} ({name}): {why}"));
    given.keys().try_for_each(|key| info.check_parameter(key)).map_err(wrong)?;
    let given: BTreeMap<&str, &Value> = given.iter().map(|(key, value)| (key.as_str(), value)).collect();
    read_explained(&name, &given, Value::clone).map_err(wrong)
}

/// Splits at `mark` outside quotations; `None` where one has no end.
fn split(text: &str, mark: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, character) in text.char_indices() {
        match quote {
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if QUOTES.contains(&character) => quote = Some(character),
            None if character == mark => {
                parts.push(&text[start..at]);
                start = at + mark.len_utf8();
            }
            None => {}
        }
    }
    parts.push(&text[start..]);
    quote.is_none().then_some(parts)
}

/// Splits an op at its colons; the one of a URI's `scheme://` does not count.
fn parameters(text: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = Vec::new();
    let (mut start, mut at) = (0, 0);
    for part in split(text, ':').unwrap_or_default() {
        if at > start && part.starts_with("//") {
            parts.pop();
        } else {
            start = at;
        }
        parts.push(text[start..at + part.len()].trim());
        at += part.len() + 1;
    }
    parts
}

fn one(index: usize, text: &str) -> Result<Op> {
    let mut parts = parameters(text).into_iter();
    let name = parts.next().unwrap_or_default();
    let info = OpInfo::find(name, &Op::all()).map_err(|why| Error::config(format!("op {index}: {why}")))?;
    let wrong = |why: String| Error::config(format!("op {index} ({name}): {why}"));
    let mut unnamed = info.unnamed.iter();
    let mut given = BTreeMap::new();
    for part in parts {
        // A text wholly in quotation marks is a value, and may hold an equals sign, as a URI may.
        let named = part.split_once('=').filter(|(key, _)| {
            key.trim().chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
        });
        let (key, value) = match named {
            Some((key, value)) => (key.trim(), value.trim()),
            None => match unnamed.next() {
                Some(key) => (*key, part),
                None => {
                    let known = info.described_parameters();
                    return Err(wrong(format!(
                        "`{part}` has no parameter to go to; write key=value; {known}"
                    )));
                }
            },
        };
        info.check_parameter(key).map_err(wrong)?;
        if given.insert(key, value).is_some() {
            return Err(wrong(format!("`{key}` is given twice")));
        }
    }
    read_explained(name, &given, value_of).map_err(wrong)
}

/// Reads the op with these parameters; the error names the wrong one.
fn read_explained<T: Copy + ToString>(
    name: &str,
    given: &BTreeMap<&str, T>,
    value: impl Fn(T) -> Value,
) -> Result<Op, String> {
    let read = |given: &mut dyn Iterator<Item = (&str, T)>| -> Result<Op, String> {
        let fields = given.map(|(key, given)| (key.to_owned(), value(given)));
        let op = ("op".to_owned(), Value::from(name));
        serde_json::from_value(Value::Object(fields.chain([op]).collect())).map_err(|error| error.to_string())
    };
    read(&mut given.iter().map(|(key, given)| (*key, *given))).map_err(|refused| {
        // The wrong value is refused for the same reason when it is the only one.
        let culprit = given.iter().map(|(key, given)| (*key, *given)).find(|&(key, given)| {
            read(&mut std::iter::once((key, given))).is_err_and(|alone| alone == refused)
        });
        let shown = culprit.map(|(key, given)| (key, given.to_string()));
        info::explain(shown.as_ref().map(|(key, given)| (*key, given.as_str())), &refused)
    })
}

fn value_of(text: &str) -> Value {
    let quoted = QUOTES.iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote));
    if let Some(quoted) = quoted {
        return quoted.into();
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotations_and_uris_keep_their_marks() {
        assert_eq!(split("a,'b,c',\"d'\",e", ','), Some(vec!["a", "'b,c'", "\"d'\"", "e"]));
        assert_eq!(split("a,'b", ','), None);
        assert_eq!(
            parameters("tokenize:s3://b/t.json:truncate=true"),
            ["tokenize", "s3://b/t.json", "truncate=true"]
        );
        assert_eq!(parameters("x:a=s3://b/c: 3 "), ["x", "a=s3://b/c", "3"]);
        assert_eq!(parameters("x:'http://h:80/p'"), ["x", "'http://h:80/p'"]);
        assert_eq!(parameters("x"), ["x"]);
        assert_eq!(value_of("'12'"), Value::from("12"));
        assert_eq!(value_of("\"a b\""), Value::from("a b"));
        assert_eq!(value_of("-6..6"), serde_json::json!([-6.0, 6]));
    }
}
