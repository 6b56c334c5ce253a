//! Strings that must never be printed, and the text that error messages are cleaned with.

use super::web::{Web, is_http};
use std::fmt;

/// A string whose Debug and Display print `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The string itself, for the one who signs with it.
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

/// Shorter values ("1", "true") would blank out half of every message and are no secrets.
const SECRET_MIN_CHARS: usize = 6;

/// Configuration keys whose values may be shown: everything else counts as secret.
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

/// Removes what must not be printed from a text that a library wrote.
#[derive(Default)]
pub(crate) struct Cleaner {
    secrets: Vec<String>,
}

impl Cleaner {
    /// A cleaner that knows the values among `config` (key, value) that are secret.
    pub(crate) fn new<'a>(config: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let secrets = config
            .filter(|(key, value)| {
                let key = key.to_ascii_lowercase();
                value.len() >= SECRET_MIN_CHARS && !OPEN_KEYS.iter().any(|open| key.contains(open))
            })
            .map(|(_, value)| value.to_owned());
        Self { secrets: secrets.collect() }
    }

    /// `text` with known secrets, URL queries and URL passwords replaced by `***`, cut to a readable length.
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

/// Longer causes are server pages that help nobody.
const CAUSE_MAX_CHARS: usize = 400;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(CAUSE_MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns `text` as it may be printed: the query, the user name and the password of every http(s) URL in it are replaced by
/// `***`. A URL ends at white space, `"`, `<` or `>`; a query goes on after them while `&` follows within four words, since
/// some tools do not encode them.
pub fn hide_urls(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    while let Some(at) = ["http://", "https://"].iter().filter_map(|s| lower[from..].find(s)).min() {
        let start = from + at;
        let end = end_of_url(text, start);
        let url = text[start..end].trim_end_matches(|c: char| ",;:.)]}'`…".contains(c));
        out.push_str(&text[from..start]);
        out.push_str(&shown(url));
        from = start + url.len();
    }
    out.push_str(&text[from..]);
    out
}

/// Words within which the next `&` of a query is looked for.
const QUERY_WORDS: usize = 4;

/// Where the URL that begins at `start` ends.
fn end_of_url(text: &str, start: usize) -> usize {
    let next = |from: usize| {
        let end = text[from..].find(|c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>'));
        end.map_or(text.len(), |n| from + n)
    };
    let mut end = next(start);
    let (mut at, mut words) = (end, 0);
    while text[start..end].contains('?')
        && words < QUERY_WORDS
        && let Some(mark) = text[at..].chars().next()
    {
        let word = at + mark.len_utf8();
        (at, words) = (next(word), words + 1);
        if text[word..at].contains('&') {
            (end, words) = (at, 0);
        }
    }
    end
}

/// `uri` as it may be printed: an http(s) URL without its query, fragment and password. Of a URL that no parser accepts,
/// nothing before its last `@` is shown: a password may contain any character.
pub(crate) fn shown(uri: &str) -> String {
    if !is_http(uri) {
        return uri.to_owned();
    }
    let hidden = |mark: char| if uri.contains(mark) { format!("{mark}***") } else { String::new() };
    match Web::parse(uri) {
        Ok(web) => {
            let user = if web.user.is_some() { "***@" } else { "" };
            let query = if web.query.is_some() { "?***".into() } else { hidden('#') };
            format!("{}://{user}{}{}{query}", web.scheme, web.host, web.path)
        }
        Err(_) => {
            let (scheme, rest) = uri.split_once("://").unwrap_or((uri, ""));
            let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
            let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
            format!("{scheme}://{user}{rest}{}", hidden('?'))
        }
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
    fn a_signed_url_loses_its_query_and_password() {
        assert_eq!(shown("https://u:pw@h.example/a/b?X-Amz-Signature=1f"), "https://***@h.example/a/b?***");
        assert_eq!(shown("http://h/a@b"), "http://h/a@b");
        assert_eq!(shown("HTTPS://u:pw@h/a?x=1"), "HTTPS://***@h/a?***");
        for password in ["p/w", "p?w", "p#w", "a@b/p", r"p\w", "p?w#x"] {
            let text = shown(&format!("http://u:{password}@h/x?sig=1"));
            assert!(!text.contains('w') && !text.contains("a@b") && text.ends_with("h/x?***"), "{text}");
        }
        assert_eq!(shown("http://evil#@data.example/x"), "http://evil#***");
        assert_eq!(shown("s3://bucket/what?not"), "s3://bucket/what?not");
    }

    #[test]
    fn urls_in_a_text_lose_theirs_and_nothing_else_changes() {
        for (text, hidden) in [
            (
                "Http://h/a,b(1)?k=v,w, then (https://u:p@h/y?z): no",
                "Http://h/a,b(1)?***, then (https://***@h/y?***): no",
            ),
            ("'http://h/x?k=v': damaged", "'http://h/x?***': damaged"),
            ("http://h/x: HTTP 404. See http://h/y.", "http://h/x: HTTP 404. See http://h/y."),
            ("http://h/x?a=b c&sig=S and", "http://h/x?*** and"),
            ("<http://h/x?a=\"b\"&sig=S>: no", "<http://h/x?***>: no"),
            ("http://h/x?*** again, s3://b/x?y, Grüße", "http://h/x?*** again, s3://b/x?y, Grüße"),
        ] {
            assert_eq!(hide_urls(text), hidden);
        }
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
