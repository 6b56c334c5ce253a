//! The default cache folder, `~/.cache/feedstock`, which only its user may read: catalogs hold labels and names of files.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// `~/.cache/feedstock`; `None` without a home.
pub(crate) fn default_cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".cache/feedstock"))
}

/// Makes the default cache folder with mode 0700 if `folder` is in it and it is not there yet. Other folders follow the umask
/// when they are written to.
pub(crate) fn make_private(folder: &Path) {
    let Some(cache) = default_cache().filter(|cache| folder.starts_with(cache)) else { return };
    if let Err(error) = create(&cache) {
        // Writing there fails later, with an error that states why.
        tracing::debug!(cache = %cache.display(), %error, "the cache folder could not be created");
    }
}

fn create(cache: &Path) -> io::Result<()> {
    if let Some(above) = cache.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(cache) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_default_cache_is_its_users_alone() {
        let home = tempfile::tempdir().unwrap();
        let cache = home.path().join(".cache/feedstock");
        let mode = || std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777;
        create(&cache).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o750)).unwrap();
        create(&cache).unwrap();
        assert_eq!(mode(), 0o750, "a mode that was chosen stays");
    }
}
