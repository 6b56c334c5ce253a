//! `tokenize_chars`: one token a character.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::resources::Resources;
use crate::text::cell::utf8;
use crate::text::limits::MAX_CHARACTERS_BYTES;
use crate::text::step::TextScratch;
use crate::text::step::{TextOp, TextStep};
use feedstock_base::{Error, Result};

/// Characters below it are looked up in a table instead of a map.
const TABLE: usize = 128;

/// Gives each character (Unicode scalar value) its place in `vocabulary`, from 0.
///
/// ```
/// use feedstock_ops::{ChainSpec, RaggedRow, SampleSeed, Scratch, tokenize_chars};
///
/// let chain = ChainSpec::from([tokenize_chars("abc")]).compile()?;
/// let mut row = RaggedRow::new();
/// chain.apply_ragged(b"cab", SampleSeed::new(1, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row.bytes(), [2i64, 0, 1].map(i64::to_ne_bytes).as_flattened());
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokenizeChars {
    /// The characters in the order of their ids.
    pub vocabulary: Vocabulary,
    /// What a character outside the vocabulary becomes: an id, or `error` (the default), which makes the text a bad sample.
    #[serde(default)]
    pub unknown: Unknown,
    /// Lower the text's case first (Unicode's rules without a locale); default false.
    #[serde(default)]
    pub lowercase: bool,
}

/// The characters of [`TokenizeChars`]; in JSON a string or a list of strings.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged, expecting = "expected characters, or a list of texts in JSON")]
pub enum Vocabulary {
    /// The characters, one after the other.
    Characters(String),
    /// One per entry; longer entries, such as `<blank>`, take an id but stand for no text.
    Entries(Vec<String>),
}

/// What [`TokenizeChars`] does with a character outside its vocabulary; in JSON a number, or `"error"`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(untagged, expecting = "expected an integer, or error")]
pub enum Unknown {
    /// It gets this id.
    Id(i64),
    /// A word.
    Policy(UnknownPolicy),
}

/// The words of [`Unknown`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPolicy {
    /// The text is a bad sample.
    Error,
}

impl Default for Unknown {
    fn default() -> Self {
        Self::Policy(UnknownPolicy::Error)
    }
}

impl From<&str> for Vocabulary {
    fn from(characters: &str) -> Self {
        Self::Characters(characters.to_owned())
    }
}

impl From<Vec<String>> for Vocabulary {
    fn from(entries: Vec<String>) -> Self {
        Self::Entries(entries)
    }
}

impl TokenizeChars {
    /// Tokenizes with these characters, in the order of their ids; other characters are errors.
    pub fn new(vocabulary: impl Into<Vocabulary>) -> Self {
        Self { vocabulary: vocabulary.into(), unknown: Unknown::default(), lowercase: false }
    }

    /// Sets the id of characters outside the vocabulary.
    #[must_use]
    pub fn unknown(self, id: i64) -> Self {
        Self { unknown: Unknown::Id(id), ..self }
    }

    /// Whether to lower the text's case first.
    #[must_use]
    pub fn lowercase(self, lowercase: bool) -> Self {
        Self { lowercase, ..self }
    }
}

/// [`TokenizeChars`] with its vocabulary indexed.
struct Characters {
    table: [Option<i64>; TABLE],
    others: HashMap<char, i64>,
    unknown: Unknown,
    lowercase: bool,
}

impl Characters {
    fn new(op: &TokenizeChars) -> Result<Self> {
        let single = |entry: &String| {
            let mut characters = entry.chars();
            characters.next().filter(|_| characters.next().is_none())
        };
        let entries: Vec<Option<char>> = match &op.vocabulary {
            Vocabulary::Characters(characters) => characters.chars().map(Some).collect(),
            Vocabulary::Entries(entries) => entries.iter().map(single).collect(),
        };
        let mut this = Self {
            table: [None; TABLE],
            others: HashMap::new(),
            unknown: op.unknown,
            lowercase: op.lowercase,
        };
        for (id, character) in (0..).zip(entries) {
            let Some(character) = character else { continue };
            let before = match this.table.get_mut(character as usize) {
                Some(place) => place.replace(id),
                None => this.others.insert(character, id),
            };
            if let Some(before) = before {
                return Err(Error::config(format!("vocabulary: {character:?} is both {before} and {id}")));
            }
        }
        if this.others.is_empty() && this.table.iter().all(Option::is_none) {
            return Err(Error::config("vocabulary: it has no characters"));
        }
        Ok(this)
    }

    fn run(&self, text: &[u8], scratch: &mut TextScratch) -> Result<()> {
        if text.len() > MAX_CHARACTERS_BYTES {
            let length = text.len();
            return Err(Error::bad_sample(format!(
                "the text is {length} bytes long, over {MAX_CHARACTERS_BYTES}"
            )));
        }
        let text = utf8(text)?;
        let TextScratch { ids, lowered } = scratch;
        let text = if self.lowercase {
            lowered.clear();
            lowered.extend(text.chars().flat_map(char::to_lowercase));
            lowered
        } else {
            text
        };
        for character in text.chars() {
            let id = match self.table.get(character as usize) {
                Some(id) => *id,
                None => self.others.get(&character).copied(),
            };
            ids.push(match (id, self.unknown) {
                (Some(id), _) | (None, Unknown::Id(id)) => id,
                (None, Unknown::Policy(UnknownPolicy::Error)) => {
                    let code = u32::from(character);
                    return Err(Error::bad_sample(format!(
                        "tokenize_chars: {character:?} (U+{code:04X}) is not in the vocabulary; add it or set unknown \
                         to an id"
                    )));
                }
            });
        }
        Ok(())
    }
}

impl TextOp for TokenizeChars {
    fn compile(&self, _: &Resources) -> Result<Box<dyn TextStep>> {
        Ok(Box::new(Characters::new(self)?))
    }
}

impl TextStep for Characters {
    fn max_bytes(&self) -> usize {
        MAX_CHARACTERS_BYTES
    }

    /// 8 bytes for an id, twice that while the buffer grows, and the text in lower case.
    fn memory_a_byte(&self) -> u64 {
        20
    }

    fn run(&self, text: &[u8], scratch: &mut TextScratch) -> Result<()> {
        self.run(text, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(op: &TokenizeChars, text: &str) -> Result<Vec<i64>> {
        let mut scratch = TextScratch::default();
        Characters::new(op)?.run(text.as_bytes(), &mut scratch)?;
        Ok(scratch.ids)
    }

    #[test]
    fn characters_have_their_places() {
        let op = TokenizeChars::new("abc ß日");
        assert_eq!(ids(&op, "cab ß日").unwrap(), [2, 0, 1, 3, 4, 5]);
        assert!(ids(&op, "").unwrap().is_empty());
        let error = ids(&op, "abd").unwrap_err();
        assert!(error.message().contains("'d' (U+0064)"), "{error}");
        assert_eq!(ids(&op.clone().unknown(-1), "aÄd").unwrap(), [0, -1, -1]);
        assert_eq!(ids(&TokenizeChars::new("äb").lowercase(true), "ÄBb").unwrap(), [0, 1, 1]);
    }

    #[test]
    fn longer_entries_only_take_ids() {
        let entries = ["<blank>", "a", "b"].map(str::to_owned).to_vec();
        assert_eq!(ids(&TokenizeChars::new(entries).unknown(0), "ab<").unwrap(), [1, 2, 0]);
        assert!(ids(&TokenizeChars::new("aba"), "a").unwrap_err().message().contains("'a' is both 0 and 2"));
        assert!(ids(&TokenizeChars::new(""), "a").is_err());
    }
}
