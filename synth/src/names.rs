//! Names of choices on the command line.

use crate::{Error, Result};

/// Returns the one of `all` that is called `name`. `what` is what they are, for the error.
pub(crate) fn by_name<T: Copy>(
    what: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T> {
    all.iter().copied().find(|choice| name_of(*choice) == name).ok_or_else(|| {
        let known: Vec<&str> = all.iter().copied().map(name_of).collect();
        Error::config(format!("no {what} is called '{name}'; there are {}", known.join(", ")))
    })
}
