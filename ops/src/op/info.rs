//! The ops by name, for lists and for errors. The names of parameters come from the types that descriptions are read into.

use std::fmt;

use serde::de::{self, DeserializeOwned, Visitor};

/// An op's name, purpose and parameters.
///
/// ```
/// let ops = feedstock_ops::Op::all();
/// let resize = ops.iter().find(|op| op.name == "resize").unwrap();
/// assert_eq!(resize.parameters, ["size", "filter", "max_size"]);
/// assert_eq!(resize.unnamed, ["size"]); // so `resize:224` means `resize:size=224`
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpInfo {
    /// As in JSON and on the command line.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The names of its parameters.
    pub parameters: &'static [&'static str],
    /// The parameters whose values may be given without a name on the command line, in this order.
    pub unnamed: &'static [&'static str],
}

impl OpInfo {
    /// Describes the op whose parameters are `T`, of which `unnamed` are those of its constructor, in that order. `summary` is
    /// a documentation comment.
    pub(crate) fn of<T: DeserializeOwned>(
        name: &'static str,
        summary: &'static str,
        unnamed: &'static [&'static str],
    ) -> Self {
        let parameters = match T::deserialize(FieldsOf) {
            Err(Fields(fields)) => fields,
            Ok(_) => &[],
        };
        Self { name, summary: summary.trim(), parameters, unnamed }
    }

    /// Returns the op of this name among `all`, or the reason why there is none.
    pub(crate) fn find(name: &str, all: &[Self]) -> Result<Self, String> {
        let names: Vec<&str> = all.iter().map(|op| op.name).collect();
        all.iter().find(|op| op.name == name).copied().ok_or_else(|| {
            let guess = guess(name, &names);
            format!("`{name}` is not an op{guess}; the ops are {}", names.join(", "))
        })
    }

    /// Checks that there is such a parameter; the error is the reason why not.
    pub(crate) fn check_parameter(&self, name: &str) -> Result<(), String> {
        if self.parameters.contains(&name) {
            return Ok(());
        }
        let guess = guess(name, self.parameters);
        Err(format!("`{name}` is not a parameter{guess}; {}", self.described_parameters()))
    }

    pub(crate) fn described_parameters(&self) -> String {
        match self.parameters {
            [] => "the op has no parameters".to_owned(),
            parameters => format!("the parameters are {}", parameters.join(", ")),
        }
    }
}

/// Returns ` (did you mean x?)` if `name` is a misspelling of one of `known`: at most a third of its letters are wrong.
fn guess(name: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    match nearest {
        Some((distance, known)) if 3 * distance <= name.len().max(3) => format!(" (did you mean {known}?)"),
        _ => String::new(),
    }
}

/// Returns what is wrong with an op's description: `refused` is the message of `serde`, and `culprit` the parameter that it
/// is about, with its value.
pub(crate) fn explain(culprit: Option<(&str, &str)>, refused: &str) -> String {
    if let Some(missing) = refused.strip_prefix("missing field ") {
        return format!("{missing} is missing; write it as key=value");
    }
    let Some((key, value)) = culprit else { return refused.to_owned() };
    match refused.rsplit_once("expected ") {
        Some((_, expected)) => format!("`{key}` must be {}; got {value}", in_words(expected)),
        None => format!("`{key}` cannot be {value}"),
    }
}

/// Returns what `serde` expects, without the names of Rust's types.
fn in_words(expected: &str) -> String {
    match expected {
        "u8" => "an integer from 0 to 255".to_owned(),
        "u16" | "u32" | "u64" | "usize" => "an integer, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" => "an integer".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "a word".to_owned(),
        other => other.replace('`', ""),
    }
}

/// A deserializer that fails with the names of the fields that a struct asks for.
struct FieldsOf;

#[derive(Debug)]
struct Fields(&'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Fields {}

impl de::Error for Fields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> de::Deserializer<'de> for FieldsOf {
    type Error = Fields;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fields> {
        Err(Fields(fields))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fields> {
        Err(Fields(&[]))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
