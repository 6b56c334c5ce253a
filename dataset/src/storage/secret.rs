//! Strings that must never be printed, and the cleaning of error messages.

use feedstock_base::hide_urls;
use std::fmt;

/// A string that Debug and Display print as `***`.
///
/// ```
/// use feedstock_dataset::Secret;
///
/// let token = Secret::new("hf_abcdef");
/// assert_eq!(format!("{token} {token:?}"), "*** ***");
/// assert_eq!(token.expose(), "hf_abcdef");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the string itself, for signing.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Shorter values ("1", "true") would blank out half of every message and are not secrets.
const SECRET_MIN_CHARS: usize = 6;

/// Configuration keys whose values may be shown; all others count as secret.
const OPEN_KEYS: [&str; 10] = [
    "region",
    "endpoint",
    "bucket",
    "allow_http",
    "virtual_hosted",
    "timeout",
    "retr",
    "account_name",
    "skip",
    "container",
];

/// Removes secrets from a text that a library wrote.
#[derive(Default)]
pub(crate) struct Cleaner {
    secrets: Vec<String>,
}

impl Cleaner {
    /// Creates a cleaner that knows the secret values among `config` (key, value).
    pub(crate) fn new<'a>(config: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let secrets = config
            .filter(|(key, value)| {
                let key = key.to_ascii_lowercase();
                value.len() >= SECRET_MIN_CHARS && !OPEN_KEYS.iter().any(|open| key.contains(open))
            })
            .map(|(_, value)| value.to_owned());
        Self { secrets: secrets.collect() }
    }

    /// Returns `text` with known secrets, URL queries and URL passwords replaced by `***`, cut to a readable length.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        shorten(&hide_urls(&text))
    }
}

/// Longer causes are server pages, which do not help.
const CAUSE_MAX_CHARS: usize = 400;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(CAUSE_MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_print_as_stars() {
        let secret = Secret::new("wJalrXUtnFEMI");
        assert_eq!(format!("{secret:?} {secret}"), "*** ***");
        assert_eq!(secret.expose(), "wJalrXUtnFEMI");
    }

    #[test]
    fn a_cleaned_text_keeps_no_secret() {
        let config = [("aws_secret_access_key", "wJalrXUtnFEMI"), ("aws_region", "us-east-1")];
        let cleaner = Cleaner::new(config.into_iter());
        let text = "GET https://h/x?sig=abc (key wJalrXUtnFEMI, region us-east-1): https://u:p@h/y failed";
        assert_eq!(
            cleaner.clean(text),
            "GET https://h/x?*** (key ***, region us-east-1): https://***@h/y failed"
        );
    }
}
