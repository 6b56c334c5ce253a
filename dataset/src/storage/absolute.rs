//! Paths that mean the same place from another working directory.

use crate::{Error, Result};

/// The URI, absolute if it is a plain path: that means another place from another working directory.
pub(crate) fn resolved(uri: &str) -> Result<String> {
    if uri.contains("://") {
        return Ok(uri.to_owned());
    }
    let path = std::path::absolute(uri)
        .map_err(|e| Error::config(format!("{uri}: not a path on this machine")).with_source(e))?;
    Ok(path.to_string_lossy().into_owned())
}

/// As [`resolved`], and the same with and without a `/` at its end.
pub(crate) fn absolute(uri: &str) -> Result<String> {
    Ok(resolved(uri)?.trim_end_matches('/').to_owned())
}
