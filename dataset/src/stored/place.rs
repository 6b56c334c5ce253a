//! Where one catalog is stored.

use super::index::INDEX;
use crate::{ErrorKind, Result, Storage};

/// The folder of one stored catalog.
pub(crate) struct Place {
    folder: String,
    cache: bool,
}

impl Place {
    /// Returns the place at `folder`, in the cache or next to the data.
    pub(crate) fn new(folder: String, cache: bool) -> Self {
        Self { folder, cache }
    }

    pub(crate) fn is_cache(&self) -> bool {
        self.cache
    }

    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    /// Whether a catalog is stored there, of whatever version.
    pub(crate) async fn has_catalog(&self, storage: &Storage) -> Result<bool> {
        match storage.head(&self.file(INDEX)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Gone => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }
}
