//! Loads NVIDIA's libraries other than the driver at run time. Each is named by an environment variable, offered by the
//! program, or known to the system's loader.

use libloading::Library;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Files that the program found outside the system's search path.
static OFFERED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Offers files of NVIDIA's run-time compiler (libnvrtc) and JPEG decoder (libnvjpeg) outside the system's search path, such
/// as those of Python packages. They are tried in this order, before the system's libraries. A file that is too new for the
/// driver is skipped.
pub fn offer_libraries(files: Vec<PathBuf>) {
    *OFFERED.lock().unwrap_or_else(PoisonError::into_inner) = files; // a single store
}

/// Returns the offered files whose name begins with `stem`, then `names`.
pub(super) fn candidates(stem: &str, names: &[&str]) -> Vec<OsString> {
    let is_one = |file: &&PathBuf| {
        file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(stem.as_bytes()))
    };
    let offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
    let offered: Vec<OsString> =
        offered.iter().filter(is_one).map(|file| file.clone().into_os_string()).collect();
    offered.into_iter().chain(names.iter().map(OsString::from)).collect()
}

/// Returns the file that the environment variable `name` holds.
pub(super) fn named(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|file| !file.is_empty())
}

/// Loads a library of NVIDIA by file or name.
pub(super) fn load(name: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: loads NVIDIA's library, whose initialisers do not touch feedstock.
    unsafe { Library::new(Path::new(name)) }
}
