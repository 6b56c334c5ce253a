//! What the name of a member states: the key of its sample, and its kind.

use crate::format::kinds::{extension, is_audio, is_picture};
use std::collections::BTreeSet;

/// The extensions that webdataset decodes as integers.
const INTEGERS: [&str; 6] = ["cls", "class", "count", "index", "inx", "id"];

/// Returns `(key, extension)`; `None` for a name without an extension.
pub(super) fn split_key(name: &str) -> Option<(&str, String)> {
    let file = name.rfind('/').map_or(0, |at| at + 1);
    let dot = name[file..].find('.')? + file;
    if dot > file {
        return Some((&name[..dot], name[dot + 1..].to_ascii_lowercase()));
    }
    // `dir/.ext`: the regular expression then takes `dir/` as the key, if that has no dot
    let folder = name[..file].trim_end_matches('/').rsplit('/').next()?;
    (!folder.is_empty() && !folder.contains('.'))
        .then(|| (&name[..file], name[dot + 1..].to_ascii_lowercase()))
}

pub(super) fn is_json(extension: &str) -> bool {
    matches!(extension, "json" | "jsn")
}

pub(super) fn is_text(extension: &str) -> bool {
    matches!(extension, "txt" | "text" | "transcript")
}

pub(super) fn is_kept(name: &str) -> bool {
    split_key(name).is_some_and(|(_, e)| is_json(&e) || is_text(&e) || INTEGERS.contains(&e.as_str()))
}

/// webdataset skips its own members, such as `__meta__/…`.
pub(super) fn is_meta(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or(name);
    first.len() > 4 && first.starts_with("__") && first.ends_with("__")
}

/// Returns the last part of an extension: `png` of `seg.png`.
pub(super) fn last_part(of_member: &str) -> String {
    extension(&format!("x.{of_member}"))
}

/// Returns payload extensions with the columns that they become.
pub(super) fn payload_columns(extensions: &BTreeSet<&String>) -> Vec<(String, String)> {
    let pictures = extensions.iter().filter(|e| is_picture(&last_part(e))).count();
    let clips = extensions.iter().filter(|e| is_audio(&last_part(e))).count();
    let name = |e: &str| match last_part(e) {
        last if pictures == 1 && is_picture(&last) => "image".to_owned(),
        last if clips == 1 && is_audio(&last) => "audio".to_owned(),
        _ => e.replace('.', "_"),
    };
    extensions.iter().map(|e| ((*e).clone(), name(e))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_webdatasets_regular_expression() {
        let key = |name: &str| split_key(name).map(|(k, e)| (k.to_owned(), e));
        let some = |k: &str, e: &str| Some((k.to_owned(), e.to_owned()));
        assert_eq!(key("a/b/c.JPG"), some("a/b/c", "jpg"));
        assert_eq!(key("a.d/c.seg.png"), some("a.d/c", "seg.png"));
        assert_eq!(key("c"), None);
        assert_eq!(key("a.b/c"), None);
        assert_eq!(key("a/b/.x"), some("a/b/", "x"));
        assert_eq!(key("a.b/.x"), None);
        assert_eq!(key(".x"), None);
        assert_eq!(key("./c.jpg"), some("./c", "jpg"));
    }
}
