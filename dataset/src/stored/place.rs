//! Where one catalog is stored.

/// The folder of one stored catalog.
#[derive(Clone)]
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

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }
}
