//! A stored object, and the version of it that a catalog saw.

use feedstock_base::shown;
use std::fmt;

/// One stored object as it was when the catalog saw it.
///
/// ```
/// use feedstock_dataset::ObjectRef;
///
/// let object = ObjectRef { uri: "https://h.example/a.tar?sig=1f".into(), size: 4_096, etag: Some("\"9b2\"".into()) };
/// assert!(format!("{object:?}").contains(r#"uri: "https://h.example/a.tar?***", size: 4096"#));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Where it is, in the form in which the data set was named.
    pub uri: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its version; every read requests this one. It is the ETag. If the store sends none, it is `modified:` and the time of
    /// the last change in seconds since 1970; a replacement within that second is not noticed. `None` if the store sends
    /// neither, and only the size is compared.
    pub etag: Option<String>,
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectRef")
            .field("uri", &shown(&self.uri))
            .field("size", &self.size)
            .field("etag", &self.etag)
            .finish()
    }
}
