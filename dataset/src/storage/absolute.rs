//! Makes paths absolute, so that they mean the same place from another working directory.

use crate::{Error, Result};

/// Returns the URI, absolute if it is a plain path: relative paths depend on the working directory.
pub(crate) fn resolved(uri: &str) -> Result<String> {
    if uri.contains("://") {
        return Ok(uri.to_owned());
    }
    let path = std::path::absolute(uri)
        .map_err(|e| Error::config(format!("{uri}: this is not a path on this machine")).with_source(e))?;
    Ok(path.to_string_lossy().into_owned())
}

/// As [`resolved`], and the same with or without a `/` at the end.
pub(crate) fn absolute(uri: &str) -> Result<String> {
    Ok(resolved(uri)?.trim_end_matches('/').to_owned())
}
