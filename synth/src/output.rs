//! The target folder and its files.

use crate::{Error, Locale, Result};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Totals of the files written so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// A folder with only files of this crate.
pub(crate) struct Target {
    root: PathBuf,
}

impl Target {
    /// Creates the folder, or checks that it is empty. With `overwrite`, removes earlier sample data.
    pub(crate) fn prepare(root: &Path, overwrite: bool) -> Result<Self> {
        fs::create_dir_all(root).map_err(|e| Error::write(root, e))?;
        let entries = fs::read_dir(root).map_err(|e| Error::write(root, e))?;
        let names: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()
            .map_err(|e| Error::write(root, e))?;
        if !names.is_empty() && !overwrite {
            return Err(Error::config(format!(
                "{} is not empty: choose another folder, or replace earlier sample data with force",
                root.display()
            )));
        }
        if let Some(foreign) = names.iter().find(|path| !is_sample_data(path)) {
            return Err(Error::config(format!(
                "{} is not sample data, so nothing in {} is replaced: choose another folder",
                foreign.display(),
                root.display()
            )));
        }
        for path in names {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|e| Error::write(&path, e))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Returns a folder whose files are links that a test has created.
    #[cfg(test)]
    pub(crate) fn unchecked(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Creates a folder below the target.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(|e| Error::write(&path, e))?;
        Ok(path)
    }

    /// Creates a file; `name` may contain folders that exist. The file gets this name in [`OutFile::close`].
    pub(crate) fn file(&self, name: &str) -> Result<OutFile> {
        let path = self.root.join(name);
        let unfinished = Unfinished(unfinished(&path));
        let file = File::create(&unfinished.0).map_err(|e| Error::write(&path, e))?;
        Ok(OutFile { file: BufWriter::with_capacity(1 << 20, file), unfinished, path })
    }
}

/// Suffix of files that are being written. Their names begin with a dot, so that they are not read as data.
const UNFINISHED: &str = ".unfinished";

/// Returns the path of the file `path` until it is complete.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{UNFINISHED}"))
}

/// Returns the name that an unfinished file would have if its run had not been interrupted.
fn finished(name: &str) -> &str {
    name.strip_prefix('.').and_then(|name| name.strip_suffix(UNFINISHED)).unwrap_or(name)
}

/// Returns whether an entry of the target's root is one that this crate writes.
fn is_sample_data(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()).map(finished) else { return false };
    let stem = |prefix: &str, suffix: &str| name.starts_with(prefix) && name.ends_with(suffix);
    if path.is_dir() {
        let class = name.len() == 9 && name.starts_with('n') && name[1..].bytes().all(|b| b.is_ascii_digit());
        // These names are common, so the content decides.
        let languages = matches!(name, "audio" | "transcript") && holds_only(path, is_locale);
        let language =
            is_locale(name) && holds_only(path, |name| name == "clips" || finished(name).ends_with(".tsv"));
        return class || name == "data" || languages || language;
    }
    matches!(name, "dataset_info.json" | "state.json" | "n_shards.json" | "ILSVRC2012_img_train.tar")
        || stem("data-", ".arrow")
        || stem("imagenet-train-", ".tar")
        || stem("common-voice-", ".tar")
        || stem("cv-corpus-", ".tar.gz")
}

fn is_locale(name: &str) -> bool {
    Locale::ALL.into_iter().any(|locale| locale.name() == name)
}

fn holds_only(folder: &Path, known: impl Fn(&str) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.into_iter().all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(&known)))
}

/// A buffered file whose errors name it. An interrupted run leaves no incomplete file under its name.
pub(crate) struct OutFile {
    file: BufWriter<File>,
    unfinished: Unfinished,
    path: PathBuf,
}

/// A file that is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _renamed_or_never_made = fs::remove_file(&self.0);
    }
}

impl OutFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes the file, gives it its name, and adds it to `written`.
    pub(crate) fn close(self, written: &mut Written) -> Result<()> {
        let Self { file, unfinished, path } = self;
        let file = file.into_inner().map_err(|e| Error::write(&path, e.into_error()))?;
        let size = file.metadata().map_err(|e| Error::write(&path, e))?.len();
        fs::rename(&unfinished.0, &path).map_err(|e| Error::write(&path, e))?;
        written.files += 1;
        written.bytes += size;
        Ok(())
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for OutFile {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        self.file.seek(place)
    }
}
