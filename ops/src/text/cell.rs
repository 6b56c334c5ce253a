//! The text of a cell.

use feedstock_base::{Error, Result};

/// The bytes as text.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Error::bad_sample(format!("the text is not valid UTF-8 from byte {at} on; store it as UTF-8"))
            .with_source(error)
    })
}
