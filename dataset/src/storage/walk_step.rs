//! The steps of a walk through folders: reading a folder's names, and checking a path.

use super::failure::Fault;
use super::local::{Found, TEMP_MARK, found};
use super::progress::Progress;
use super::seen::Seen;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads a file's metadata; another function in tests.
pub(crate) type StatFn = fn(&str) -> io::Result<Metadata>;

/// What receives a walk's progress, and what stops the walk.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) progress: Arc<Progress>,
    pub(crate) seen: Arc<Seen>,
    /// Whether no caller waits for the result any more.
    pub(crate) is_abandoned: Arc<AtomicBool>,
    pub(crate) stat: StatFn,
}

/// What is at a path.
pub(super) enum There {
    File(Found),
    Folder,
    /// Neither a file nor a folder, or it no longer exists.
    Nothing,
}

impl Watch {
    fn goes_on(&self) -> Result<(), Fault> {
        match self.is_abandoned.load(Ordering::Relaxed) {
            true => Err(Fault::Refused("the walk was abandoned".into())),
            false => Ok(()),
        }
    }

    /// Counts a name of a folder as read. Progress is counted in names, because a large folder has them long before its files
    /// are checked.
    fn on_name(&self) -> Result<(), Fault> {
        self.progress.add(1);
        self.goes_on()
    }

    pub(super) fn look(&self, path: String) -> Result<There, Fault> {
        self.progress.add(0);
        self.seen.add(1);
        self.goes_on()?;
        match (self.stat)(&path) {
            Ok(meta) if meta.is_file() => Ok(There::File(found(path, &meta))),
            Ok(meta) if meta.is_dir() => Ok(There::Folder),
            Ok(_) => Ok(There::Nothing), // a socket or device
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(There::Nothing), // removed meanwhile, or a dangling link
            Err(e) => Err(named(&path, e)),
        }
    }
}

/// Returns the fault. If access is denied, its text names the path: a listing's error names only the listing's root.
fn named(path: &str, error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Fault::Io(io::Error::new(error.kind(), format!("{path}: {error}")))
        }
        _ => error.into(),
    }
}

/// A folder and those above it, by (device, inode), so that a link to one of them ends the walk.
pub(super) struct Above {
    id: (u64, u64),
    next: Option<Arc<Above>>,
}

/// Enters `folder` below `above`.
pub(super) fn enter(folder: &str, above: Option<Arc<Above>>) -> Result<Arc<Above>, Fault> {
    let meta = fs::metadata(folder)?;
    let id = (meta.dev(), meta.ino());
    let mut next = above.as_ref();
    while let Some(one) = next {
        if one.id == id {
            return Err(Fault::Refused(format!(
                "{folder} links to a folder that contains it; remove the link"
            )));
        }
        next = one.next.as_ref();
    }
    Ok(Arc::new(Above { id, next: above }))
}

pub(super) fn below(folder: &str, name: &str) -> String {
    if folder == "/" { format!("/{name}") } else { format!("{folder}/{name}") }
}

/// Calls `on_name` with each name in `folder` and whether it is a subfolder. Links are not followed.
pub(super) fn read(folder: &str, watch: &Watch, mut on_name: impl FnMut(String, bool)) -> Result<(), Fault> {
    for entry in fs::read_dir(folder).map_err(|e| named(folder, e))? {
        let entry = entry?;
        watch.on_name()?;
        let name = entry.file_name().into_string().map_err(|name| {
            Fault::Refused(format!("{folder}: the file name {name:?} is not UTF-8; rename it"))
        })?;
        if !name.contains(TEMP_MARK) {
            on_name(name, entry.file_type()?.is_dir());
        }
    }
    Ok(())
}
