//! Members of tars, found once by walking headers.

pub(super) mod header;
pub(super) mod index;
mod index_full;
pub(super) mod index_offsets;
pub(super) mod index_read;
pub(super) mod recognise;

use super::cataloguing::Cataloguing;
use super::finished::Finished;
use super::guard::guarded;
use crate::storage::local_error;
use crate::{Error, IoRuntime, ObjectRef, Result, Storage};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::error::Error as StdError;
use std::io::{self, Read, Seek, SeekFrom};

/// In object storage a request costs as much time as a megabyte. So headers are walked through buffers that read through
/// payloads up to that size and skip larger ones ([`Storage::hopping_reader`]). If the large members of a tar have more
/// than 1 MiB, less than 5 % of it is read as long as the small members between two of them, with their headers, have at
/// most 1/32 of the large one's bytes. Local files are walked directly: a seek and a read of 512 bytes a member.
const REMOTE_BUFFER_BYTES: usize = 1 << 20;
/// `.json`, `.cls` and `.txt` members are held in memory; a larger one is a mistake.
pub(super) const MAX_TEXT_MEMBER_BYTES: u64 = 16 << 20;
/// A tar consists of records: a header is one, and contents are padded to whole ones.
pub(super) const RECORD_BYTES: u64 = 512;

/// One file in a tar.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    /// Where its bytes begin in the object.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Its content, if `keep` selected it.
    pub(super) text: Option<Vec<u8>>,
}

/// The content of a member as a stored list has it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.text.as_deref().map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Text::Utf8(text.into()),
            Err(_) => Text::Bytes(bytes.into()),
        });
        (&self.name, self.offset, self.bytes, text).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (name, offset, bytes, text) = <(String, u64, u64, Option<Text<'_>>)>::deserialize(deserializer)?;
        let text = text.map(|text| match text {
            Text::Utf8(text) => text.into_owned().into_bytes(),
            Text::Bytes(bytes) => bytes.into_owned(),
        });
        Ok(Self { name, offset, bytes, text })
    }
}

/// What a walk found.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) members: Vec<Member>,
    /// Whether the walk ended at the end of the range, not at an end marker in it.
    pub(super) to_end: bool,
}

/// As [`members`], for a catalog: does not walk a tar again that an interrupted build has walked.
pub(super) async fn members_once(
    object: &ObjectRef,
    range: std::ops::Range<u64>,
    with: &Cataloguing<'_>,
) -> Result<Vec<Member>> {
    let walk = members(object, range.clone(), |_| false, with.storage);
    Finished::or_read(with.finished, object, range, walk).await
}

/// Walks the tar at `range` of an object, off the I/O threads; `keep` selects the members whose content is returned.
pub(super) async fn members(
    object: &ObjectRef,
    range: std::ops::Range<u64>,
    keep: fn(&str) -> bool,
    storage: &Storage,
) -> Result<Vec<Member>> {
    let walked = walk_range(object, range.clone(), keep, storage).await?;
    // Two empty records end a tar. Some writers leave them out, and a cut at a member's edge removes them.
    if walked.to_end {
        let last = walked.members.last().map_or("", |m| m.name.as_str());
        tracing::warn!(
            last,
            members = walked.members.len(),
            "a tar has no end marker after its last member; it may be cut off"
        );
    }
    Ok(walked.members)
}

/// As [`members`], for a part of a tar that need not have an end marker.
pub(super) async fn walk_range(
    object: &ObjectRef,
    range: std::ops::Range<u64>,
    keep: fn(&str) -> bool,
    storage: &Storage,
) -> Result<Walked> {
    let mut walked = walk_parts(object, vec![range], keep, storage).await?;
    walked.pop().ok_or_else(|| Error::new(crate::ErrorKind::Bug, "a part of a tar was not walked"))
}

/// As [`walk_range`], for several parts in their order, with one reader.
pub(super) async fn walk_parts(
    object: &ObjectRef,
    parts: Vec<std::ops::Range<u64>>,
    keep: fn(&str) -> bool,
    storage: &Storage,
) -> Result<Vec<Walked>> {
    let Some(path) = storage.local_path(&object.uri) else {
        return walk_off(storage.hopping_reader(object, REMOTE_BUFFER_BYTES), parts, keep, object, storage)
            .await;
    };
    // One read through storage checks that the file is still the one that was listed.
    if let Some(first) = parts.first() {
        storage.read(object, first.start..first.end.min(first.start + 1)).await?;
    }
    let file = std::fs::File::open(&path).map_err(|error| explain(error, object))?;
    walk_off(file, parts, keep, object, storage).await
}

/// Walks off the I/O threads.
async fn walk_off<R: Read + Seek + Send + 'static>(
    mut reader: R,
    parts: Vec<std::ops::Range<u64>>,
    keep: fn(&str) -> bool,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<Vec<Walked>> {
    let object = object.clone();
    blocking(storage.io(), move || {
        parts.iter().map(|range| walk_part(&mut reader, range.start, range, keep, &object)).collect()
    })
    .await
}

/// Walks a part of a tar that was read: its `bytes` begin at `start`.
pub(super) fn walk_bytes(bytes: &Bytes, start: u64, object: &ObjectRef) -> Result<Walked> {
    let range = start..start + bytes.len() as u64;
    walk_part(&mut io::Cursor::new(bytes.as_ref()), 0, &range, |_| false, object)
}

/// Walks the part at `range` of an object, which begins at `at` of the reader.
fn walk_part(
    reader: &mut (impl Read + Seek),
    at: u64,
    range: &std::ops::Range<u64>,
    keep: fn(&str) -> bool,
    object: &ObjectRef,
) -> Result<Walked> {
    let length = range.end - range.start;
    let part = Part { reader, start: at, end: at + length, position: 0, to_end: false };
    let walked = guarded(|| Ok::<_, String>(walk(part, range, keep)));
    let walked = walked.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    walked.map_err(|error| explain(error, object))
}

/// Runs blocking work off the threads that drive requests.
pub(super) async fn blocking<T: Send + 'static>(
    io: &IoRuntime,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    io.handle().spawn_blocking(work).await.unwrap_or_else(|e| {
        Err(Error::new(crate::ErrorKind::Bug, format!("a cataloguing task ended without a result: {e}")))
    })
}

/// Returns the error of storage or of the file system that caused `error`, if there is one; else the tar is damaged.
fn explain(error: io::Error, object: &ObjectRef) -> Error {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(this) = cause {
        if let Some(ours) = this.downcast_ref::<Error>() {
            return ours.clone();
        }
        cause = match this.downcast_ref::<io::Error>() {
            Some(io) => match io.raw_os_error() {
                Some(code) => return local_error(&object.uri, io::Error::from_raw_os_error(code)),
                None => io.get_ref().map(|inner| inner as &(dyn StdError + 'static)),
            },
            None => this.source(),
        };
    }
    Error::damage(format!(
        "{}: not a readable tar ({} bytes): {error}; it may be truncated: copy it again",
        object.uri, object.size
    ))
    .with_source(error)
}

fn walk<R: Read + Seek>(
    part: Part<R>,
    range: &std::ops::Range<u64>,
    keep: fn(&str) -> bool,
) -> io::Result<Walked> {
    let length = range.end - range.start;
    if length < RECORD_BYTES {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty or has no whole header"));
    }
    let mut archive = tar::Archive::new(part);
    let mut members = Vec::new();
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let (offset, bytes) = (entry.raw_file_position(), entry.size());
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            let what = format!("member {name} ends past the end: the tar was cut off");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let kind = entry.header().entry_type();
        if kind.is_gnu_sparse() {
            return Err(io::Error::other(format!("member {name} is sparse, which is not read")));
        }
        if !kind.is_file() && !kind.is_contiguous() {
            continue;
        }
        let mut text = None;
        if keep(&name) {
            if bytes > MAX_TEXT_MEMBER_BYTES {
                let what =
                    format!("member {name} has {bytes} bytes; the limit for text is {MAX_TEXT_MEMBER_BYTES}");
                return Err(io::Error::other(what));
            }
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            text = Some(content);
        }
        members.push(Member { name, offset: range.start + offset, bytes, text });
    }
    Ok(Walked { members, to_end: archive.into_inner().to_end })
}

/// A part of an object as a file: an inner tar.
struct Part<R> {
    reader: R,
    start: u64,
    end: u64,
    position: u64,
    /// Whether a read found nothing left.
    to_end: bool,
}

impl<R: Read + Seek> Read for Part<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = (self.end - self.start).saturating_sub(self.position);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            self.to_end |= left == 0;
            return Ok(0);
        }
        self.reader.seek(SeekFrom::Start(self.start + self.position))?;
        let read = self.reader.read(&mut buffer[..wanted])?;
        self.position += read as u64;
        Ok(read)
    }
}

impl<R: Read + Seek> Seek for Part<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => (self.end - self.start).checked_add_signed(by),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// A tar that ends in the middle with an error of the reader.
    struct Broken(io::Cursor<Vec<u8>>, fn() -> io::Error);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err((self.1)()),
                read => Ok(read),
            }
        }
    }

    impl Seek for Broken {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// A transient fault must not look like damage, which may leave the tar out of the data set.
    #[test]
    fn a_failed_read_is_no_damage() {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(700);
        tar.append_data(&mut header, "0.jpg", [1; 700].as_slice()).unwrap();
        let bytes = tar.into_inner().unwrap();
        let object = ObjectRef { uri: "x.tar".into(), size: 1 << 20, etag: None };
        let of = |fails: fn() -> io::Error, bytes: &[u8]| {
            let reader = Broken(io::Cursor::new(bytes.to_vec()), fails);
            let part = Part { reader, start: 0, end: object.size, position: 0, to_end: false };
            explain(walk(part, &(0..object.size), |_| false).unwrap_err(), &object)
        };
        const EIO: i32 = 5;
        for bytes in [&bytes[..1536], &bytes[..1024], &bytes[..100]] {
            let error = of(|| io::Error::from_raw_os_error(EIO), bytes);
            assert_eq!((error.kind(), error.is_damage()), (ErrorKind::Retryable, false), "{error}");
            let error = of(|| io::Error::other(Error::new(ErrorKind::Denied, "no access")), bytes);
            assert_eq!((error.kind(), error.is_damage()), (ErrorKind::Denied, false), "{error}");
        }
        let error = of(|| io::Error::from(io::ErrorKind::UnexpectedEof), &bytes[..1536]);
        assert!(error.is_damage() && error.message().contains("x.tar"), "{error}");
    }
}
