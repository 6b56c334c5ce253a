//! Patterns of files that belong together: `images/{}.jpg`, in which `{}` is the key of a sample.

use super::super::kinds::{extension, is_audio};
use crate::catalog::SAMPLE_ID;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The metadata column.
pub(super) const KEY: &str = "key";
const PLACEHOLDER: &str = "{}";

/// The files of one column.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) column: String,
    /// What a name has before the key, and after it.
    before: String,
    after: String,
}

impl Pattern {
    fn parse(column: &str, text: &str) -> Result<Self> {
        let about = |problem: &str| {
            Error::config(format!("pair, the pattern `{text}` of the column {column}: {problem}"))
        };
        if column.is_empty() || column == KEY || column == SAMPLE_ID {
            return Err(about("another name is needed for the column: key and sample_id are taken"));
        }
        let relative = text.strip_prefix("./").unwrap_or(text);
        if relative.starts_with('/')
            || relative.contains("://")
            || relative.split('/').any(|part| part == "..")
        {
            return Err(about("it must be relative to the data set's folder, and below it"));
        }
        let Some((before, after)) = relative.split_once(PLACEHOLDER) else {
            return Err(about("it must have one {}, the key of the sample; got none"));
        };
        if after.contains(PLACEHOLDER) {
            return Err(about("it must have one {}, the key of the sample; got several"));
        }
        if [before, after].iter().any(|part| part.contains(['{', '}', '*', '?', '['])) {
            return Err(about("it must not have wildcards or other braces than one {}"));
        }
        Ok(Self { column: column.to_owned(), before: before.to_owned(), after: after.to_owned() })
    }

    /// Returns the key in the name of a file; `None` if it is not a file of this column.
    pub(super) fn key<'n>(&self, name: &'n str) -> Option<&'n str> {
        let key = name.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())?;
        (!key.is_empty()).then_some(key)
    }

    /// Returns the name of the file with this key.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}{}", self.before, self.after)
    }

    pub(super) fn text(&self) -> String {
        self.name(PLACEHOLDER)
    }

    /// Whether its files are audio, by their extension.
    pub(super) fn is_audio(&self) -> bool {
        is_audio(&extension(&self.text()))
    }
}

/// Reads the patterns, sorted by column.
///
/// # Errors
/// `BadConfig` for fewer than two columns, a pattern without one `{}`, and two equal patterns.
pub(super) fn parse(pair: &BTreeMap<String, String>) -> Result<Vec<Pattern>> {
    let patterns =
        pair.iter().map(|(column, text)| Pattern::parse(column, text)).collect::<Result<Vec<_>>>()?;
    if patterns.len() < 2 {
        return Err(Error::config("pair must have at least two columns, each with its pattern"));
    }
    for (at, one) in patterns.iter().enumerate() {
        if let Some(other) = patterns[..at].iter().find(|other| other.text() == one.text()) {
            return Err(Error::config(format!(
                "pair: the columns {} and {} have the same pattern `{}`",
                other.column,
                one.column,
                one.text()
            )));
        }
    }
    Ok(patterns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(patterns: &[(&str, &str)]) -> BTreeMap<String, String> {
        patterns.iter().map(|(column, text)| ((*column).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_key_is_what_the_placeholder_stands_for() {
        let patterns = parse(&pair(&[("mask", "./masks/{}_m.png"), ("image", "{}.jpg")])).unwrap();
        assert_eq!(patterns.iter().map(|p| p.column.as_str()).collect::<Vec<_>>(), ["image", "mask"]);
        let keys = |name: &str| patterns.iter().map(|p| p.key(name).map(str::to_owned)).collect::<Vec<_>>();
        assert_eq!(keys("a/b c.jpg"), [Some("a/b c".to_owned()), None]);
        assert_eq!(keys("masks/a/b_m.png"), [None, Some("a/b".to_owned())]);
        assert_eq!(keys("masks/_m.png"), [None, None], "an empty key");
        assert_eq!(patterns[1].name("x"), "masks/x_m.png");
    }

    #[test]
    fn patterns_that_cannot_pair_files_are_refused() {
        let with = |text| pair(&[("image", "images/{}.jpg"), ("mask", text)]);
        let cases = [
            (with("masks/a.png"), "one {}, the key of the sample; got none"),
            (with("{}/{}.png"), "got several"),
            (with("masks/{}.*"), "must not have wildcards"),
            (with("masks/{a,b}{}.png"), "or other braces"),
            (with("/masks/{}.png"), "relative to the data set's folder"),
            (with("../masks/{}.png"), "and below it"),
            (with("s3://b/{}.png"), "relative to the data set's folder"),
            (with("images/{}.jpg"), "the columns image and mask have the same pattern `images/{}.jpg`"),
            (pair(&[("image", "{}.jpg")]), "at least two columns"),
            (pair(&[("key", "{}.txt"), ("image", "{}.jpg")]), "key and sample_id are taken"),
        ];
        for (pair, expected) in cases {
            let error = parse(&pair).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
    }
}
