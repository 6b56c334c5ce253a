//! Stores the parts of a long piece of work in a file, so that it can be resumed after an interruption.
//!
//! ```text
//! part ─▶ line: CRC-32, JSON      after an interruption ─▶ lines ─▶ only the rest of the work is done
//! ```
//! Lines are appended in any order, since each names its part. The file is created once the parts are worth it
//! ([`JournalKind::begins_at`]) and removed when the work is complete. It is locked while it is in use, so only one of several
//! processes that do the same work writes it.
//!
//! A file is resumed up to [`JournalKind::max_age`] after its first part, however often it was resumed before. A file without
//! additions for that long is removed when its catalog, or a new one in the same cache, is opened.

use serde::Serialize;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Work that was cancelled in this process may hold the file for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// The CRC-32 of a line, in hexadecimal.
const SUM_BYTES: usize = 8;

/// What a journal is of, and its limits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JournalKind {
    /// In log messages, as in "the listing is not stored".
    pub(crate) what: &'static str,
    /// The file is created when the weights of the parts add up to this.
    pub(crate) begins_at: u64,
    /// Parts are no longer added to a file of this size.
    pub(crate) max_bytes: u64,
    /// An older file is not resumed.
    pub(crate) max_age: Duration,
}

/// The file of one piece of work.
#[derive(Debug)]
pub(crate) struct Journal {
    kind: &'static JournalKind,
    path: PathBuf,
    head: String,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Lines of the first parts, and the sum of their weights.
    Pending(Vec<String>, u64),
    Open(File),
    /// Another process has the file, the disk is full, or the work is complete.
    Closed,
}

impl Journal {
    /// Opens the file at `path` and passes the parts of interrupted work to `visit`: each part's JSON, and where it is in the
    /// file. `head` names the work and the version of its parts; a file with another head is emptied. What follows a part
    /// that `visit` does not take is cut off. Blocks.
    pub(crate) fn open(
        kind: &'static JournalKind,
        path: &Path,
        head: &str,
        visit: impl FnMut(&[u8], Range<u64>) -> bool,
    ) -> Arc<Self> {
        let head = format!("feedstock {head}\n");
        let state = match read(kind, path, &head, visit) {
            Ok(Some(file)) => State::Open(file),
            Ok(None) => State::Closed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::Pending(Vec::new(), 0),
            Err(error) => {
                warn(kind, path, &error);
                State::Closed
            }
        };
        Arc::new(Self { kind, path: path.to_owned(), head, state: Mutex::new(state) })
    }

    /// Adds a part. Blocks.
    pub(crate) fn add(&self, part: &impl Serialize, weight: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *state, State::Closed);
        match self.with(before, part, weight) {
            Ok(after) => *state = after,
            Err(error) => {
                warn(self.kind, &self.path, &error);
                let _absent = std::fs::remove_file(&self.path); // it lacks a part, and nothing would remove it later
            }
        }
    }

    fn with(&self, state: State, part: &impl Serialize, weight: u64) -> io::Result<State> {
        Ok(match state {
            State::Closed => State::Closed,
            State::Open(mut file) => {
                let line = line(part)?;
                if file.metadata()?.len() + line.len() as u64 <= self.kind.max_bytes {
                    file.write_all(line.as_bytes())?;
                }
                State::Open(file)
            }
            State::Pending(mut lines, before) => {
                lines.push(line(part)?);
                match before.saturating_add(weight) {
                    sum if sum < self.kind.begins_at => State::Pending(lines, sum),
                    _ => create(&self.path, &self.head, &lines)?.map_or(State::Closed, State::Open),
                }
            }
        })
    }

    /// Returns the JSON of a part that is at `place` of the file; `None` if the file changed. Blocks.
    pub(crate) fn part(&self, place: Range<u64>) -> Option<Vec<u8>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Open(file) = &*state else { return None };
        let mut line = vec![0; usize::try_from(place.end.checked_sub(place.start)?).ok()?];
        file.read_exact_at(&mut line, place.start).ok()?;
        json_of(&line).map(<[u8]>::to_vec)
    }

    /// Removes the file, since the work is complete, or the file was of no use. Blocks.
    pub(crate) fn remove(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Open(_) = *state
            && let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn(self.kind, &self.path, &error);
        }
        *state = State::Closed;
    }
}

fn line(part: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(part)?;
    Ok(format!("{:08x}{json}\n", crc32fast::hash(json.as_bytes())))
}

/// Returns the JSON of a line; `None` if the line was not written whole.
fn json_of(line: &[u8]) -> Option<&[u8]> {
    let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(SUM_BYTES)?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32fast::hash(json)).then_some(json)
}

fn warn(kind: &JournalKind, path: &Path, error: &io::Error) {
    let what = kind.what;
    tracing::warn!(path = %path.display(), %error, "the {what} is not stored; an interruption makes it start again");
}

/// Creates the file with its first lines; `None` if another process has it.
fn create(path: &Path, head: &str, lines: &[String]) -> io::Result<Option<File>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
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

/// Removes the file at `path` if its work can no longer be resumed and no process has it. Blocks.
pub(crate) fn remove_abandoned(kind: &JournalKind, path: &Path) -> io::Result<()> {
    // Open for writing, since NFS locks a file exclusively only then.
    let file = match OpenOptions::new().append(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_old = file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > kind.max_age);
    match is_old && locked(&file)? {
        true => std::fs::remove_file(path),
        false => Ok(()),
    }
}

/// Writes what the work is, and the time in seconds since 1970.
fn begin(mut file: &File, head: &str) -> io::Result<()> {
    let now = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    file.write_all(format!("{head}{now}\n").as_bytes())
}

/// Whether work that began at `began`, a line of the file, may be resumed.
fn is_recent(kind: &JournalKind, began: &[u8]) -> bool {
    let seconds = std::str::from_utf8(began).ok().and_then(|line| line.trim_end().parse().ok());
    let began = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    began.is_some_and(|began| began.elapsed().is_ok_and(|age| age < kind.max_age))
}

/// Reads a file's parts up to the first line that is not whole, and cuts that line off. `None` if another process has the file.
fn read(
    kind: &JournalKind,
    path: &Path,
    head: &str,
    mut visit: impl FnMut(&[u8], Range<u64>) -> bool,
) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).append(true).open(path)?;
    let began = Instant::now();
    while !locked(&file)? {
        if began.elapsed() > LOCK_WAIT {
            return Ok(None);
        }
        std::thread::sleep(LOCK_WAIT / 100);
    }
    let (mut reader, mut line, mut end) = (BufReader::new(&file), Vec::new(), 0);
    reader.read_until(b'\n', &mut line)?;
    let mut began = Vec::new();
    reader.read_until(b'\n', &mut began)?;
    let is_ours = line == head.as_bytes() && is_recent(kind, &began);
    if is_ours {
        end = (line.len() + began.len()) as u64;
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            let place = end..end + line.len() as u64;
            if !json_of(&line).is_some_and(|json| visit(json, place.clone())) {
                break;
            }
            end = place.end;
        }
    }
    file.set_len(end)?;
    if !is_ours {
        begin(&file, head)?;
    }
    (&file).seek(SeekFrom::End(0))?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A descriptor of a path alone cannot be locked, like files on a network file system without locks.
    #[test]
    fn a_file_that_cannot_be_locked_is_not_taken_for_one_in_use() {
        use std::os::unix::fs::OpenOptionsExt;
        const O_PATH: i32 = 0o10_000_000;
        let path_only = OpenOptions::new().read(true).custom_flags(O_PATH).open("/").unwrap();
        let error = locked(&path_only).unwrap_err();
        assert!(error.to_string().contains("cannot be locked"), "{error}");
    }
}
