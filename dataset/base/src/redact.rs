//! Removes signatures and passwords from URLs before they are printed.

use crate::http_url::{HttpUrl, is_http};

/// Returns the printable form of `text`: the query, user name and password of every http(s) URL in it are replaced by `***`.
/// A URL ends at white space, `"`, `<` or `>`. A query continues past them while `&` follows within four words, since some
/// tools do not encode them.
///
/// ```
/// use feedstock_base::hide_urls;
///
/// let line = "GET https://h.example/a.tar?X-Amz-Signature=1f&X-Amz-Date=2 took 40 ms";
/// assert_eq!(hide_urls(line), "GET https://h.example/a.tar?*** took 40 ms");
/// assert_eq!(hide_urls("s3://bucket/a?b"), "s3://bucket/a?b");
/// ```
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

/// The number of words searched for the next `&` of a query.
const QUERY_WORDS: usize = 4;

/// Returns the end of the URL that begins at `start`.
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

/// Returns the printable form of `uri`: an http(s) URL loses its query, fragment, user name and password. If the host is
/// doubtful, nothing before the last `@` is shown, because a password may contain any character.
///
/// ```
/// use feedstock_base::shown;
///
/// assert_eq!(shown("https://user:pw@h.example/a?X-Amz-Signature=1f"), "https://***@h.example/a?***");
/// assert_eq!(shown("s3://bucket/what?not"), "s3://bucket/what?not");
/// ```
pub fn shown(uri: &str) -> String {
    if !is_http(uri) {
        return uri.to_owned();
    }
    let hidden = |mark: char| if uri.contains(mark) { format!("{mark}***") } else { String::new() };
    match HttpUrl::split(uri) {
        Ok(url) if is_plain(url.host) && url.user.is_none_or(is_encoded) => {
            let user = if url.user.is_some() { "***@" } else { "" };
            let query = if url.query.is_some() { "?***".into() } else { hidden('#') };
            format!("{}://{user}{}{}{query}", url.scheme, url.host, url.path)
        }
        _ => {
            let (scheme, rest) = uri.split_once("://").unwrap_or((uri, ""));
            let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
            let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
            format!("{scheme}://{user}{rest}{}", hidden('?'))
        }
    }
}

/// Returns true for a name or an address, with or without a port. No password that contains a `/` looks like this.
fn is_plain(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let is_address = name.starts_with('[') && name.ends_with(']');
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-._~%".contains(c));
    (is_address || is_name) && (port.is_empty() || port.parse::<u16>().is_ok())
}

/// Returns true if every `%` begins an encoded byte.
fn is_encoded(user: &str) -> bool {
    let is_hex = |code: &str| code.len() >= 2 && code.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    user.split('%').skip(1).all(is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_url_loses_its_query_and_password() {
        assert_eq!(shown("https://u:pw@h.example/a/b?X-Amz-Signature=1f"), "https://***@h.example/a/b?***");
        assert_eq!(shown("http://h/a@b"), "http://h/a@b");
        assert_eq!(shown("http://[::1]:80/a@b"), "http://[::1]:80/a@b");
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
}
