//! The reason why a redirect is not followed, as an error within those of the HTTP client.

use std::error::Error as StdError;
use std::fmt;

/// A redirect that is not followed.
#[derive(Debug)]
pub(super) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Refused {}

impl Refused {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// Returns the refusal that caused `error`, if one did.
    pub(super) fn within<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(one) = cause {
            if let Some(refused) = one.downcast_ref() {
                return Some(refused);
            }
            cause = one.source();
        }
        None
    }
}
