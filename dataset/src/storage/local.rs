//! Files of this machine.
//!
//! They are read directly, not through object_store's `LocalFileSystem`, which leaves out files with names like `clip.jpg#1`
//! and does not follow names that its path type cannot hold. ETags have the same form (inode, modification time, size), so
//! that a replaced or touched file is noticed.

use super::failure::Fault;
use super::object::ObjectRef;
use super::progress::Progress;
use super::uri::Location;
use crate::recycled::{LEAST_BYTES, Recycled};
use bytes::Bytes;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that was found: path, size in bytes, ETag.
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) etag: String,
}

impl Found {
    /// Returns it as an object of `at`'s storage.
    pub(super) fn at(self, at: &Location) -> ObjectRef {
        ObjectRef { uri: at.uri_of(&self.path), size: self.size, etag: Some(self.etag) }
    }
}

/// The mark in the names of half-written files, which are never listed.
pub(super) const TEMP_MARK: &str = ".feedstock-tmp-";

/// Whether a file or folder is on a disk of this machine, and not on a network file system.
pub(crate) fn is_on_a_local_disk(path: &Path) -> bool {
    // ext, XFS, Btrfs, tmpfs, overlayfs, ZFS, F2FS
    const LOCAL: [u64; 7] =
        [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1, 0xF2F5_2010];
    rustix::fs::statfs(path).is_ok_and(|system| LOCAL.contains(&(system.f_type as u64)))
}

fn etag(meta: &Metadata) -> String {
    let nanos = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    format!("{:x}-{nanos:x}-{:x}", meta.ino(), meta.len())
}

pub(super) fn found(path: String, meta: &Metadata) -> Found {
    Found { path, size: meta.len(), etag: etag(meta) }
}

/// Returns the file at `path`; a folder counts as missing.
pub(crate) fn head(path: &str) -> Result<Found, Fault> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is a folder").into());
    }
    Ok(found(path.to_owned(), &meta))
}

/// Bytes that are read at a time, so that a slow file system shows its progress.
const STEP_BYTES: usize = 4 << 20;

/// Reads exactly `range` of the file. Checks before the first byte and after the last one that the file is the `pinned` one:
/// a file that is rewritten in place keeps its inode, and the bytes read may be of both versions.
pub(crate) fn read(
    path: &str,
    range: &Range<u64>,
    pinned: Option<&str>,
    size: u64,
    progress: &Progress,
) -> Result<Bytes, Fault> {
    progress.lose(); // an attempt starts from the beginning
    let file = File::open(path)?;
    while_pinned(&file, pinned, size, || bytes_of(&file, range, progress))
}

/// Returns the result of `read` if the file is `pinned` before and the same after it.
fn while_pinned<T>(
    file: &File,
    pinned: Option<&str>,
    size: u64,
    read: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let before = version_of(file, pinned, size)?;
    let out = read()?;
    version_of(file, Some(&before), size)?;
    Ok(out)
}

fn bytes_of(mut file: &File, range: &Range<u64>, progress: &Progress) -> Result<Bytes, Fault> {
    let len = range.end - range.start;
    let capacity =
        usize::try_from(len).map_err(|_| Fault::Refused(format!("{len} bytes do not fit in memory")))?;
    file.seek(SeekFrom::Start(range.start))?;
    let (bytes, got) = if capacity < LEAST_BYTES {
        let mut bytes = Vec::with_capacity(capacity);
        let got = file.take(len).read_to_end(&mut bytes)?;
        (Bytes::from(bytes), got)
    } else {
        let mut bytes = Recycled::new(capacity)?;
        let got = read_up_to(&mut file, &mut bytes, progress)?;
        (Bytes::from_owner(bytes), got)
    };
    if got != capacity {
        return Err(Fault::Length { expected: len, got: got as u64 });
    }
    Ok(bytes)
}

/// Returns the version of an open file, which must be `pinned` and have `size` bytes.
fn version_of(file: &File, pinned: Option<&str>, size: u64) -> Result<String, Fault> {
    let meta = file.metadata()?;
    let now = etag(&meta);
    if pinned.is_some_and(|etag| etag != now) || meta.len() != size {
        return Err(Fault::Changed(format!(
            "it had {size} bytes and now has {}, or it is another file",
            meta.len()
        )));
    }
    Ok(now)
}

/// Fills `bytes` up to the end of the file.
fn read_up_to(file: &mut impl Read, bytes: &mut [u8], progress: &Progress) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        let end = bytes.len().min(got + STEP_BYTES);
        match file.read(&mut bytes[got..end]) {
            Ok(0) => break,
            Ok(n) => {
                got += n;
                progress.add(n as u64);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

static TEMP_COUNT: AtomicU64 = AtomicU64::new(0);

/// Writes `bytes` whole or not at all; creates missing folders.
pub(crate) fn write(path: &str, bytes: &[u8]) -> Result<(), Fault> {
    put(path, bytes, |temp, target| fs::rename(temp, target))
}

/// As [`write`], if the file does not exist yet; returns whether this call created it.
pub(crate) fn create(path: &str, bytes: &[u8]) -> Result<bool, Fault> {
    let mut is_new = true;
    put(path, bytes, |temp, target| {
        let claimed = match fs::hard_link(temp, target) {
            Ok(()) => return fs::remove_file(temp),
            // Some file systems have no links: an empty file claims the name.
            Err(e) if matches!(e.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
                File::create_new(target).map(|_| ())
            }
            Err(e) => Err(e),
        };
        match claimed {
            Ok(()) => fs::rename(temp, target),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                is_new = false;
                fs::remove_file(temp)
            }
            Err(e) => Err(e),
        }
    })?;
    Ok(is_new)
}

/// Writes `bytes` to a temporary file, which `place(temporary file, path)` moves to `path`.
fn put(path: &str, bytes: &[u8], place: impl FnOnce(&Path, &Path) -> io::Result<()>) -> Result<(), Fault> {
    let target = Path::new(path);
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temp = temp_path(target)?;
    let result = (|| {
        let mut file = File::create_new(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        place(&temp, target)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temp); // after a success, `place` has moved it
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

/// Removes the file; a missing file is not an error.
pub(crate) fn delete(path: &str) -> Result<(), Fault> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_noticed_even_at_the_same_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x").to_str().unwrap().to_owned();
        write(&path, b"abcd").unwrap();
        let seen = head(&path).unwrap();
        assert_eq!(&read(&path, &(1..3), Some(&seen.etag), 4, &Progress::bytes(2)).unwrap()[..], b"bc");
        write(&path, b"efgh").unwrap();
        assert!(matches!(
            read(&path, &(1..3), Some(&seen.etag), 4, &Progress::bytes(2)),
            Err(Fault::Changed(_))
        ));
    }

    /// In place: inode and size stay the same, and the bytes read may be of both versions.
    #[test]
    fn a_file_that_is_rewritten_while_it_is_read_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, b"abcd").unwrap();
        let (file, seen) = (File::open(&path).unwrap(), head(path.to_str().unwrap()).unwrap());
        let read = |rewrite: bool| {
            while_pinned(&file, Some(&seen.etag), 4, || {
                let bytes = bytes_of(&file, &(0..4), &Progress::bytes(4))?;
                if rewrite {
                    let writer = File::options().write(true).open(&path)?;
                    (&writer).write_all(b"efgh")?;
                    writer.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1))?;
                }
                Ok(bytes)
            })
        };
        assert_eq!(&read(false).unwrap()[..], b"abcd");
        assert!(matches!(read(true), Err(Fault::Changed(_))));
    }

    /// An endless file of sevens, with the number of reads.
    struct Steps(u32);

    impl Read for Steps {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            buffer.fill(7);
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_large_read_shows_its_progress() {
        let progress = Progress::bytes(20 << 20);
        let mut bytes = vec![0; 20 << 20];
        let mut steps = Steps(0);
        assert_eq!(read_up_to(&mut steps, &mut bytes, &progress).unwrap(), 20 << 20);
        assert_eq!((steps.0, progress.done()), (5, 20 << 20));
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_write_makes_its_folders_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/x").to_str().unwrap().to_owned();
        for bytes in [b"1", b"2"] {
            write(&path, bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        assert_eq!(fs::read_dir(dir.path().join("deep/er")).unwrap().count(), 1);
    }
}
