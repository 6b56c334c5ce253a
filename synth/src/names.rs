//! Names of choices on the command line.

use crate::{Error, Result};

/// Returns the element of `all` whose name is `name`. `what` is the kind of choice, for the error.
pub(crate) fn by_name<T: Copy>(
    what: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T> {
    all.iter().copied().find(|choice| name_of(*choice) == name).ok_or_else(|| {
        let known: Vec<&str> = all.iter().copied().map(name_of).collect();
        Error::config(format!("{what} must be one of {}; got '{name}'", known.join(", ")))
    })
}
