//! Credentials of URLs: kept here, and nowhere else.
//!
//! A signed URL, or one with a user name and a password, loses them when it comes in: whatever is outside of this folder
//! (catalogs, errors, logs, hashes, caches) has the URL without them, which names the same object however it is signed. A
//! request finds them again here.

use super::uri::{Location, Scheme, without_credentials};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The URLs that came with credentials.
#[derive(Default)]
pub(super) struct Signed {
    /// By the URL without credentials; folders end with `/`.
    urls: Mutex<BTreeMap<String, Kept>>,
    has_objects: AtomicBool,
}

#[derive(Clone)]
struct Kept {
    /// The URL as it came.
    url: String,
    /// What follows `?` in the URL without credentials.
    rest: String,
}

impl Signed {
    /// Keeps the credentials of the data set at `uri` and returns the URL without them.
    pub(super) fn keep(&self, uri: &str) -> String {
        let bare = without_credentials(uri);
        if bare != uri {
            let (path, rest) = split(&bare);
            let kept = Kept { url: uri.to_owned(), rest: rest.to_owned() };
            let mut urls = self.urls.lock().unwrap_or_else(PoisonError::into_inner); // inserted whole
            if let Some(wild) = path.find(['*', '[', '{']) {
                let folder = path[..wild].rfind('/').map_or(path, |at| &path[..=at]);
                urls.insert(folder.to_owned(), kept.clone());
            }
            urls.insert(bare.clone(), kept);
        }
        bare
    }

    /// As [`keep`](Self::keep), for one of many objects whose URLs the data set itself lists.
    pub(super) fn keep_object(&self, uri: &str) -> String {
        let bare = self.keep(uri);
        if bare != uri {
            self.has_objects.store(true, Ordering::Relaxed);
        }
        bare
    }

    /// Whether objects have separate credentials.
    pub(super) fn has_objects(&self) -> bool {
        self.has_objects.load(Ordering::Relaxed)
    }

    /// `uri` with the credentials that were kept for it, for a folder that it is in, or for its neighbours: of those the user
    /// name and password only, since a signature is one object's.
    pub(super) fn complete(&self, uri: &str) -> String {
        let urls = self.urls.lock().unwrap_or_else(PoisonError::into_inner);
        if urls.is_empty() || !uri.contains("://") {
            return uri.to_owned();
        }
        if let Some(kept) = urls.get(uri) {
            return kept.url.clone();
        }
        let (path, rest) = split(uri);
        let (mut end, scheme_end) = (path.len(), path.find("://").map_or(0, |at| at + 3));
        while let Some(at) = path[..end].rfind('/').filter(|at| *at >= scheme_end) {
            let folder = &path[..=at];
            let found = urls.iter().find(|(bare, kept)| {
                let key = split(bare).0;
                kept.rest == rest && (key == folder || key == folder.trim_end_matches('/'))
            });
            if let Some((_, kept)) = found {
                return with(uri, &kept.url, true);
            }
            end = at;
        }
        let neighbour = urls.iter().find(|(bare, _)| {
            let key = split(bare).0;
            key.rfind('/').is_some_and(|at| at >= scheme_end && path.starts_with(&key[..=at]))
        });
        neighbour.map_or_else(|| uri.to_owned(), |(_, kept)| with(uri, &kept.url, false))
    }
}

/// Path and query of a URL.
fn split(url: &str) -> (&str, &str) {
    url.split_once('?').unwrap_or((url, ""))
}

/// `uri` with the user name and password of `signed`, and, if it `is_below`, with its query.
fn with(uri: &str, signed: &str, is_below: bool) -> String {
    let Ok(Location { scheme: Scheme::Http, prefix, suffix, .. }) = Location::parse(signed) else {
        return uri.to_owned();
    };
    let (path, own) = split(uri);
    let rest = path.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, key)| key);
    let query = match (is_below, own) {
        (true, _) => suffix,
        (false, "") => String::new(),
        (false, own) => format!("?{own}"),
    };
    format!("{prefix}{rest}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_credentials_that_its_url_came_with() {
        let signed = Signed::default();
        let one = "https://h/a.parquet?id=1&X-Amz-Date=2&X-Amz-Signature=3";
        assert_eq!(signed.keep(one), "https://h/a.parquet?id=1");
        assert_eq!(signed.complete("https://h/a.parquet?id=1"), one);
        assert_eq!(signed.complete("https://h/a.parquet?id=2"), "https://h/a.parquet?id=2", "another object");
        assert_eq!(signed.complete("https://h/b.parquet"), "https://h/b.parquet");
        let anew = "https://h/a.parquet?id=1&X-Amz-Date=7&X-Amz-Signature=8";
        assert_eq!(signed.keep(anew), "https://h/a.parquet?id=1");
        assert_eq!(signed.complete("https://h/a.parquet?id=1"), anew);
        assert_eq!(signed.keep("s3://b/x?y"), "s3://b/x?y");
        assert!(!signed.has_objects());
    }

    #[test]
    fn folders_and_patterns_give_theirs_to_what_is_in_them() {
        let signed = Signed::default();
        assert_eq!(signed.keep("https://u:p@h/dir/?token=1"), "https://h/dir/");
        assert_eq!(signed.complete("https://h/dir/a/b.tar"), "https://u:p@h/dir/a/b.tar?token=1");
        assert_eq!(signed.complete("https://h/other/b.tar"), "https://h/other/b.tar");
        assert_eq!(signed.complete("https://h2/dir/b.tar"), "https://h2/dir/b.tar");
        let signed = Signed::default();
        assert_eq!(signed.keep("https://u:p@h/dir/*.tar?token=1"), "https://h/dir/*.tar");
        assert_eq!(signed.complete("https://h/dir/a.tar"), "https://u:p@h/dir/a.tar?token=1");
        let signed = Signed::default();
        signed.keep("https://u:p@h/dir/a.tar?token=1");
        assert_eq!(signed.complete("https://h/dir/_feedstock/x"), "https://u:p@h/dir/_feedstock/x");
        let signed = Signed::default();
        signed.keep("https://u:p@h");
        assert_eq!(signed.complete("https://other/x"), "https://other/x", "another host");
        assert_eq!(signed.complete("https://h/x"), "https://u:p@h/x");
        assert_eq!(signed.keep_object("https://h/x?sig=1"), "https://h/x");
        assert!(signed.has_objects());
    }
}
