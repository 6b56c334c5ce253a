//! Patterns in URIs: braces (`{000..099}`, `{train,val}`) and the wildcards `*`, `**`, `?`, `[…]`.
//!
//! Braces alone name objects exactly, so a missing one is an error, and stores that cannot list (plain HTTP) serve
//! them too. Wildcards list the folder before the first of them.

use crate::storage::{Location, Scheme};
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use futures::{StreamExt, TryStreamExt, stream};
use glob::MatchOptions;
use std::path::Path;

/// Limit on the names that braces expand to: a petabyte of 1 GB shards.
const MAX_EXPANSIONS: usize = 1_000_000;
/// Objects that are requested at a time; storage may limit its requests to fewer.
const HEADS: usize = 64;

/// Returns where the pattern of a URI begins; `None` if it has none.
pub(super) fn pattern_start(uri: &str) -> Option<usize> {
    pattern_place(uri).map(|(_, first)| first)
}

/// Returns the end of the literal part and the first special character after it. Only a URI with such characters costs
/// calls to the file system.
fn pattern_place(uri: &str) -> Option<(usize, usize)> {
    let scheme = scheme_end(uri);
    uri[scheme..].find(specials(uri))?;
    let literal = literal_end(uri, scheme);
    uri[literal..].find(specials(uri)).map(|at| (literal, at + literal))
}

fn scheme_end(uri: &str) -> usize {
    uri.find("://").map_or(0, |at| at + 3)
}

/// Returns the end of the literal part: the scheme, and for local paths every component that exists by that name.
fn literal_end(uri: &str, scheme: usize) -> usize {
    let is_there = |end: usize| {
        let local = Location::parse(&uri[..end]).ok().filter(|at| at.scheme == Scheme::Local);
        local.is_some_and(|at| Path::new(&at.key).exists())
    };
    let ends = uri.match_indices('/').map(|(at, _)| at + 1).chain([uri.len()]).filter(|end| *end > scheme);
    ends.take_while(|end| is_there(*end)).last().unwrap_or(scheme)
}

fn specials(uri: &str) -> &'static [char] {
    let is_http = uri.starts_with("http://") || uri.starts_with("https://");
    if is_http { &['{', '*'] } else { &['{', '*', '?', '['] }
}

/// A URI with braces or wildcards.
#[derive(Debug)]
pub(crate) struct Pattern {
    uri: String,
    /// The end of the literal part.
    literal: usize,
    /// The folder before the first brace or wildcard, with its `/`.
    root: String,
    expanded: Vec<String>,
    wild: bool,
}

impl Pattern {
    /// Returns `None` for a URI without a pattern.
    pub(crate) fn parse(uri: &str) -> Result<Option<Self>> {
        let Some((literal, first)) = pattern_place(uri) else { return Ok(None) };
        let root = uri[..first].rfind('/').map_or("", |at| &uri[..=at]).to_owned();
        let mut expanded = Vec::new();
        expand(literal, uri, &mut expanded)?;
        let wild = expanded.iter().any(|e| e[literal..].contains(&specials(uri)[1..]));
        Ok(Some(Self { uri: uri.to_owned(), literal, root, expanded, wild }))
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Returns the objects it means, sorted by URI; and all objects below the root, if a wildcard had them listed.
    pub(crate) async fn objects(
        &self,
        storage: &Storage,
    ) -> Result<(Vec<ObjectRef>, Option<Vec<ObjectRef>>)> {
        let (mut objects, below) = match self.wild {
            true => self.listed(storage).await.map(|(objects, below)| (objects, Some(below)))?,
            false => (self.named(storage).await?, None),
        };
        objects.sort_by(|a, b| a.uri.cmp(&b.uri));
        objects.dedup_by(|a, b| a.uri == b.uri);
        Ok((objects, below))
    }

    async fn named(&self, storage: &Storage) -> Result<Vec<ObjectRef>> {
        let all: Vec<Vec<ObjectRef>> = stream::iter(self.expanded.clone())
            .map(|uri| async move {
                match storage.head(&uri).await {
                    Ok(object) => Ok(vec![object]),
                    Err(error) if error.kind() == ErrorKind::Gone => {
                        let below = storage.list(&uri).await?;
                        if below.is_empty() { Err(error.context(&self.uri)) } else { Ok(below) }
                    }
                    Err(error) => Err(error),
                }
            })
            .buffered(HEADS)
            .try_collect()
            .await?;
        Ok(all.into_iter().flatten().collect())
    }

    async fn listed(&self, storage: &Storage) -> Result<(Vec<ObjectRef>, Vec<ObjectRef>)> {
        let patterns = self
            .expanded
            .iter()
            .map(|e| {
                let (literal, pattern) = e.split_at(self.literal);
                glob::Pattern::new(&(glob::Pattern::escape(literal) + pattern))
                    .map_err(|x| Error::config(format!("{}: not a pattern: {x}", self.uri)))
            })
            .collect::<Result<Vec<_>>>()?;
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let below = storage.list(if self.root.is_empty() { "./" } else { &self.root }).await?;
        let matches = |o: &&ObjectRef| {
            let uri = if self.root.is_empty() { o.uri.trim_start_matches("./") } else { &o.uri };
            // a pattern that ends at a folder means everything below it
            patterns
                .iter()
                .any(|p| p.matches_with(uri, options) || folders(uri).any(|f| p.matches_with(f, options)))
        };
        Ok((below.iter().filter(matches).cloned().collect(), below))
    }
}

fn folders(uri: &str) -> impl Iterator<Item = &str> {
    uri.match_indices('/').map(|(at, _)| &uri[..at])
}

/// Expands the first brace after byte `literal` and recurses; braces do not nest.
fn expand(literal: usize, text: &str, out: &mut Vec<String>) -> Result<()> {
    let Some(open) = text[literal..].find('{').map(|at| at + literal) else {
        if out.len() >= MAX_EXPANSIONS {
            return Err(Error::config(format!("{text}: the braces name more than {MAX_EXPANSIONS} objects")));
        }
        out.push(text.to_owned());
        return Ok(());
    };
    let Some(close) = text[open..].find('}').map(|at| at + open) else {
        return Err(Error::config(format!("{text}: a brace is opened and not closed")));
    };
    let (before, inside, after) = (&text[..open], &text[open + 1..close], &text[close + 1..]);
    for choice in choices(text, inside)? {
        expand(literal, &format!("{before}{choice}{after}"), out)?;
    }
    Ok(())
}

fn choices(text: &str, inside: &str) -> Result<Vec<String>> {
    let Some((from, to)) = inside.split_once("..") else {
        return Ok(inside.split(',').map(str::to_owned).collect());
    };
    let number = |s: &str| {
        s.parse::<u64>()
            .map_err(|_| Error::config(format!("{text}: '{s}' is not a number; write {{000..099}}")))
    };
    let (first, last) = (number(from)?, number(to)?);
    if first > last || last - first >= MAX_EXPANSIONS as u64 {
        return Err(Error::config(format!("{text}: {{{inside}}} must rise, by at most {MAX_EXPANSIONS}")));
    }
    let width = if from.starts_with('0') || from.len() == to.len() { from.len() } else { 0 };
    Ok((first..=last).map(|n| format!("{n:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_with_their_zeros() {
        let p = Pattern::parse("s3://b/x-{008..011}-{a,b}.tar").unwrap().unwrap();
        assert_eq!(p.root(), "s3://b/");
        assert!(!p.wild);
        assert_eq!(p.expanded.len(), 8);
        assert_eq!(
            (p.expanded[0].as_str(), p.expanded[7].as_str()),
            ("s3://b/x-008-a.tar", "s3://b/x-011-b.tar")
        );
        assert!(Pattern::parse("s3://b/{1..0}").is_err());
        assert!(Pattern::parse("s3://b/{0..9999999}").is_err());
        assert!(Pattern::parse("s3://b/{1").is_err());
        assert!(Pattern::parse("https://h/x?y=1").unwrap().is_none());
        assert!(Pattern::parse("/data/plain").unwrap().is_none());
        assert!(Pattern::parse("/data/train-*.parquet").unwrap().unwrap().wild);
    }
}
