//! The parts of an http(s) URL, as text.

/// Returns true for a URI of the scheme http or https.
///
/// ```
/// use feedstock_base::is_http;
///
/// assert!(is_http("HTTPS://data.example/train.tar"));
/// assert!(!is_http("s3://bucket/train.tar"));
/// assert!(!is_http("data.example/train.tar"));
/// ```
pub fn is_http(uri: &str) -> bool {
    let is = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    uri.split_once("://").is_some_and(|(scheme, _)| is(scheme))
}

/// The parts of an http(s) URL, as written, without its fragment, which is never sent.
///
/// URLs are parsed as browsers do: `\` ends a host, as `/` does, and tabs and line breaks vanish. A URL is rejected if another
/// parser could find another host in it. No part of a host, port or user name is guessed.
///
/// ```
/// use feedstock_base::HttpUrl;
///
/// let reason = HttpUrl::split(r"http://data.example\@other.example/a").unwrap_err();
/// assert_eq!(reason, r"it contains a '\'; write %5C where a name contains one");
/// assert_eq!(HttpUrl::split("s3://bucket/a").unwrap_err(), "it is not an http URL");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpUrl<'a> {
    /// `http` or `https`, in its original case.
    pub scheme: &'a str,
    /// User name and password, percent-encoded, without the `@`.
    pub user: Option<&'a str>,
    /// Host and port.
    pub host: &'a str,
    /// With its leading `/`; empty where the URL ends before it.
    pub path: &'a str,
    /// Without its `?`.
    pub query: Option<&'a str>,
}

impl<'a> HttpUrl<'a> {
    /// Splits the URL.
    ///
    /// ```
    /// let url = feedstock_base::HttpUrl::split("https://user:pw@data.example:8443/a/b?sig=1#c").unwrap();
    /// assert_eq!((url.user, url.host, url.path, url.query), (Some("user:pw"), "data.example:8443", "/a/b", Some("sig=1")));
    /// ```
    ///
    /// # Errors
    /// Returns the reason if the text is not a URL of http or https, or if parsers could disagree about its host.
    pub fn split(uri: &'a str) -> Result<Self, &'static str> {
        let (scheme, rest) = uri.split_once("://").filter(|_| is_http(uri)).ok_or("it is not an http URL")?;
        if rest.contains(|c: char| c.is_ascii_control()) {
            return Err("it contains a control character");
        }
        let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if rest.contains('\\') {
            return Err(r"it contains a '\'; write %5C where a name contains one");
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if host.is_empty() {
            return Err("the host is missing");
        }
        if user.is_some_and(|user| user.contains('@')) {
            return Err("there is more than one '@' before the host; write %40 in a user name or password");
        }
        Ok(Self { scheme, user, host, path, query })
    }
}
