//! Determines which version of an object an answer has.
//!
//! There are three guards. The first that the store offers is used:
//! 1. the ETag;
//! 2. the time of the last change (`Last-Modified`), which has a resolution of one second;
//! 3. the size alone.
//!
//! The size is compared in every case.

use super::failure::Fault;
use super::object::ObjectRef;
use super::uri::Scheme;
use object_store::{GetOptions, ObjectMeta};
use std::time::{Duration, UNIX_EPOCH};

/// The mark of versions that are times of change, in seconds since 1970. An ETag that begins like it is quoted.
const MODIFIED: &str = "modified:";
/// The end of the year 9999, the last that an HTTP date can name.
const MODIFIED_MAX: u64 = 253_402_300_799;

/// Whether this version is an ETag, not a time of change.
pub(crate) fn is_etag(version: &str) -> bool {
    !version.starts_with(MODIFIED)
}

/// Returns the version of the object that `meta` describes: its ETag, else `modified:` and the time of its last change in
/// seconds since 1970, else nothing.
pub(super) fn version(meta: &ObjectMeta) -> Option<String> {
    let seconds = meta.last_modified.timestamp(); // 0 if the store does not send it
    let quoted = |etag: &String| if is_etag(etag) { etag.clone() } else { format!("\"{etag}\"") };
    meta.e_tag.as_ref().map(quoted).or_else(|| (seconds > 0).then(|| format!("{MODIFIED}{seconds}")))
}

/// Whether the object is pinned by an ETag.
pub(super) fn has_etag(object: &ObjectRef) -> bool {
    object.etag.as_deref().is_some_and(|version| modified(version).is_none())
}

/// Returns the seconds of a version that is a time of change.
fn modified(version: &str) -> Option<u64> {
    version.strip_prefix(MODIFIED)?.parse().ok().filter(|seconds| *seconds <= MODIFIED_MAX)
}

/// Returns the conditions of a read of this version.
pub(super) fn conditions(object: &ObjectRef, scheme: Scheme) -> GetOptions {
    let Some(version) = object.etag.as_deref() else { return GetOptions::default() };
    match modified(version) {
        Some(seconds) => GetOptions {
            if_unmodified_since: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map(Into::into),
            ..GetOptions::default()
        },
        None => GetOptions { if_match: if_match(version, scheme), ..GetOptions::default() },
    }
}

/// Compares the version in the answer too, because some stores ignore conditions.
pub(super) fn check_version(now: &ObjectMeta, then: &ObjectRef) -> Result<(), Fault> {
    if now.size != then.size {
        return Err(Fault::Changed(format!("it had {} bytes and now has {}", then.size, now.size)));
    }
    let Some(version) = then.etag.as_deref() else { return Ok(()) };
    if let Some(seconds) = modified(version) {
        let at = now.last_modified.timestamp();
        if at > 0 && u64::try_from(at) != Ok(seconds) {
            let later = i128::from(at) - i128::from(seconds);
            return Err(Fault::Changed(format!(
                "it was modified at {}, {later} s after the catalog's version",
                now.last_modified
            )));
        }
        return Ok(());
    }
    match now.e_tag.as_deref() {
        Some(etag) if bare(etag) != bare(version) => {
            Err(Fault::Changed(format!("its ETag was {version} and is now {etag}")))
        }
        _ => Ok(()),
    }
}

/// Returns the ETag of an answer if equal ETags mean equal bytes: a weak one (`W/`) promises less, and so does a time of
/// change.
pub(super) fn strong(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().map(str::trim).filter(|etag| !etag.starts_with("W/"))
}

/// Removes quotes and the weakness mark, in which listings and headers of one store differ.
fn bare(etag: &str) -> &str {
    etag.trim().trim_start_matches("W/").trim_matches('"')
}

/// Returns the header's value; weak tags never match by RFC 9110 §13.1.1, so they are not sent.
fn if_match(etag: &str, scheme: Scheme) -> Option<String> {
    match scheme {
        _ if etag.starts_with("W/") => None,
        Scheme::Memory => Some(etag.to_owned()),
        _ => Some(format!("\"{}\"", bare(etag))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_etags_are_compared_but_not_sent() {
        assert_eq!(if_match("W/\"a\"", Scheme::Http), None);
        assert_eq!(if_match("0x8D", Scheme::Azure).as_deref(), Some("\"0x8D\""));
        assert_eq!(if_match("\"a\"", Scheme::S3).as_deref(), Some("\"a\""));
        assert_eq!(bare("W/\"a\""), bare("\"a\""));
    }

    #[test]
    fn an_etag_that_looks_like_a_time_of_change_is_an_etag() {
        let meta = |etag: &str| ObjectMeta {
            location: "x".into(),
            last_modified: UNIX_EPOCH.into(),
            size: 1,
            e_tag: Some(etag.to_owned()),
            version: None,
        };
        for etag in ["modified:18446744073709551615", "modified:7", "modified:x"] {
            let object = ObjectRef { uri: "http://h/x".into(), size: 1, etag: version(&meta(etag)) };
            assert!(has_etag(&object) && is_etag(object.etag.as_deref().unwrap()), "{object:?}");
            assert_eq!(conditions(&object, Scheme::Http).if_match, Some(format!("\"{etag}\"")));
            assert!(check_version(&meta(etag), &object).is_ok());
            assert!(matches!(check_version(&meta("y"), &object), Err(Fault::Changed(_))));
        }
        let stored = ObjectRef {
            uri: "http://h/x".into(),
            size: 1,
            etag: Some("modified:18446744073709551615".into()),
        };
        let _no_panic = conditions(&stored, Scheme::Http);
    }

    #[test]
    fn only_a_strong_etag_pins_bytes() {
        let meta = |etag: Option<&str>| ObjectMeta {
            location: "x".into(),
            last_modified: UNIX_EPOCH.into(),
            size: 1,
            e_tag: etag.map(str::to_owned),
            version: None,
        };
        assert_eq!(strong(&meta(Some("\"a\""))), Some("\"a\""));
        assert_eq!((strong(&meta(Some("W/\"a\""))), strong(&meta(None))), (None, None));
    }

    #[test]
    fn the_time_of_the_last_change_pins_what_has_no_etag() {
        let meta = |etag: Option<&str>, seconds: u64, size| ObjectMeta {
            location: "x".into(),
            last_modified: (UNIX_EPOCH + Duration::from_secs(seconds)).into(),
            size,
            e_tag: etag.map(str::to_owned),
            version: None,
        };
        assert_eq!(version(&meta(Some("a"), 7, 1)).as_deref(), Some("a"));
        assert_eq!(version(&meta(None, 7, 1)).as_deref(), Some("modified:7"));
        assert_eq!(version(&meta(None, 0, 1)), None);
        let object = ObjectRef { uri: "http://h/x".into(), size: 1, etag: Some("modified:7".into()) };
        assert!(!has_etag(&object));
        assert!(conditions(&object, Scheme::Http).if_unmodified_since.is_some());
        assert!(check_version(&meta(None, 7, 1), &object).is_ok());
        assert!(check_version(&meta(None, 0, 1), &object).is_ok(), "the answer has no time of change");
        assert!(matches!(check_version(&meta(None, 8, 1), &object), Err(Fault::Changed(_))));
        assert!(matches!(check_version(&meta(None, 7, 2), &object), Err(Fault::Changed(_))));
    }
}
