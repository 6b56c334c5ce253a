//! Files of this machine.
//!
//! Read directly, not through object_store's `LocalFileSystem`: that one leaves out files named like
//! `clip.jpg#1` and follows no names that its path type cannot hold. ETags have the same form
//! (inode, modification time, size), so that a replaced or touched file is noticed.

use super::failure::Fault;
use crate::recycled::{LEAST_BYTES, Recycled};
use bytes::Bytes;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file found: path, size in bytes, ETag.
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) etag: String,
}

/// Half-written files carry this in their name and are never listed.
const TEMP_MARK: &str = ".feedstock-tmp-";

fn etag(meta: &Metadata) -> String {
    let nanos = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    format!("{:x}-{nanos:x}-{:x}", meta.ino(), meta.len())
}

fn found(path: String, meta: &Metadata) -> Found {
    Found { path, size: meta.len(), etag: etag(meta) }
}

/// The file at `path`; folders count as not there.
pub(crate) fn head(path: &str) -> Result<Found, Fault> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is a folder").into());
    }
    Ok(found(path.to_owned(), &meta))
}

/// Exactly `range` of the file, if it is still the one that `etag` names.
pub(crate) fn read(path: &str, range: &Range<u64>, pinned: Option<&str>, size: u64) -> Result<Bytes, Fault> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let now = etag(&meta);
    if pinned.is_some_and(|etag| etag != now) || meta.len() != size {
        return Err(Fault::Changed(format!(
            "{} bytes then, {} bytes now, or another file",
            size,
            meta.len()
        )));
    }
    let len = range.end - range.start;
    let capacity =
        usize::try_from(len).map_err(|_| Fault::Refused(format!("{len} bytes do not fit memory")))?;
    file.seek(SeekFrom::Start(range.start))?;
    let (bytes, got) = if capacity < LEAST_BYTES {
        let mut bytes = Vec::with_capacity(capacity);
        let got = file.take(len).read_to_end(&mut bytes)?;
        (Bytes::from(bytes), got)
    } else {
        let mut bytes = Recycled::new(capacity)?;
        let got = read_up_to(&mut file, &mut bytes)?;
        (Bytes::from_owner(bytes), got)
    };
    if got != capacity {
        return Err(Fault::Length { expected: len, got: got as u64 });
    }
    Ok(bytes)
}

/// Fills `bytes` as far as the file goes.
fn read_up_to(file: &mut File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// The files below `root`, or `root` itself when it is one; at most `limit`, in bytewise order of their paths.
pub(crate) fn list(root: &str, limit: usize) -> Result<Vec<Found>, Fault> {
    let meta = fs::metadata(root)?;
    if !meta.is_dir() {
        return Ok(if root.ends_with('/') { Vec::new() } else { vec![found(root.to_owned(), &meta)] });
    }
    let base = root.trim_end_matches('/');
    let mut out = Vec::new();
    walk(if base.is_empty() { "/" } else { base }, limit, &mut vec![], &mut out)?;
    Ok(out)
}

/// Depth first, each folder sorted as if its subfolders' names ended with `/`: that makes the whole sorted.
/// `open` holds the (device, inode) of the folders above, so that a link to one of them ends the walk.
fn walk(folder: &str, limit: usize, open: &mut Vec<(u64, u64)>, out: &mut Vec<Found>) -> Result<(), Fault> {
    let meta = fs::metadata(folder)?;
    let id = (meta.dev(), meta.ino());
    if open.contains(&id) {
        return Err(Fault::Refused(format!("{folder} links to a folder above itself; remove the link")));
    }
    open.push(id);
    for (name, is_folder) in entries(folder)? {
        if out.len() >= limit {
            break;
        }
        let path = if folder == "/" { format!("/{name}") } else { format!("{folder}/{name}") };
        if is_folder {
            walk(path.trim_end_matches('/'), limit, open, out)?;
            continue;
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => out.push(found(path, &meta)),
            Ok(_) => {} // a socket or device holds no samples
            Err(e) if e.kind() == io::ErrorKind::NotFound => {} // removed meanwhile, or a dangling link
            Err(e) => return Err(e.into()),
        }
    }
    open.pop();
    Ok(())
}

/// Names in `folder`, sorted; subfolders end with `/`.
fn entries(folder: &str) -> Result<Vec<(String, bool)>, Fault> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let mut name = entry.file_name().into_string().map_err(|name| {
            Fault::Refused(format!("{folder}: the file name {name:?} is not UTF-8; rename it"))
        })?;
        if name.contains(TEMP_MARK) {
            continue;
        }
        let kind = entry.file_type()?;
        let is_folder =
            kind.is_dir() || (kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|m| m.is_dir()));
        if is_folder {
            name.push('/');
        }
        names.push((name, is_folder));
    }
    names.sort_unstable();
    Ok(names)
}

static TEMP_COUNT: AtomicU64 = AtomicU64::new(0);

/// Writes `bytes` whole or not at all; missing folders are made. `false` when `only_new` and it exists.
pub(crate) fn write(path: &str, bytes: &[u8], only_new: bool) -> Result<bool, Fault> {
    let target = Path::new(path);
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temp = temp_path(target)?;
    let result = (|| {
        let mut file = File::create_new(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        if !only_new {
            fs::rename(&temp, target)?;
            return Ok(true);
        }
        match fs::hard_link(&temp, target) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    })();
    if only_new || result.is_err() {
        let _ = fs::remove_file(&temp); // the rename took it away otherwise
    }
    result.map_err(Fault::Io)
}

fn temp_path(target: &Path) -> Result<PathBuf, Fault> {
    let name = target
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or_else(|| Fault::Refused(format!("{} names no file", target.display())))?;
    let n = TEMP_COUNT.fetch_add(1, Ordering::Relaxed);
    let short: String = name.chars().take(60).collect(); // names end at 255 bytes
    Ok(target.with_file_name(format!(".{short}{TEMP_MARK}{}-{n}", std::process::id())))
}

/// Removes the file; it is no error when there is none.
pub(crate) fn delete(path: &str) -> Result<(), Fault> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &str, limit: usize) -> Vec<String> {
        list(root, limit).unwrap().into_iter().map(|f| f.path[root.len()..].to_owned()).collect()
    }

    #[test]
    fn odd_names_are_listed_in_bytewise_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let mut all = ["/a/x", "/a-b", "/a.b/#1%20 ü", "/a#1", "/b", "/a/y z", "/~", "/A"].map(String::from);
        for name in &all {
            write(&format!("{root}{name}"), name.as_bytes(), false).unwrap();
        }
        all.sort_unstable();
        assert_eq!(names(root, usize::MAX), all);
        assert_eq!(names(root, 3), all[..3]);
    }

    #[test]
    fn a_half_written_file_is_never_listed_and_a_link_loop_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        fs::write(dir.path().join(".x.feedstock-tmp-1-2"), b"half").unwrap();
        assert!(names(root, usize::MAX).is_empty());
        std::os::unix::fs::symlink(dir.path(), dir.path().join("up")).unwrap();
        assert!(matches!(list(root, usize::MAX), Err(Fault::Refused(_))));
    }

    #[test]
    fn a_replaced_file_is_noticed_even_at_the_same_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x").to_str().unwrap().to_owned();
        write(&path, b"abcd", false).unwrap();
        let seen = head(&path).unwrap();
        assert_eq!(&read(&path, &(1..3), Some(&seen.etag), 4).unwrap()[..], b"bc");
        write(&path, b"efgh", false).unwrap();
        assert!(matches!(read(&path, &(1..3), Some(&seen.etag), 4), Err(Fault::Changed(_))));
    }

    #[test]
    fn only_the_first_conditional_write_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/x").to_str().unwrap().to_owned();
        assert!(write(&path, b"1", true).unwrap());
        assert!(!write(&path, b"2", true).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"1");
        assert_eq!(fs::read_dir(dir.path().join("deep/er")).unwrap().count(), 1);
    }
}
