//! Keeps the credentials of URLs; they are stored nowhere else.
//!
//! A signed URL, or one with a user name and a password, loses them when it comes in. Everything outside this folder
//! (catalogs, errors, logs, hashes, caches) has the URL without them, which names the same object however it is signed. A
//! request looks them up here.

use super::uri::without_credentials;
use super::web::Web;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// The URLs that came with credentials. Every request looks up its URL; the cost grows with the URL's depth.
#[derive(Default)]
pub(super) struct Signed {
    known: RwLock<Known>,
    has_objects: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// By the URL without credentials; folders end with `/`.
    urls: HashMap<String, Kept>,
    /// The prefix with the user name and the password, by the folder of a URL that came with them.
    users: HashMap<String, String>,
}

#[derive(Clone)]
struct Kept {
    /// The original URL.
    url: String,
    /// Scheme, user, host and `/`.
    prefix: String,
    /// The original query, with its `?`.
    suffix: String,
}

impl Signed {
    /// Keeps the credentials of the data set at `uri` and returns the URL without them.
    pub(super) fn keep(&self, uri: &str) -> String {
        let bare = without_credentials(uri);
        if let Ok(web) = Web::parse(uri)
            && web.has_credentials()
        {
            self.insert(uri, &bare, &web);
        }
        bare
    }

    fn insert(&self, uri: &str, bare: &str, web: &Web<'_>) {
        let suffix = web.url.query.map_or(String::new(), |query| format!("?{query}"));
        let kept = Kept { url: uri.to_owned(), prefix: web.prefix(), suffix };
        let (path, rest) = split(bare);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner); // inserted whole
        if let Some(folder) = folders(path).next().filter(|_| web.url.user.is_some()) {
            known.users.insert(folder.to_owned(), kept.prefix.clone());
        }
        if let Some(wild) = path.find(['*', '[', '{']) {
            let folder = path[..wild].rfind('/').map_or(path, |at| &path[..=at]);
            known.urls.insert(joined(folder, rest), kept.clone());
        }
        known.urls.insert(bare.to_owned(), kept);
    }

    /// As [`keep`](Self::keep), for one of many objects whose URLs the data set lists.
    pub(super) fn keep_object(&self, uri: &str) -> String {
        if Web::parse(uri).is_ok_and(|web| web.has_credentials()) {
            self.has_objects.store(true, Ordering::Relaxed);
        }
        self.keep(uri)
    }

    /// Whether objects have separate credentials.
    pub(super) fn has_objects(&self) -> bool {
        self.has_objects.load(Ordering::Relaxed)
    }

    /// Returns `uri` with the credentials that were kept for it, or for the deepest folder that contains it. Else it adds the
    /// user name and password of another URL in such a folder, but no signature, since that belongs to one object.
    pub(super) fn complete(&self, uri: &str) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.urls.is_empty() || !uri.contains("://") {
            return uri.to_owned();
        }
        if let Some(kept) = known.urls.get(uri) {
            return kept.url.clone();
        }
        let (path, rest) = split(uri);
        for folder in folders(path) {
            let named = known.urls.get(&joined(folder, rest));
            if let Some(kept) = named.or_else(|| known.urls.get(&joined(folder.trim_end_matches('/'), rest)))
            {
                return format!("{}{}{}", kept.prefix, key(path), kept.suffix);
            }
        }
        match folders(path).find_map(|folder| known.users.get(folder)) {
            Some(prefix) => format!("{prefix}{}", joined(key(path), rest)),
            None => uri.to_owned(),
        }
    }
}

/// Returns the path and the query of a URL.
fn split(url: &str) -> (&str, &str) {
    url.split_once('?').unwrap_or((url, ""))
}

fn joined(path: &str, query: &str) -> String {
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Returns where the scheme of a URL ends.
fn after_scheme(path: &str) -> usize {
    path.find("://").map_or(0, |at| at + 3)
}

/// Returns what follows the host.
fn key(path: &str) -> &str {
    path[after_scheme(path)..].split_once('/').map_or("", |(_, key)| key)
}

/// Returns the folders that contain a URL without its query, the deepest first; a URL that ends with `/` contains itself.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    let (mut end, from) = (path.len(), after_scheme(path));
    std::iter::from_fn(move || {
        let at = path[..end].rfind('/').filter(|at| *at >= from)?;
        end = at;
        Some(&path[..=at])
    })
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
    fn the_deepest_folder_gives_its_own() {
        let signed = Signed::default();
        signed.keep("https://u:1@h/a/?token=1");
        signed.keep("https://u:2@h/a/b/?token=2");
        assert_eq!(signed.complete("https://h/a/b/x"), "https://u:2@h/a/b/x?token=2");
        assert_eq!(signed.complete("https://h/a/x"), "https://u:1@h/a/x?token=1");
        signed.keep("https://v:3@h/c/d/one?token=3");
        signed.keep("https://v:4@h/c/two?token=4");
        assert_eq!(signed.complete("https://h/c/d/other?part=1"), "https://v:3@h/c/d/other?part=1");
        assert_eq!(signed.complete("https://h/c/other"), "https://v:4@h/c/other");
    }

    /// A URL is kept under the host that is opened, not under a host that its text merely contains.
    #[test]
    fn no_credentials_are_kept_for_another_host() {
        let signed = Signed::default();
        assert_eq!(signed.keep("http://evil#@data.example/x"), "http://evil");
        assert_eq!(signed.complete("http://data.example/x"), "http://data.example/x");
    }

    /// Lookups that checked all 20,000 signed objects would take a minute here.
    #[test]
    fn a_lookup_does_not_grow_with_what_is_known() {
        let signed = Signed::default();
        for i in 0..20_000 {
            signed.keep_object(&format!("https://h/{}/{i}.jpg?sig={i}", i % 100));
        }
        let began = std::time::Instant::now();
        for i in 0..5_000 {
            assert_eq!(signed.complete(&format!("https://h/0/other-{i}")), format!("https://h/0/other-{i}"));
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
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
        assert_eq!(signed.keep_object("https://h/x#top"), "https://h/x");
        assert!(!signed.has_objects(), "a fragment is not a credential");
        assert_eq!(signed.keep_object("https://h/x?sig=1"), "https://h/x");
        assert!(signed.has_objects());
    }
}
