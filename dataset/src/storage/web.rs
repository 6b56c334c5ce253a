//! An http(s) URL, parsed once: what is checked, printed, stored and opened are parts of this value.
//!
//! [`HttpUrl`] rejects URLs in which another parser could find another host.

use super::percent::decode;
use super::signature::is_signed;
use feedstock_base::HttpUrl;
use url::{Host, Url};

/// An http(s) URL with the origin that the store's library finds in it.
pub(super) struct Web<'a> {
    pub(super) url: HttpUrl<'a>,
    /// Scheme, user, host and port as the store's library parses them.
    base: Url,
}

/// Where an http(s) URL leads: scheme, host and port in canonical form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: String,
    host: Option<Host<String>>,
    port: Option<u16>,
}

impl<'a> Web<'a> {
    /// Parses the URL, or returns why it names no place.
    pub(super) fn parse(uri: &'a str) -> Result<Self, &'static str> {
        let url = HttpUrl::split(uri)?;
        if url.user.is_some_and(|user| decode(user).is_none()) {
            return Err("the percent-encoding of its user name or password is broken");
        }
        let user = url.user.map_or(String::new(), |user| format!("{user}@"));
        let base = Url::parse(&format!("{}://{user}{}/", url.scheme, url.host)).map_err(
            |_| "the host or the port is not valid; percent-encode '/', '?' and '#' in a password",
        )?;
        Ok(Self { url, base })
    }

    /// Returns what precedes the key of every URL with this origin and user: `https://user:password@host/`.
    pub(super) fn prefix(&self) -> String {
        let user = self.url.user.map_or(String::new(), |user| format!("{user}@"));
        format!("{}://{user}{}/", self.url.scheme, self.url.host)
    }

    /// Whether it has a user name, a password or a signature.
    pub(super) fn has_credentials(&self) -> bool {
        self.url.user.is_some() || self.url.query.is_some_and(is_signed)
    }

    /// Returns where it leads.
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
        assert_eq!((web.url.host, web.url.path), ("evil", ""));
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
                let query = web.url.query.map_or(String::new(), |query| format!("?{query}"));
                let opened = Url::parse(&format!("{}{query}", web.prefix())).unwrap();
                prop_assert_eq!(opened.host().map(|host| host.to_owned()), web.origin().host);
                let direct = Url::parse(&uri).unwrap();
                prop_assert_eq!(direct.host().map(|host| host.to_owned()), web.origin().host);
            }
        }
    }
}
