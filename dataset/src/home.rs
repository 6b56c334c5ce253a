//! The cache folder: `$FEEDSTOCK_CACHE`, else the user's cache, `$XDG_CACHE_HOME/feedstock` or `~/.cache/feedstock`. Only
//! the user may read the user's cache: catalogs hold labels and file names.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Returns a folder of feedstock's cache, such as `catalogs`; `None` if no variable names a cache or a home.
pub fn cache_folder(name: &str) -> Option<PathBuf> {
    let chosen = set("FEEDSTOCK_CACHE").map(PathBuf::from);
    Some(chosen.or_else(users_cache)?.join(name))
}

/// Creates `folder` with mode 0700 if it is in the user's cache, and the cache's folders above it. A folder that all users
/// may enter, as earlier releases made it, becomes 0700; one that only its group may enter keeps its mode. Other folders
/// follow the umask when they are written to.
pub fn make_private(folder: &Path) {
    let Some(cache) = users_cache().filter(|cache| folder.starts_with(cache)) else { return };
    if let Err(error) = create(&cache, folder) {
        // Writing there fails later, with an error that states why.
        tracing::debug!(folder = %folder.display(), %error, "the cache folder could not be created");
    }
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn users_cache() -> Option<PathBuf> {
    users_cache_of(set("XDG_CACHE_HOME"), set("HOME"))
}

/// A relative `XDG_CACHE_HOME` is ignored, as its specification requires.
fn users_cache_of(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let xdg = xdg.map(PathBuf::from).filter(|folder| folder.is_absolute());
    Some(xdg.or_else(|| Some(PathBuf::from(home?).join(".cache")))?.join("feedstock"))
}

/// Creates `folder` and those above it, from `cache` on.
fn create(cache: &Path, folder: &Path) -> io::Result<()> {
    if let Some(above) = cache.parent() {
        std::fs::create_dir_all(above)?;
    }
    let mut folders: Vec<_> = folder.ancestors().take_while(|above| above.starts_with(cache)).collect();
    folders.reverse();
    folders.into_iter().try_for_each(create_one)
}

fn create_one(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let mode = std::fs::metadata(folder)?.permissions().mode();
    if mode & 0o007 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    tracing::info!(folder = %folder.display(), "all users could enter the cache folder; its mode is 0700 now");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(folder: &Path) -> u32 {
        std::fs::metadata(folder).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_users_cache_is_its_users_alone() {
        let home = tempfile::tempdir().unwrap();
        let cache = home.path().join(".cache/feedstock");
        let catalogs = cache.join("catalogs");
        create(&cache, &catalogs).unwrap();
        assert_eq!((mode(&cache), mode(&catalogs)), (0o700, 0o700));
        std::fs::set_permissions(&cache, Permissions::from_mode(0o750)).unwrap();
        std::fs::set_permissions(&catalogs, Permissions::from_mode(0o755)).unwrap();
        create(&cache, &catalogs).unwrap();
        assert_eq!(mode(&cache), 0o750, "a mode that was chosen stays");
        assert_eq!(mode(&catalogs), 0o700, "earlier releases let all users enter it");
    }

    #[test]
    fn the_users_cache_is_where_the_desktops_specification_puts_it() {
        let at = |xdg: Option<&str>, home: Option<&str>| {
            users_cache_of(xdg.map(OsString::from), home.map(OsString::from))
        };
        assert_eq!(at(None, Some("/home/u")), Some("/home/u/.cache/feedstock".into()));
        assert_eq!(at(Some("/fast"), Some("/home/u")), Some("/fast/feedstock".into()));
        assert_eq!(at(Some("fast"), Some("/home/u")), Some("/home/u/.cache/feedstock".into()));
        assert_eq!(at(None, None), None);
    }
}
