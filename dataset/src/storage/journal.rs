//! Stores the pages of a long listing in a file, so that an interrupted listing can be resumed.
//!
//! ```text
//! lister ─▶ page ─▶ line: CRC-32, span of keys, objects     next listing ─▶ lines ─▶ the rest of the keys is listed
//! ```
//! Lines are appended in any order, since each names the span that it covers: keys of one prefix above `after`, up to
//! `through`. The file is created after [`JOURNALED_PAGES`] pages and removed when the listing is complete. It is locked
//! while it is in use, so only one of several processes with the same listing writes it.
//!
//! As in every listing, each key has the state of the moment when its page was read. A file is resumed up to [`MAX_AGE`] after
//! its first page, however often it was resumed before. A file without additions for that long is removed when its catalog,
//! or a new one in the same cache, is opened.
//! Cost: about 80 bytes a key on disk until the listing is complete; 10⁷ keys take 0.8 GB.

use super::key_span::KeySpan;
use object_store::ObjectMeta;
use object_store::path::Path as Key;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The file is created after this many pages: 32,000 keys are listed in a few seconds, which is not worth a file.
pub(super) const JOURNALED_PAGES: usize = 32;
/// An older file is not resumed: objects may have been added or replaced since.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// A listing that was cancelled in this process may hold the file for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// The first line, with the version of this format and the place that it lists.
const HEAD: &str = "feedstock listing 2 of ";

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

    fn line(&self) -> io::Result<String> {
        let json = serde_json::to_string(self)?;
        Ok(format!("{:08x}{json}\n", crc32fast::hash(json.as_bytes())))
    }

    /// Parses a line; `None` if it was not written whole.
    fn of_line(line: &[u8]) -> Option<Self> {
        let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(8)?;
        let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
        (sum == crc32fast::hash(json)).then(|| serde_json::from_slice(json).ok()).flatten()
    }
}

/// The file of one listing.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    head: String,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Lines of the first pages.
    Pending(Vec<String>),
    Open(File),
    /// Another process has the file, the disk is full, or the listing is complete.
    Closed,
}

impl Journal {
    /// Opens the file at `path` for a listing of `place`, and reads the parts of an interrupted listing. Blocks.
    pub(super) fn open(path: &Path, place: &str) -> (Arc<Self>, Vec<Listed>) {
        let head = format!("{HEAD}{place}\n");
        let (state, found) = match read(path, &head) {
            Ok(Some((file, found))) => (State::Open(file), found),
            Ok(None) => (State::Closed, Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (State::Pending(Vec::new()), Vec::new()),
            Err(error) => {
                warn(path, &error);
                (State::Closed, Vec::new())
            }
        };
        (Arc::new(Self { path: path.to_owned(), head, state: Mutex::new(state) }), found)
    }

    /// Adds the keys of a page. Blocks.
    pub(super) fn add(&self, listed: &Listed) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *state, State::Closed);
        match self.with(before, listed) {
            Ok(after) => *state = after,
            Err(error) => {
                warn(&self.path, &error);
                let _absent = std::fs::remove_file(&self.path); // it lacks a page, and nothing would remove it later
            }
        }
    }

    fn with(&self, state: State, listed: &Listed) -> io::Result<State> {
        Ok(match state {
            State::Closed => State::Closed,
            State::Open(mut file) => {
                file.write_all(listed.line()?.as_bytes())?;
                State::Open(file)
            }
            State::Pending(mut lines) => {
                lines.push(listed.line()?);
                match lines.len() < JOURNALED_PAGES {
                    true => State::Pending(lines),
                    false => create(&self.path, &self.head, &lines)?.map_or(State::Closed, State::Open),
                }
            }
        })
    }

    /// Removes the file, since the listing is complete, or the file was of no use. Blocks.
    pub(super) fn remove(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Open(_) = *state
            && let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn(&self.path, &error);
        }
        *state = State::Closed;
    }
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "the listing is not stored; an interruption makes it start again");
}

/// Creates the file with its first lines; `None` if another process has it.
fn create(path: &Path, head: &str, lines: &[String]) -> io::Result<Option<File>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if !locked(&file)? || file.metadata()?.len() > 0 {
        return Ok(None);
    }
    begin(&file, head)?;
    lines.iter().try_for_each(|line| file.write_all(line.as_bytes()))?;
    Ok(Some(file))
}

/// Locks the file; `false` if another process has it. A file system without locks is an error, because another process could
/// write the file at the same time.
fn locked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => {
            let why =
                format!("the file cannot be locked, perhaps because the file system has no locks: {error}");
            Err(io::Error::new(error.kind(), why))
        }
    }
}

/// Removes the file at `path` if its listing can no longer be resumed and no process has it. Blocks.
pub(crate) fn remove_abandoned(path: &Path) -> io::Result<()> {
    // Open for writing, since NFS locks a file exclusively only then.
    let file = match OpenOptions::new().append(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_old = file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > MAX_AGE);
    match is_old && locked(&file)? {
        true => std::fs::remove_file(path),
        false => Ok(()),
    }
}

/// Writes the place that is listed, and the time in seconds since 1970.
fn begin(mut file: &File, head: &str) -> io::Result<()> {
    let now = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    file.write_all(format!("{head}{now}\n").as_bytes())
}

/// Whether a listing that began at `began`, a line of the file, may be resumed.
fn is_recent(began: &[u8]) -> bool {
    let seconds = std::str::from_utf8(began).ok().and_then(|line| line.trim_end().parse().ok());
    let began = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    began.is_some_and(|began| began.elapsed().is_ok_and(|age| age < MAX_AGE))
}

/// Reads a file's parts up to the first line that is not whole, and cuts that line off. `None` if another process has the file.
fn read(path: &Path, head: &str) -> io::Result<Option<(File, Vec<Listed>)>> {
    let file = OpenOptions::new().read(true).append(true).open(path)?;
    let began = Instant::now();
    while !locked(&file)? {
        if began.elapsed() > LOCK_WAIT {
            return Ok(None);
        }
        std::thread::sleep(LOCK_WAIT / 100);
    }
    let (mut reader, mut line, mut end, mut found) = (BufReader::new(&file), Vec::new(), 0, Vec::new());
    reader.read_until(b'\n', &mut line)?;
    let mut began = Vec::new();
    reader.read_until(b'\n', &mut began)?;
    let is_ours = line == head.as_bytes() && is_recent(&began);
    if is_ours {
        end = (line.len() + began.len()) as u64;
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            let Some(listed) = Listed::of_line(&line) else { break };
            end += line.len() as u64;
            found.push(listed);
        }
    }
    file.set_len(end)?;
    if !is_ours {
        begin(&file, head)?;
    }
    (&file).seek(SeekFrom::End(0))?;
    Ok(Some((file, found)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (journal, found) = Journal::open(path, "s3://b/d");
        assert!(found.is_empty());
        let key = |page: usize| format!("d/{page:03} ü\"\\.jpg");
        let spans: Vec<Listed> = (0..pages)
            .map(|page| {
                let before = page.checked_sub(1).map(key);
                span(before.as_deref(), Some(&key(page)), &[&key(page)])
            })
            .collect();
        spans.iter().for_each(|span| journal.add(span));
        spans
    }

    #[test]
    fn a_long_listing_is_read_back_and_a_short_one_has_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/listing.journal");
        filled(&path, JOURNALED_PAGES - 1);
        assert!(!path.exists());
        let spans = filled(&path, JOURNALED_PAGES + 3);
        let (journal, found) = Journal::open(&path, "s3://b/d");
        assert_eq!(found, spans);
        let more = span(Some("e"), None, &[]);
        journal.add(&more);
        drop(journal);
        let (journal, found) = Journal::open(&path, "s3://b/d");
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
        let spans = filled(&path, JOURNALED_PAGES);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let (journal, found) = Journal::open(&path, "s3://b/d");
        assert_eq!(found, spans[..spans.len() - 1]);
        journal.add(&spans[spans.len() - 1]);
        drop(journal);
        assert_eq!(std::fs::read(&path).unwrap(), whole, "the cut line is gone");
        let mut damaged = whole.clone();
        let middle = whole.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let found = Journal::open(&path, "s3://b/d").1;
        assert!(!found.is_empty() && found.len() < spans.len());
        assert_eq!(found, spans[..found.len()]);
    }

    #[test]
    fn abandoned_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("listing.journal");
        remove_abandoned(&path).unwrap();
        filled(&path, JOURNALED_PAGES);
        remove_abandoned(&path).unwrap();
        assert!(path.exists(), "it can be resumed");
        let touch = |file: &File| file.set_modified(std::time::SystemTime::now() - 2 * MAX_AGE).unwrap();
        let (journal, _) = Journal::open(&path, "s3://b/d");
        touch(&File::options().append(true).open(&path).unwrap());
        remove_abandoned(&path).unwrap();
        assert!(path.exists(), "it is in use");
        drop(journal);
        remove_abandoned(&path).unwrap();
        assert!(!path.exists());
    }

    /// A descriptor of a path alone cannot be locked, like files on a network file system without locks.
    #[test]
    fn a_file_that_cannot_be_locked_is_not_taken_for_one_in_use() {
        use std::os::unix::fs::OpenOptionsExt;
        const O_PATH: i32 = 0o10_000_000;
        let path_only = OpenOptions::new().read(true).custom_flags(O_PATH).open("/").unwrap();
        let error = locked(&path_only).unwrap_err();
        assert!(error.to_string().contains("cannot be locked"), "{error}");
    }

    #[test]
    fn files_of_other_listings_old_ones_and_those_in_use_are_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("listing.journal");
        filled(&path, JOURNALED_PAGES);
        let (first, found) = Journal::open(&path, "s3://b/d");
        assert_eq!(found.len(), JOURNALED_PAGES);
        let (second, found) = Journal::open(&path, "s3://b/d");
        assert!(found.is_empty(), "another process has it");
        second.add(&span(None, None, &["d/x"]));
        second.remove();
        drop(second);
        drop(first);
        assert_eq!(Journal::open(&path, "s3://b/d").1.len(), JOURNALED_PAGES);
        let text = std::fs::read_to_string(&path).unwrap();
        let began = text.lines().nth(1).unwrap();
        let earlier = began.parse::<u64>().unwrap() - 2 * MAX_AGE.as_secs();
        std::fs::write(&path, text.replacen(began, &earlier.to_string(), 1)).unwrap();
        assert!(Journal::open(&path, "s3://b/d").1.is_empty(), "too old");
        assert!(Journal::open(&path, "s3://b/d").1.is_empty(), "and it was emptied");
        std::fs::remove_file(&path).unwrap();
        filled(&path, JOURNALED_PAGES);
        assert!(Journal::open(&path, "s3://b/other").1.is_empty());
    }
}
