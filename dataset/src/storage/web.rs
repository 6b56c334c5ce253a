//! An http(s) URL taken apart, once: what is checked, printed, stored and opened are parts of this value.
//!
//! The store's library parses URLs as browsers do: `\` ends a host, as `/` does, and tabs and line breaks vanish. A URL in
//! which another parser could find another host is refused, and no part of a host, a port or a user name is guessed.

use super::signature::is_signed;
use super::uri::decode;
use url::{Host, Url};

/// Whether the URI has the scheme http or https.
pub(super) fn is_http(uri: &str) -> bool {
    let is = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    uri.split_once("://").is_some_and(|(scheme, _)| is(scheme))
}

/// The parts of an http(s) URL, as written, without its fragment, which is never sent.
pub(super) struct Web<'a> {
    pub(super) scheme: &'a str,
    /// User name and password, percent-encoded, without the `@`.
    pub(super) user: Option<&'a str>,
    /// Host and port.
    pub(super) host: &'a str,
    /// With its leading `/`; empty where the URL ends before it.
    pub(super) path: &'a str,
    /// Without its `?`.
    pub(super) query: Option<&'a str>,
    /// Scheme, user, host and port as the store's library parses them.
    base: Url,
}

/// Where an http(s) URL leads: scheme, host and port in their one form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: String,
    host: Option<Host<String>>,
    port: Option<u16>,
}

impl<'a> Web<'a> {
    /// Takes the URL apart, or returns why it names no place.
    pub(super) fn parse(uri: &'a str) -> Result<Self, &'static str> {
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
        if user.is_some_and(|user| decode(user).is_none()) {
            return Err("the percent-encoding of its user name or password is broken");
        }
        let base = Url::parse(&format!("{scheme}://{authority}/")).map_err(
            |_| "the host or the port is not valid; percent-encode '/', '?' and '#' in a password",
        )?;
        Ok(Self { scheme, user, host, path, query, base })
    }

    /// What comes before the key of every URL with this origin and user: `https://user:password@host/`.
    pub(super) fn prefix(&self) -> String {
        let user = self.user.map_or(String::new(), |user| format!("{user}@"));
        format!("{}://{user}{}/", self.scheme, self.host)
    }

    /// Whether it has a user name, a password or a signature.
    pub(super) fn has_credentials(&self) -> bool {
        self.user.is_some() || self.query.is_some_and(is_signed)
    }

    /// Where it leads.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            scheme: self.base.scheme().to_owned(),
            host: self.base.host().map(|host| host.to_owned()),
            port: self.base.port_or_known_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_url_that_two_parsers_read_differently_is_refused() {
        for bad in [
            r"http://169.254.169.254\latest\meta-data#@data.example/x",
            r"http://h/a\b",
            "http://h\t.example/x",
            "http://h/a\nb",
            "http://a@b@h/x",
            "http://u:p/w@h/x",
            "http://u:p?w@h/x",
            "http://u:p#w@h/x",
            "http://u:%ff@h/x",
            "http://h:99999/x",
            "http:///x",
            "http://u@/x",
        ] {
            assert!(Web::parse(bad).is_err(), "{bad:?} was accepted");
        }
        let web = Web::parse("http://evil#@data.example/x").unwrap();
        assert_eq!((web.host, web.path), ("evil", ""));
    }

    #[test]
    fn an_origin_has_one_form() {
        let origin = |uri: &str| Web::parse(uri).unwrap().origin();
        assert_eq!(origin("https://u:p@Data.Example:443/x?y"), origin("HTTPS://data.example"));
        assert_eq!(origin("http://2130706433/"), origin("http://127.0.0.1:80/"));
        assert_ne!(origin("http://data.example/"), origin("https://data.example/"));
        assert_ne!(origin("http://data.example/"), origin("http://data.example:81/"));
    }

    proptest! {
        /// Whatever the text, the library that opens it connects to the host that was checked.
        #[test]
        fn the_library_finds_the_same_host(rest in r"[a-c.:@/\\?#%0-9 \t\[\]-]{1,16}") {
            let uri = format!("http://{rest}");
            if let Ok(web) = Web::parse(&uri) {
                let query = web.query.map_or(String::new(), |query| format!("?{query}"));
                let opened = Url::parse(&format!("{}{query}", web.prefix())).unwrap();
                prop_assert_eq!(opened.host().map(|host| host.to_owned()), web.origin().host);
                let direct = Url::parse(&uri).unwrap();
                prop_assert_eq!(direct.host().map(|host| host.to_owned()), web.origin().host);
            }
        }
    }
}
