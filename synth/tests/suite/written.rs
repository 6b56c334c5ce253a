//! The files written below a folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all files, sorted.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Returns the names of all files relative to `dir`, and their bytes.
pub(crate) fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let relative = |path: &Path| path.strip_prefix(dir).unwrap().to_owned();
    files_below(dir).iter().map(|path| (relative(path), fs::read(path).unwrap())).collect()
}
