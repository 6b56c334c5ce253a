//! Which store a URI names, and which key in that store.
//!
//! | form | key |
//! |---|---|
//! | `/data/x y#1.jpg`, `data/x` | the path, taken literally |
//! | `file:///data/x%20y` | the path, percent-decoded |
//! | `s3://bucket/key`, `gs://…`, `az://container/…`, `memory://name/…` | the key, taken literally, as the clouds' own tools do |
//! | `indexes://N/name.arrow` | the name of a file of N indexes, which is computed ([`indexes`](super::indexes)) |
//! | `http(s)://host/x%20y?query` | the path, percent-decoded; the query goes with every request |

use super::percent::{decode, encode};
use super::signature::{is_signed, unsigned};
use super::web::{Origin, Web};
use crate::{Error, Result};
use feedstock_base::shown;

/// The kinds of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    Local,
    S3,
    Gcs,
    Azure,
    Http,
    Memory,
    Indexes,
}

/// A parsed URI. `prefix + encode(key) + suffix` is the URI again.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) scheme: Scheme,
    /// The part before the key: `s3://bucket/`, `file://`, or nothing for a plain path.
    pub(crate) prefix: String,
    /// The query of an http URL, with its `?`.
    pub(crate) suffix: String,
    /// The object's name in its store, or the path of a file.
    pub(crate) key: String,
}

impl Location {
    /// Parses `uri`; `BadConfig` if it names no store.
    pub(crate) fn parse(uri: &str) -> Result<Self> {
        if uri.is_empty() {
            return Err(Error::config("an empty URI names no data; give a path or s3://bucket/prefix"));
        }
        if uri.contains('\0') {
            return Err(Error::config("a URI with a NUL byte names no object"));
        }
        let Some((scheme, rest)) = uri.split_once("://").filter(|(s, _)| is_scheme(s)) else {
            return Ok(Self {
                scheme: Scheme::Local,
                prefix: String::new(),
                suffix: String::new(),
                key: uri.into(),
            });
        };
        let lower = scheme.to_ascii_lowercase();
        match lower.as_str() {
            "file" => file(uri, rest),
            "http" | "https" => http(uri),
            "s3" | "s3a" => bucket(uri, scheme, rest, Scheme::S3),
            "gs" | "gcs" => bucket(uri, scheme, rest, Scheme::Gcs),
            "az" | "azure" | "abfs" | "abfss" | "adl" => bucket(uri, scheme, rest, Scheme::Azure),
            "memory" => {
                let (name, key) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = format!("memory://{name}/");
                Ok(Self { scheme: Scheme::Memory, prefix, suffix: String::new(), key: key.into() })
            }
            "indexes" => bucket(uri, "indexes", rest, Scheme::Indexes),
            _ => Err(Error::config(format!(
                "{}: the scheme '{scheme}' is unknown; must be a plain path, file, s3, gs, az, http, https or memory",
                shown(uri)
            ))),
        }
    }

    /// Returns the URI of another key in the same store.
    pub(crate) fn uri_of(&self, key: &str) -> String {
        match self.scheme {
            Scheme::Http => format!("{}{}{}", self.prefix, encode(key), self.suffix),
            Scheme::Local if !self.prefix.is_empty() => format!("{}{}", self.prefix, encode(key)),
            _ => format!("{}{key}", self.prefix),
        }
    }

    /// Returns the key of this place as a folder: it ends with `/` unless it is the root.
    pub(crate) fn folder_key(&self) -> String {
        let key = self.key.trim_end_matches('/');
        if key.is_empty() { String::new() } else { format!("{key}/") }
    }

    /// Returns the store's name in messages.
    pub(crate) fn store_name(&self) -> String {
        match self.scheme {
            Scheme::Local => "local files".into(),
            _ => shown(&self.prefix),
        }
    }

    /// Returns the origin of the URL; `None` if it is not an http(s) URL.
    pub(super) fn origin(&self) -> Option<Origin> {
        Web::parse(&self.prefix).ok().map(|web| web.origin())
    }

    /// Whether the query of a URL signs its requests.
    pub(super) fn is_signed(&self) -> bool {
        self.suffix.strip_prefix('?').is_some_and(is_signed)
    }

    /// Returns the bucket, container or host.
    pub(crate) fn authority(&self) -> &str {
        let rest = self.prefix.split_once("://").map_or("", |(_, rest)| rest);
        rest.trim_end_matches('/')
    }
}

/// Returns an http(s) URL without user name, password, fragment and the parameters that sign it. Any other URI, and a URL that
/// cannot be opened, are returned unchanged. Two results are equal if both URLs name one object, whatever their credentials
/// and signatures.
pub(crate) fn without_credentials(uri: &str) -> String {
    let Ok(web) = Web::parse(uri) else { return uri.to_owned() };
    let kept = unsigned(web.url.query.unwrap_or_default());
    let mark = if kept.is_empty() { "" } else { "?" };
    format!("{}://{}{}{mark}{kept}", web.url.scheme, web.url.host, web.url.path)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn file(uri: &str, rest: &str) -> Result<Location> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(Error::config(format!(
            "{uri}: a file URI must have no host; write file:///path or the path alone"
        )));
    }
    let key = decode(path).ok_or_else(|| not_utf8(uri))?;
    Ok(Location { scheme: Scheme::Local, prefix: "file://".into(), suffix: String::new(), key })
}

fn http(uri: &str) -> Result<Location> {
    let web = Web::parse(uri).map_err(|why| Error::config(format!("{}: {why}", shown(uri))))?;
    let path = web.url.path.strip_prefix('/').unwrap_or(web.url.path);
    Ok(Location {
        scheme: Scheme::Http,
        prefix: web.prefix(),
        suffix: web.url.query.map_or(String::new(), |q| format!("?{q}")),
        key: decode(path).ok_or_else(|| not_utf8(uri))?,
    })
}

fn bucket(uri: &str, scheme: &str, rest: &str, kind: Scheme) -> Result<Location> {
    let (name, key) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(Error::config(format!("{uri}: the bucket is missing; write {scheme}://bucket/prefix")));
    }
    let prefix = format!("{scheme}://{name}/");
    Ok(Location { scheme: kind, prefix, suffix: String::new(), key: key.into() })
}

fn not_utf8(uri: &str) -> Error {
    Error::config(format!("{}: the percent-encoding is broken or hides bytes that are not UTF-8", shown(uri)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(uri: &str) -> (Scheme, String, String) {
        let at = Location::parse(uri).unwrap();
        (at.scheme, at.prefix, at.key)
    }

    #[test]
    fn every_form_is_taken_apart() {
        assert_eq!(parts("/a b/#1%.jpg"), (Scheme::Local, "".into(), "/a b/#1%.jpg".into()));
        assert_eq!(parts("file:///a%20b/%231"), (Scheme::Local, "file://".into(), "/a b/#1".into()));
        assert_eq!(parts("s3://b/k %20#?"), (Scheme::S3, "s3://b/".into(), "k %20#?".into()));
        assert_eq!(parts("s3://b"), (Scheme::S3, "s3://b/".into(), "".into()));
        assert_eq!(parts("https://h:1/x%20y?sig=1#top"), (Scheme::Http, "https://h:1/".into(), "x y".into()));
        assert_eq!(parts("memory:///x"), (Scheme::Memory, "memory:///".into(), "x".into()));
        assert_eq!(parts("az://c/x").0, Scheme::Azure);
        assert_eq!(parts("indexes://9/x.arrow"), (Scheme::Indexes, "indexes://9/".into(), "x.arrow".into()));
    }

    #[test]
    fn a_url_without_credentials_names_the_same_object() {
        let bare = without_credentials;
        assert_eq!(bare("https://u:p@h:1/a@b?x=1&X-Amz-Date=2&sig=3"), "https://h:1/a@b?x=1");
        assert_eq!(bare("http://h/a?Expires=1&Signature=2&Key-Pair-Id=3"), "http://h/a");
        assert_eq!(bare("http://u:p@h"), "http://h");
        assert_eq!(bare("http://evil#@data.example/x"), "http://evil", "the host is the one that is opened");
        assert_eq!(bare("http://h/a?b=1&Token=2"), "http://h/a?b=1");
        assert_eq!(bare("http://h/a?se=1&policy=2"), "http://h/a?se=1&policy=2", "not signed");
        assert_eq!(bare("s3://b/what?sig=1"), "s3://b/what?sig=1");
    }

    #[test]
    fn what_names_no_store_is_refused() {
        for bad in ["", "s3:///key", "ftp://h/x", "file://host/x", "http:///x", "file:///%zz", "a\0b"] {
            let error = Location::parse(bad).err().unwrap_or_else(|| panic!("{bad:?} was accepted"));
            assert_eq!(error.kind(), crate::ErrorKind::BadConfig);
        }
    }

    proptest! {
        #[test]
        fn any_key_survives_the_round_trip(key in "[^\0/][^\0]{0,24}") {
            for root in ["s3://b/", "http://h/", "file:///", "/", "memory://m/"] {
                let mut at = Location::parse(root).unwrap();
                at.key = if at.scheme == Scheme::Local { format!("/{key}") } else { key.clone() };
                let uri = at.uri_of(&at.key);
                prop_assert_eq!(&Location::parse(&uri).unwrap().key, &at.key, "{}", uri);
            }
        }
    }
}
