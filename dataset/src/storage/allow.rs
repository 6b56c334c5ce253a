//! The list of URI prefixes that may be reached, for servers that act on others' requests.

use super::uri::{Location, Scheme};
use crate::{Error, ErrorKind, Result};
use feedstock_base::shown;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// The prefix of all files of indexes.
const ALL_INDEXES: &str = "indexes://";

/// URI prefixes: folders, buckets or single objects. Access to anything outside all of them is `Denied`.
///
/// A prefix ends at a `/` of the key: `s3://corpus/train` allows `s3://corpus/train/a.tar`, not `s3://corpus/train2`. Paths
/// of this machine are compared after links and `..` are resolved. The list also limits where a store may redirect to, so it
/// must name a content network's URL too, as `https://cdn.example/`.
#[derive(Clone, Default)]
pub struct Allow(Vec<Location>);

impl Allow {
    /// Allows these prefixes and no others.
    ///
    /// # Errors
    /// `BadConfig` for a URI of an unknown scheme.
    pub fn new<P: AsRef<str>>(prefixes: impl IntoIterator<Item = P>) -> Result<Self> {
        let prefixes = prefixes.into_iter().map(|prefix| Location::parse(prefix.as_ref()).map(real));
        prefixes.collect::<Result<_>>().map(Self)
    }

    /// Allows these prefixes in addition.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn and<P: AsRef<str>>(mut self, prefixes: impl IntoIterator<Item = P>) -> Result<Self> {
        self.0.extend(Self::new(prefixes)?.0);
        Ok(self)
    }

    /// Allows files of indexes in addition, which are computed: they are the samples of pipelines whose own code makes the items.
    ///
    /// ```
    /// use feedstock_dataset::Allow;
    ///
    /// let allow = Allow::new(["s3://corpus/train"])?;
    /// assert!(allow.check("indexes://48/items.arrow").is_err());
    /// allow.and_indexes().check("indexes://48/items.arrow")?;
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    pub fn and_indexes(mut self) -> Self {
        let (prefix, suffix, key) = (ALL_INDEXES.into(), String::new(), String::new());
        self.0.push(Location { scheme: Scheme::Indexes, prefix, suffix, key });
        self
    }

    /// Rejects a URI outside the list.
    ///
    /// ```
    /// use feedstock_dataset::{Allow, ErrorKind};
    ///
    /// let allow = Allow::new(["s3://corpus/train"])?.and(["https://cdn.example/"])?;
    /// allow.check("s3://corpus/train/a.tar")?;
    /// allow.check("https://cdn.example/x?sig=1f")?;
    /// let error = allow.check("s3://corpus/train2/a.tar").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Denied);
    /// assert!(error.message().starts_with("s3://corpus/train2/a.tar: outside of what is allowed here: s3://corpus/train"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Denied`, naming the URI; `BadConfig` for an unknown scheme.
    pub fn check(&self, uri: &str) -> Result<()> {
        self.check_place(Location::parse(uri)?)
    }

    /// As [`check`](Self::check), for a parsed location.
    pub(super) fn check_place(&self, at: Location) -> Result<()> {
        let uri = shown(&at.uri_of(&at.key)); // as requested: the target of a link is not disclosed
        let at = real(at);
        if self.0.iter().any(|prefix| prefix.covers(&at)) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Denied, format!("{uri}: outside of what is allowed here: {self:?}")))
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(|prefix| shown(&prefix.uri_of(&prefix.key))).collect();
        f.write_str(if list.is_empty() { "nothing" } else { "" })?;
        f.write_str(&list.join(", "))
    }
}

impl Location {
    fn covers(&self, at: &Self) -> bool {
        if self.scheme != at.scheme {
            return false;
        }
        match at.scheme {
            Scheme::Local => return Path::new(&at.key).starts_with(&self.key),
            Scheme::Indexes if self.prefix == ALL_INDEXES => return true,
            _ => {}
        }
        let is_same_store = match at.scheme {
            Scheme::Http => self.origin().is_some_and(|origin| Some(origin) == at.origin()), // whatever the user
            _ => self.prefix == at.prefix,
        };
        // A server may resolve `..`, which an object store takes literally.
        if !is_same_store || at.key.split('/').any(|part| part == "..") {
            return false;
        }
        let rest = at.key.strip_prefix(self.key.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || self.key.is_empty())
    }
}

/// Returns the location; for a path on this machine, the real one.
fn real(mut at: Location) -> Location {
    if at.scheme == Scheme::Local {
        at.key = real_path(Path::new(&at.key)).to_string_lossy().into_owned();
    }
    at
}

/// Resolves links and dots as far as the path exists. In the rest, `..` goes back, and patterns are names like others.
fn real_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut real = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            Component::CurDir => {}
            other => {
                real.push(other);
                if let Ok(resolved) = real.canonicalize() {
                    real = resolved;
                }
            }
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(prefixes: &[&str], uri: &str) -> bool {
        Allow::new(prefixes).unwrap().check(uri).is_ok()
    }

    #[test]
    fn prefixes_end_at_slashes() {
        assert!(allows(&["s3://corpus/train"], "s3://corpus/train/a.tar"));
        assert!(allows(&["s3://corpus/train/"], "s3://corpus/train"));
        assert!(allows(&["s3://corpus/"], "s3://corpus/x/y"));
        assert!(!allows(&["s3://corpus/train"], "s3://corpus/train2/a.tar"));
        assert!(!allows(&["s3://corpus/train"], "s3://corpus2/train/a.tar"));
        assert!(!allows(&["s3://corpus"], "s3://corpus-2/a"));
        assert!(!allows(&["s3://corpus/"], "gs://corpus/a"));
        assert!(!allows(&["https://host/data/"], "https://host/data/../private/a"));
        assert!(!allows(&[], "s3://corpus/a"));
        assert!(allows(&["https://u:p@host/data/?sig=1"], "https://host/data/a"));
        assert!(allows(&["https://host/data/"], "https://u:p@host/data/a?sig=1"));
        assert!(!allows(&["https://host/data/"], "https://host@other/data/a"));
    }

    /// The checked URL is always the one that is opened.
    #[test]
    fn no_spelling_of_a_url_leads_to_another_host() {
        let allow = ["http://data.example/"];
        for bad in [
            r"http://169.254.169.254\latest\meta-data#@data.example/x",
            "http://evil#@data.example/x",
            "http://evil?@data.example/x",
            "http://evil/@data.example/x",
            r"http://evil\@data.example/x",
            "http://evil\t#@data.example/x",
            "http://data.example@evil/x",
            "http://data.example:80@evil/x",
        ] {
            assert!(!allows(&allow, bad), "{bad}");
        }
        assert!(allows(&allow, "HTTP://Data.Example:80/x"), "the same place, spelled differently");
    }

    #[test]
    fn paths_are_compared_as_they_really_are() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let allow = [text(inside.clone())];
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        assert!(allows(&allow, &text(inside.join("new/file.tar"))));
        assert!(allows(&allow, &format!("file://{}", text(inside.join("a")))));
        assert!(!allows(&allow, &text(inside.join("../out/a"))));
        let linked = text(inside.join("link/a"));
        let error = Allow::new(&allow).unwrap().check(&linked).unwrap_err();
        assert!(error.message().starts_with(&format!("{linked}: outside")), "a link leads outside: {error}");
        assert!(!allows(&allow, &format!("{}2/a", text(inside))));
        assert!(!allows(&allow, "/etc/passwd"));
    }
}
