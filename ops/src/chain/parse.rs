//! The two forms of a chain, JSON and the command line's. The latter is read into the same JSON that [`Op`] deserialises from,
//! so that both forms know the same ops, parameters and defaults, and have the same errors.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::op::Op;
use crate::op::info::{self, OpInfo};
use feedstock_base::{Error, Result};

/// Marks of quotations, in which nothing else is a mark.
const QUOTES: [char; 2] = ['"', '\''];

/// Around a list of ops that is a parameter.
const OPEN: char = '[';
const CLOSE: char = ']';

/// A parameter: as it was written, and read.
struct Given {
    shown: String,
    value: Value,
}

/// Reads the ops of a chain.
///
/// # Errors
/// `BadConfig`, naming the op and the parameter.
pub(super) fn ops(text: &str) -> Result<Vec<Op>> {
    let ops = split(text, ',')
        .ok_or_else(|| Error::config(format!("`{text}`: a quotation or a bracket has no end")))?;
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
    given.values().try_for_each(check_inner).map_err(|error| wrong(error.message().to_owned()))?;
    let given = given
        .iter()
        .map(|(key, value)| (key.as_str(), Given { shown: value.to_string(), value: value.clone() }));
    read_explained(&name, &given.collect()).map_err(wrong)
}

/// Checks the ops in a parameter, so that an error names the one that is wrong.
fn check_inner(value: &Value) -> Result<()> {
    let objects = value.as_array().into_iter().flatten().map(Value::as_object);
    objects.enumerate().try_for_each(|(index, op)| match op {
        Some(op) => one_of_json(index, op.clone()).map(drop),
        None => Ok(()),
    })
}

/// Splits at `mark` outside quotations and lists of ops in brackets; `None` where one has no end.
fn split(text: &str, mark: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut quote, mut depth, mut before) = (0, None, 0_usize, ' ');
    for (at, character) in text.char_indices() {
        match quote {
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if QUOTES.contains(&character) => quote = Some(character),
            // A value is in brackets if it begins with one. Those within a URI count as any other character.
            None if character == OPEN && (depth > 0 || [':', '='].contains(&before)) => depth += 1,
            None if character == CLOSE => depth = depth.saturating_sub(1),
            None if character == mark && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + mark.len_utf8();
            }
            None => {}
        }
        before = if character.is_whitespace() { before } else { character };
    }
    parts.push(&text[start..]);
    (quote.is_none() && depth == 0).then_some(parts)
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
        let read = value_of(value).map_err(|error| wrong(error.message().to_owned()))?;
        if given.insert(key, Given { shown: value.to_owned(), value: read }).is_some() {
            return Err(wrong(format!("`{key}` is given twice")));
        }
    }
    read_explained(name, &given).map_err(wrong)
}

/// Reads the op with these parameters; the error names the wrong one.
fn read_explained(name: &str, given: &BTreeMap<&str, Given>) -> Result<Op, String> {
    let read = |given: &mut dyn Iterator<Item = (&&str, &Given)>| -> Result<Op, String> {
        let fields = given.map(|(key, given)| ((*key).to_owned(), given.value.clone()));
        let op = ("op".to_owned(), Value::from(name));
        serde_json::from_value(Value::Object(fields.chain([op]).collect())).map_err(|error| error.to_string())
    };
    read(&mut given.iter()).map_err(|refused| {
        // The wrong value is refused for the same reason when it is the only one.
        let culprit = given
            .iter()
            .find(|given| read(&mut std::iter::once(*given)).is_err_and(|alone| alone == refused));
        info::explain(culprit.map(|(key, given)| (*key, given.shown.as_str())), &refused)
    })
}

fn value_of(text: &str) -> Result<Value> {
    let quoted = QUOTES.iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote));
    if let Some(quoted) = quoted {
        return Ok(quoted.into());
    }
    if let Some(inner) = text.strip_prefix(OPEN).and_then(|text| text.strip_suffix(CLOSE)) {
        return serde_json::to_value(ops(inner)?).map_err(|error| Error::bug(error.to_string()));
    }
    Ok(plain(text))
}

/// Reads a number, a list of numbers, a boolean or a word.
fn plain(text: &str) -> Value {
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
        let value_of = |text| value_of(text).unwrap();
        assert_eq!(value_of("'12'"), Value::from("12"));
        assert_eq!(value_of("\"a b\""), Value::from("a b"));
        assert_eq!(value_of("-6..6"), serde_json::json!([-6.0, 6]));
    }
    #[test]
    fn brackets_at_the_start_of_a_value_hold_ops() {
        assert_eq!(split("a:[b,c:[d,e]],f", ','), Some(vec!["a:[b,c:[d,e]]", "f"]));
        assert_eq!(parameters("a:[b:1,c]: x = [d:2] :3"), ["a", "[b:1,c]", "x = [d:2]", "3"]);
        assert_eq!(split("a:[b,c", ','), None);
        assert_eq!(split("t:s3://b/[x,y]", ','), Some(vec!["t:s3://b/[x", "y]"]));
        assert_eq!(parameters("t:'[a:b]'"), ["t", "'[a:b]'"]);
    }
}
