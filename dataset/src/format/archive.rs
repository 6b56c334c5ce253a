//! Seekable copies of compressed archives.
//!
//! A `.tar.gz` can only be read from its start, but a plan reads anywhere. So the first open makes one pass: it streams the
//! archive from storage through gunzip into an uncompressed tar in [`crate::OpenOptions::archives`]. Later opens use that
//! tar while the archive's size and ETag stay the same.
//!
//! ```text
//! x.tar.gz ──8 MiB reads──▶ gunzip ──▶ .x-….tmp-<pid> ──rename──▶ x-<where>-<version>.tar
//! ```
//! `where` is a hash of the URI and of the storage's endpoint. It leaves out the signature in a URL's query, so that a
//! newly signed URL finds its copy. `version` is a hash of size and ETag. Making a copy removes those of other versions,
//! unless they were opened within a week: another process may be reading them.
//!
//! Cost: the time of gunzip, about 0.3 GB/s of output on one core (MP3s do not shrink, so that is nearly a copy), or that
//! of the storage; disk space for the tar, about the size of the audio clips; about 18 MiB of memory. Processes that open
//! the same archive at once wait for the first: a lock file is next to the copy.
//!
//! A cut-off archive, a full disk and a gzip bomb are errors and leave no files. A bomb is an archive that unpacks to more
//! than [`RATIO_MAX`] times its size, or would leave less than [`SPARE_BYTES`] of the disk free. A copy whose content is
//! rejected ([`remove_refused`]) is removed, too.

use super::cataloguing::Cataloguing;
use super::listing::without_query;
use super::tars;
use crate::storage::{endpoints, shown, without_credentials};
use crate::{CatalogOptions, Error, ErrorKind, ObjectReader, ObjectRef, Result, StorageOptions};
use flate2::bufread::MultiGzDecoder;
use std::fs::{self, File, FileTimes, Metadata};
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes read from storage at a time; the next read is already under way.
const READ_BYTES: usize = 8 << 20;
/// Bytes written at a time; progress is reported after each write.
const WRITE_BYTES: usize = 1 << 20;
const MIB: u64 = 1 << 20;
/// Limit on unpacked bytes for each byte of an archive: TSVs alone shrink to a tenth, audio clips hardly, and gzip reaches
/// 1,032.
const RATIO_MAX: u64 = 100;
/// Archives may unpack to this size whatever their own: a few short TSVs shrink more.
const ANY_RATIO_BYTES: u64 = 16 << 20;
/// Bytes that stay free on the disk: other programs need some, and a full disk makes them fail.
const SPARE_BYTES: u64 = 256 << 20;
/// Bytes written between two checks of the free space.
const LOOK_EVERY_BYTES: u64 = 64 << 20;
/// How long a copy of another version stays after it was last opened. A training run opens its data set again, and so marks
/// the copy, when it resumes; runs longer than a week without that are rare.
const KEEP_OTHERS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Returns the seekable copy of `archive`, and makes it if there is none.
pub(super) async fn seekable(archive: &ObjectRef, with: &Cataloguing<'_>) -> Result<ObjectRef> {
    let Some(folder) = with.archives.map(Path::to_owned) else {
        return Err(Error::config(format!(
            "{}: an archive needs a folder for its seekable copy, and neither FEEDSTOCK_CACHE nor HOME names one; set \
             FEEDSTOCK_CACHE to a folder",
            archive.uri
        )));
    };
    let copy = Copy::of(archive, folder, with.storage.options());
    let reader = with.storage.reader(archive, READ_BYTES);
    let (uri, size, progress) = (archive.uri.clone(), archive.size, with.options.clone());
    let made = tars::blocking(with.storage.io(), move || {
        copy.make(reader, size, &progress).map_err(|failed| failed.explain(&uri, &copy))
    });
    let path = made.await?;
    let path = path
        .to_str()
        .ok_or_else(|| Error::config(format!("the archives' folder {} is not UTF-8", path.display())))?;
    with.storage.head(path).await
}

/// The place of the copy of one version of one archive.
struct Copy {
    folder: PathBuf,
    /// `<name>-<hash of the URI>-`, which copies of other versions share.
    stem: String,
    file: String,
}

enum Failed {
    Read(io::Error),
    Write(io::Error),
    /// It unpacks to more than this number of bytes.
    Bomb(u64),
}

/// Removes the seekable copy of an archive whose content was rejected: it is of no use.
pub(super) fn remove_refused(copy: &ObjectRef, archive: &ObjectRef) {
    if copy.uri != archive.uri
        && let Err(error) = fs::remove_file(&copy.uri)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(copy = copy.uri, %error, "the copy of a refused archive could not be removed");
    }
}

/// Returns the number of bytes that may still be written in `folder`.
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

impl Copy {
    fn of(archive: &ObjectRef, folder: PathBuf, storage: &StorageOptions) -> Self {
        let hash = |parts: &[&[u8]]| {
            let mut hasher = twox_hash::XxHash64::with_seed(0);
            for part in parts {
                hasher.write(part);
                hasher.write_u8(0xff);
            }
            hasher.finish()
        };
        let uri = unsigned(&archive.uri);
        let name = without_query(&uri).rsplit('/').next().unwrap_or_default();
        let name: String = name
            .trim_end_matches(".tar.gz")
            .trim_end_matches(".tgz")
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' })
            .take(80)
            .collect();
        let endpoints = endpoints(&uri, storage, std::env::vars_os());
        let parts: Vec<&[u8]> = std::iter::once(&uri).chain(&endpoints).map(|part| part.as_bytes()).collect();
        let stem = format!("{name}-{:016x}-", hash(&parts));
        let version =
            hash(&[&archive.size.to_le_bytes(), archive.etag.as_deref().unwrap_or_default().as_bytes()]);
        Self { folder, file: format!("{stem}{version:016x}.tar"), stem }
    }

    fn make(&self, reader: ObjectReader, size: u64, told: &CatalogOptions) -> Result<PathBuf, Failed> {
        let target = self.folder.join(&self.file);
        if mark_opened(&target) {
            return Ok(target);
        }
        fs::create_dir_all(&self.folder).map_err(Failed::Write)?;
        let lock = File::create(self.folder.join(format!(".{}lock", self.stem))).map_err(Failed::Write)?;
        lock.lock().map_err(Failed::Write)?; // released when the file closes
        if mark_opened(&target) {
            return Ok(target); // another process made it meanwhile
        }
        let temp = self.folder.join(format!(".{}.tmp-{}", self.file, std::process::id()));
        let free = || free_bytes(&self.folder);
        let done = unpack(reader, size, &temp, told, free)
            .and_then(|()| fs::rename(&temp, &target).map_err(Failed::Write));
        if done.is_err() {
            let _unremoved = fs::remove_file(&temp); // the first error counts
        }
        done?;
        self.drop_others();
        Ok(target)
    }

    /// Removes copies of other versions that no process has opened for a while, and partial files of killed processes (this
    /// one holds the lock, so no other is writing). A failure costs only space.
    fn drop_others(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_rest =
                name.strip_prefix('.').is_some_and(|n| n.starts_with(&self.stem)) && !name.ends_with("lock");
            let is_other = name.starts_with(&self.stem) && name != self.file.as_str();
            let is_unused = || entry.metadata().is_ok_and(|meta| is_unused(&meta));
            if (is_rest || is_other && is_unused())
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::debug!(%name, %error, "an old copy of an archive could not be removed");
            }
        }
    }
}

/// Whether there is a copy. Sets its access time, which file systems do not always update, and keeps its modification time,
/// which is part of its version.
fn mark_opened(copy: &Path) -> bool {
    let Ok(file) = File::open(copy) else { return false };
    if let Err(error) = file.set_times(FileTimes::new().set_accessed(SystemTime::now())) {
        tracing::debug!(copy = %copy.display(), %error, "the copy of an archive could not be marked as in use");
    }
    true
}

fn is_unused(meta: &Metadata) -> bool {
    let is_old = |time: io::Result<SystemTime>| {
        time.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > KEEP_OTHERS)) // a future time is not old
    };
    is_old(meta.modified()) && is_old(meta.accessed())
}

/// Returns what identifies an archive: a local path made absolute, or a URL without its signature.
fn unsigned(uri: &str) -> String {
    if uri.contains("://") {
        return without_credentials(uri);
    }
    let absolute = std::path::absolute(uri).ok().and_then(|path| path.to_str().map(str::to_owned));
    absolute.unwrap_or_else(|| uri.to_owned())
}

impl Failed {
    fn explain(self, uri: &str, copy: &Copy) -> Error {
        let uri = shown(uri);
        let folder = copy.folder.display();
        match self {
            Self::Read(error) => match error.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
                Some(ours) => ours.clone(),
                None if error.kind() == io::ErrorKind::UnexpectedEof => Error::config(format!(
                    "{uri}: the archive ends before its last block: it was cut off; copy it again"
                ))
                .with_source(error),
                None => Error::config(format!(
                    "{uri}: not a readable .tar.gz: {error}; it may be damaged: copy it again"
                ))
                .with_source(error),
            },
            Self::Bomb(most) => Error::config(format!(
                "{uri}: it unpacks to more than {most} bytes, over {RATIO_MAX} times its size, which no archive of audio \
                 clips does; it is damaged or hostile. If you trust it, unpack it yourself and open the .tar"
            )),
            Self::Write(error) if is_full(&error) => Error::new(
                ErrorKind::BadConfig,
                format!(
                    "{uri}: no space in {folder} for its seekable copy, which is as large as its content and leaves {} \
                     MiB free; free some space, or set FEEDSTOCK_CACHE to a folder on a larger disk",
                    SPARE_BYTES / MIB
                ),
            )
            .with_source(error),
            Self::Write(error) => Error::config(format!(
                "{uri}: its seekable copy cannot be written in {folder}: {error}; set FEEDSTOCK_CACHE to \
                 another folder"
            ))
            .with_source(error),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Counts the bytes that are read through it.
struct Counted<R> {
    inner: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

fn unpack(
    reader: impl Read,
    size: u64,
    to: &Path,
    told: &CatalogOptions,
    free: impl Fn() -> io::Result<u64>,
) -> Result<(), Failed> {
    const STAGE: &str = "unpacking the archive (MiB)";
    let most = size.saturating_mul(RATIO_MAX).max(ANY_RATIO_BYTES);
    let (mut written, mut looked_at) = (0_u64, None);
    let mut gzip =
        MultiGzDecoder::new(BufReader::with_capacity(WRITE_BYTES, Counted { inner: reader, read: 0 }));
    if gzip.get_mut().fill_buf().map_err(Failed::Read)?.is_empty() {
        return Err(Failed::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    let file = File::create(to).map_err(Failed::Write)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, file);
    let mut buffer = vec![0; WRITE_BYTES];
    loop {
        let read = match gzip.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failed::Read(e)),
        };
        written += read as u64;
        if written > most {
            return Err(Failed::Bomb(most));
        }
        if looked_at.is_none_or(|at| written - at >= LOOK_EVERY_BYTES) {
            looked_at = Some(written);
            if free().map_err(Failed::Write)? < SPARE_BYTES {
                return Err(Failed::Write(io::ErrorKind::StorageFull.into()));
            }
        }
        out.write_all(&buffer[..read]).map_err(Failed::Write)?;
        told.report(STAGE, gzip.get_ref().get_ref().read / MIB, Some(size.div_ceil(MIB)));
    }
    out.flush().map_err(Failed::Write)?;
    out.get_ref().sync_all().map_err(Failed::Write)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IoRuntime, Storage};
    use flate2::{Compression, write::GzEncoder};

    #[test]
    fn a_full_disk_is_told_with_the_folder_and_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("x.tar.gz");
        let mut encoder = GzEncoder::new(File::create(&at).unwrap(), Compression::fast());
        encoder.write_all(&vec![7; 3 * WRITE_BYTES]).unwrap();
        encoder.finish().unwrap();
        let io = IoRuntime::new().unwrap();
        let storage = Storage::new(StorageOptions::default(), io.clone()).unwrap();
        let (inner, uri) = (storage.clone(), at.to_str().unwrap().to_owned());
        let archive = io.block_on(async move { inner.head(&uri).await }).unwrap();
        let copy = Copy::of(&archive, folder.path().join("copies"), storage.options());
        let reader = storage.reader(&archive, READ_BYTES);
        let full = Path::new("/dev/full"); // every write to it fails: the disk is full
        let failed =
            unpack(reader, archive.size, full, &CatalogOptions::default(), || Ok(1 << 40)).err().unwrap();
        let error = failed.explain(&archive.uri, &copy);
        for part in ["x.tar.gz: no space in", "copies", "FEEDSTOCK_CACHE"] {
            assert!(error.message().contains(part), "{part} is missing in: {error}");
        }
    }

    /// A gzip file of `len` zeros.
    fn zeros(len: usize) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; len]).unwrap();
        encoder.finish().unwrap()
    }

    fn unpacked(gz: &[u8], to: &Path, free: impl Fn() -> io::Result<u64>) -> Result<u64, Failed> {
        unpack(gz, gz.len() as u64, to, &CatalogOptions::default(), free)?;
        Ok(fs::metadata(to).unwrap().len())
    }

    #[test]
    fn a_bomb_is_cut_at_the_largest_ratio() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("x.tar");
        let small = zeros(16 << 20);
        assert_eq!(unpacked(&small, &to, || Ok(1 << 40)).ok(), Some(16 << 20));
        let bomb = zeros(64 << 20);
        assert!(matches!(unpacked(&bomb, &to, || Ok(1 << 40)), Err(Failed::Bomb(_))));
        assert!(fs::metadata(&to).unwrap().len() <= 16 << 20);
    }

    #[test]
    fn a_disk_that_runs_full_ends_the_unpacking_before_it_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("x.tar");
        let is_full = |free: u64| match unpacked(&zeros(1 << 20), &to, || Ok(free)) {
            Err(Failed::Write(error)) => super::is_full(&error),
            _ => false,
        };
        assert!(is_full(SPARE_BYTES - 1) && !is_full(SPARE_BYTES));
        assert!(free_bytes(folder.path()).unwrap() > 0);
    }

    #[test]
    fn copies_are_told_apart_by_uri_and_version() {
        let file = |uri: &str, size, etag: &str| {
            let archive = ObjectRef { uri: uri.into(), size, etag: Some(etag.into()) };
            Copy::of(&archive, PathBuf::new(), &StorageOptions::default()).file
        };
        let one = file("s3://b/cv de.tar.gz", 1, "a");
        assert!(one.starts_with("cv_de-") && one.ends_with(".tar"), "{one}");
        let others = [
            file("s3://c/cv de.tar.gz", 1, "a"),
            file("s3://b/cv de.tar.gz", 2, "a"),
            file("s3://b/cv de.tar.gz", 1, "b"),
        ];
        assert!(!others.contains(&one));
    }

    #[test]
    fn a_query_tells_archives_apart_and_a_signature_does_not() {
        let stem = |uri: &str| {
            let archive = ObjectRef { uri: uri.into(), size: 1, etag: None };
            Copy::of(&archive, PathBuf::new(), &StorageOptions::default()).stem
        };
        let plain = stem("https://h/get.tar.gz?id=1");
        assert!(plain.starts_with("get-"), "{plain}");
        for same in [
            "https://h/get.tar.gz?id=1&X-Amz-Date=1&X-Amz-Signature=ab",
            "https://h/get.tar.gz?Expires=7&id=1&Signature=x&Key-Pair-Id=k",
            "https://h/get.tar.gz?X-Goog-Expires=7&id=1&X-Goog-Signature=x",
            "https://u:p@h/get.tar.gz?id=1&token=x",
            "https://h/get.tar.gz?sv=2024&sp=r&se=2026&id=1&sig=x%3D",
        ] {
            assert_eq!(stem(same), plain, "{same}");
        }
        for other in ["https://h/get.tar.gz?id=2", "https://h/get.tar.gz", "https://h/get.tar.gz?id=1&sp=2"] {
            assert_ne!(stem(other), plain, "{other}");
        }
        assert_ne!(stem("s3://b/x?1.tar.gz"), stem("s3://b/x?2.tar.gz"), "a key has no query");
    }

    #[test]
    fn a_bucket_is_told_by_its_endpoint_too() {
        let archive = ObjectRef { uri: "s3://b/x.tar.gz".into(), size: 1, etag: None };
        let stem = |storage: StorageOptions| Copy::of(&archive, PathBuf::new(), &storage).stem;
        let at = |endpoint: &str| StorageOptions::default().with("aws_endpoint", endpoint);
        assert_ne!(stem(at("http://one")), stem(at("http://two")));
        assert_eq!(stem(at("http://one")), stem(at("http://one").with("aws_secret_access_key", "secret")));
    }
}
