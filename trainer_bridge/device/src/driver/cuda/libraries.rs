//! NVIDIA's libraries beside the driver, found at run time: named by a variable, offered by the program, or known to the
//! system's loader.

use libloading::Library;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Files that the program found where the system does not look.
static OFFERED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Names files of NVIDIA's run-time compiler (libnvrtc) and JPEG decoder (libnvjpeg) that are not where the system looks
/// (Python packages bring them); they are tried before those that are, in this order, and passed over where the driver is
/// too old for them.
pub fn offer_libraries(files: Vec<PathBuf>) {
    *OFFERED.lock().unwrap_or_else(PoisonError::into_inner) = files; // stored whole
}

/// What was offered whose file name begins with `stem`, then `names`.
pub(super) fn candidates(stem: &str, names: &[&str]) -> Vec<OsString> {
    let is_one = |file: &&PathBuf| {
        file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(stem.as_bytes()))
    };
    let offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
    let offered: Vec<OsString> =
        offered.iter().filter(is_one).map(|file| file.clone().into_os_string()).collect();
    offered.into_iter().chain(names.iter().map(OsString::from)).collect()
}

/// The file that the variable `name` holds.
pub(super) fn named(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|file| !file.is_empty())
}

/// Loads a library of NVIDIA's by file or name.
pub(super) fn load(name: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: loads NVIDIA's library, whose initialisers do nothing of ours.
    unsafe { Library::new(Path::new(name)) }
}
