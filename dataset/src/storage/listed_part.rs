//! Parts of a long listing, as its journal stores them.
//!
//! Each part names the span that it covers: keys of one prefix above `after`, up to `until`. As in every listing, each key has
//! the state of the moment when its page was read.
//! Cost: about 80 bytes a key on disk until the listing is complete; 10⁷ keys take 0.8 GB.

use super::journal::{Journal, JournalKind};
use super::key_span::KeySpan;
use object_store::ObjectMeta;
use object_store::path::Path as Key;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The file is created after 32 pages: 32,000 keys are listed in a few seconds, which is not worth a file. One older than an
/// hour is not resumed: objects may have been added or replaced since.
pub(crate) static LISTING: JournalKind =
    JournalKind { what: "listing", begins_at: 32, max_bytes: u64::MAX, max_age: Duration::from_secs(3_600) };

/// A part of a listing: all objects whose keys are in a span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) span: KeySpan,
    /// Key, size, ETag, seconds of the last change since 1970.
    objects: Vec<(String, u64, Option<String>, i64)>,
}

impl Listed {
    pub(super) fn new(span: KeySpan, objects: &[ObjectMeta]) -> Self {
        let object = |meta: &ObjectMeta| {
            (meta.location.to_string(), meta.size, meta.e_tag.clone(), meta.last_modified.timestamp())
        };
        Self { span, objects: objects.iter().map(object).collect() }
    }

    /// Returns the objects as the store listed them; `None` if one has a key that no store lists.
    pub(super) fn objects(self) -> Option<Vec<ObjectMeta>> {
        let object = |(key, size, e_tag, seconds): (String, u64, Option<String>, i64)| {
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))?;
            Some(ObjectMeta {
                location: Key::parse(key).ok()?,
                last_modified: time.into(),
                size,
                e_tag,
                version: None,
            })
        };
        self.objects.into_iter().map(object).collect()
    }
}

/// Opens the journal at `path` for a listing of `place`, and reads the parts of an interrupted listing. Blocks.
pub(super) fn open(path: &Path, place: &str) -> (Arc<Journal>, Vec<Listed>) {
    let mut found = Vec::new();
    let journal = Journal::open(&LISTING, path, &format!("listing 2 of {place}"), |json, _| {
        serde_json::from_slice(json).map(|listed| found.push(listed)).is_ok()
    });
    (journal, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::journal::remove_abandoned;
    use std::fs::File;

    const PAGES: usize = LISTING.begins_at as usize;

    fn span(after: Option<&str>, through: Option<&str>, keys: &[&str]) -> Listed {
        let meta = |key: &&str| ObjectMeta {
            location: Key::parse(key).unwrap(),
            last_modified: (UNIX_EPOCH + Duration::from_secs(1_700_000_000)).into(),
            size: 7,
            e_tag: Some("\"x\"".into()),
            version: None,
        };
        let range = KeySpan {
            prefix: "d/".into(),
            after: after.map(str::to_owned),
            until: through.map(str::to_owned),
        };
        Listed::new(range, &keys.iter().map(meta).collect::<Vec<_>>())
    }

    fn filled(path: &Path, pages: usize) -> Vec<Listed> {
        let (journal, found) = open(path, "s3://b/d");
        assert!(found.is_empty());
        let key = |page: usize| format!("d/{page:03} ü\"\\.jpg");
        let spans: Vec<Listed> = (0..pages)
            .map(|page| {
                let before = page.checked_sub(1).map(key);
                span(before.as_deref(), Some(&key(page)), &[&key(page)])
            })
            .collect();
        spans.iter().for_each(|span| journal.add(span, 1));
        spans
    }

    #[test]
    fn a_long_listing_is_read_back_and_a_short_one_has_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/listing.journal");
        filled(&path, PAGES - 1);
        assert!(!path.exists());
        let spans = filled(&path, PAGES + 3);
        let (journal, found) = open(&path, "s3://b/d");
        assert_eq!(found, spans);
        let more = span(Some("e"), None, &[]);
        journal.add(&more, 1);
        drop(journal);
        let (journal, found) = open(&path, "s3://b/d");
        assert_eq!((found.len(), found.last()), (spans.len() + 1, Some(&more)));
        let objects = found[0].clone().objects().unwrap();
        assert_eq!((objects[0].location.as_ref(), objects[0].size), ("d/000 ü\"\\.jpg", 7));
        assert_eq!(objects[0].last_modified.timestamp(), 1_700_000_000);
        journal.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_line_that_was_cut_or_damaged_ends_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("listing.journal");
        let spans = filled(&path, PAGES);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let (journal, found) = open(&path, "s3://b/d");
        assert_eq!(found, spans[..spans.len() - 1]);
        journal.add(&spans[spans.len() - 1], 1);
        drop(journal);
        assert_eq!(std::fs::read(&path).unwrap(), whole, "the cut line is gone");
        let mut damaged = whole.clone();
        let middle = whole.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let found = open(&path, "s3://b/d").1;
        assert!(!found.is_empty() && found.len() < spans.len());
        assert_eq!(found, spans[..found.len()]);
    }

    #[test]
    fn abandoned_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("listing.journal");
        remove_abandoned(&LISTING, &path).unwrap();
        filled(&path, PAGES);
        remove_abandoned(&LISTING, &path).unwrap();
        assert!(path.exists(), "it can be resumed");
        let touch =
            |file: &File| file.set_modified(std::time::SystemTime::now() - 2 * LISTING.max_age).unwrap();
        let (journal, _) = open(&path, "s3://b/d");
        touch(&File::options().append(true).open(&path).unwrap());
        remove_abandoned(&LISTING, &path).unwrap();
        assert!(path.exists(), "it is in use");
        drop(journal);
        remove_abandoned(&LISTING, &path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn files_of_other_listings_old_ones_and_those_in_use_are_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("listing.journal");
        filled(&path, PAGES);
        let (first, found) = open(&path, "s3://b/d");
        assert_eq!(found.len(), PAGES);
        let (second, found) = open(&path, "s3://b/d");
        assert!(found.is_empty(), "another process has it");
        second.add(&span(None, None, &["d/x"]), 1);
        second.remove();
        drop(second);
        drop(first);
        assert_eq!(open(&path, "s3://b/d").1.len(), PAGES);
        let text = std::fs::read_to_string(&path).unwrap();
        let began = text.lines().nth(1).unwrap();
        let earlier = began.parse::<u64>().unwrap() - 2 * LISTING.max_age.as_secs();
        std::fs::write(&path, text.replacen(began, &earlier.to_string(), 1)).unwrap();
        assert!(open(&path, "s3://b/d").1.is_empty(), "too old");
        assert!(open(&path, "s3://b/d").1.is_empty(), "and it was emptied");
        std::fs::remove_file(&path).unwrap();
        filled(&path, PAGES);
        assert!(open(&path, "s3://b/other").1.is_empty());
    }
}
