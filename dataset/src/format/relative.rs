//! Names of files relative to a folder: the rows of manifests, COCO's file of annotations.

use super::listing::{split_root, without_query};
use crate::{Error, Result};

/// Whether the name is relative: it has no scheme and does not begin at the root.
pub(super) fn is_relative(uri: &str) -> bool {
    !uri.contains("://") && !uri.starts_with('/')
}

/// Returns a file's URI: absolute ones unchanged, others below `folder`.
pub(super) fn resolve(folder: &str, uri: &str) -> String {
    if !is_relative(uri) {
        return uri.to_owned();
    }
    let uri = uri.trim_start_matches("./");
    if !folder.starts_with("file://") {
        return format!("{folder}{uri}");
    }
    let mut encoded = String::from(folder);
    for byte in uri.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns the URI of the file that `name` means in the folder of the data set at `uri`; `../` leads to the folder above.
///
/// # Errors
/// `BadConfig` if `../` leads above a bucket, a server or the root.
pub(crate) fn from_folder(uri: &str, name: &str) -> Result<String> {
    if !is_relative(name) {
        return Ok(name.to_owned());
    }
    let root = split_root(without_query(uri)).0.trim_end_matches('/');
    let root = format!("{root}/");
    let (mut folder, mut rest) = (root.as_str(), name.trim_start_matches("./"));
    while let Some(after) = rest.strip_prefix("../") {
        let above = || Error::config(format!("{name}: there are not that many folders above {root}"));
        folder = parent(folder).ok_or_else(above)?;
        rest = after.trim_start_matches("./");
    }
    Ok(resolve(folder, rest))
}

/// Returns the folder above one that ends in `/`; `None` for a bucket, a server or the root.
fn parent(folder: &str) -> Option<&str> {
    let start = folder.find("://").map_or(0, |at| at + 3);
    let inner = folder[start..].strip_suffix('/')?;
    inner.rfind('/').map(|at| &folder[..start + at + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_beside_the_manifest_or_where_they_say() {
        assert_eq!(resolve("s3://b/m/", "./a b.jpg"), "s3://b/m/a b.jpg");
        assert_eq!(resolve("file:///m/", "a b.jpg"), "file:///m/a%20b.jpg");
        assert_eq!(resolve("/m/", "s3://c/x.jpg"), "s3://c/x.jpg");
        assert_eq!(resolve("/m/", "/x.jpg"), "/x.jpg");
    }

    #[test]
    fn dots_lead_to_the_folder_above_and_not_out_of_a_bucket() {
        let of = |uri: &str, name: &str| from_folder(uri, name).unwrap();
        assert_eq!(of("/coco/train2017", "labels.json"), "/coco/train2017/labels.json");
        assert_eq!(of("/coco/train2017/", "../annotations/x.json"), "/coco/annotations/x.json");
        assert_eq!(of("/coco/train2017/*.jpg", "./.././x.json"), "/coco/x.json");
        assert_eq!(of("file:///c d/t", "../x y.json"), "file:///c d/x%20y.json");
        assert_eq!(of("s3://b/a/train", "../../x.json"), "s3://b/x.json");
        assert_eq!(of("s3://b/a", "https://h/x.json"), "https://h/x.json");
        assert_eq!(of("https://h/a/?sig=1", "x.json"), "https://h/a/x.json");
        let error = from_folder("s3://b/train", "../../x.json").unwrap_err();
        assert_eq!(error.message(), "../../x.json: there are not that many folders above s3://b/train/");
        assert!(from_folder("/", "../x.json").is_err());
    }
}
