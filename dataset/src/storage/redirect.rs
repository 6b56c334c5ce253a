//! Follows redirects and checks each hop.
//!
//! Stores redirect: S3 to a bucket's region, Hugging Face to its content network. A redirect may name any place, so every hop
//! is checked:
//! - If there is an allow list, it must cover the hop's URL.
//! - A hop to another host, port or scheme has no credentials. Of the request's headers, only those that choose bytes and
//!   versions remain. There is no `Referer`, which could contain a signed URL. The user name and the password of a URL are
//!   such a header (`Authorization: Basic`); those that a redirect names are not sent.
//! - No hop leads to a link-local address or to a cloud's metadata service. No hop leads to this machine unless all hops before
//!   it were on this machine: at `localhost` or a loopback address. No other name counts as this machine, whatever it resolves
//!   to, since its owner could let it resolve to another address a moment later.
//! - Names are checked by the addresses that they resolve to when the connection is made. A proxy (`proxy_url`, `HTTPS_PROXY`)
//!   resolves names itself; then only addresses in URLs are checked.

use super::allow::Allow;
use super::client::{Reach, client};
use super::percent::decode;
use super::refused::Refused;
use super::unconnected::Unconnected;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedstock_base::shown;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use std::error::Error as StdError;
use std::net::IpAddr;
use std::sync::OnceLock;
use url::{Host, Url};

/// Maximum number of hops of a request; the clouds need one or two.
const HOPS_MAX: usize = 10;

/// Headers that remain on a hop to another place.
const KEPT: [&str; 8] = [
    "accept",
    "content-length",
    "content-type",
    "depth",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// Sends requests, and follows redirects after a check.
#[derive(Debug)]
pub(super) struct Redirecting {
    options: ClientOptions,
    allow: Option<Allow>,
    first: HttpClient,
    /// For hops from this machine, with the addresses that it may reach; `public` is for hops from elsewhere.
    local: OnceLock<HttpClient>,
    public: OnceLock<HttpClient>,
}

impl Redirecting {
    pub(super) fn new(options: &ClientOptions, allow: Option<Allow>) -> object_store::Result<Self> {
        Ok(Self {
            options: options.clone(),
            allow,
            first: client(options, Reach::Any)?,
            local: OnceLock::new(),
            public: OnceLock::new(),
        })
    }

    /// Returns the client for hops.
    fn client(&self, is_local: bool) -> Result<&HttpClient, HttpError> {
        let (cell, reach) = match is_local {
            true => (&self.local, Reach::NotLinkLocal),
            false => (&self.public, Reach::Public),
        };
        if let Some(made) = cell.get() {
            return Ok(made);
        }
        let made = client(&self.options, reach).map_err(failed)?;
        Ok(cell.get_or_init(|| made))
    }

    fn check(&self, from: &Url, to: &Url, is_local: bool) -> Result<(), Refused> {
        let (shown_from, shown_to) = (shown(from.as_str()), shown(to.as_str()));
        let hop = format!("it is redirected from {shown_from} to {shown_to}");
        if !matches!(to.scheme(), "http" | "https") {
            return Err(Refused::new(format!("{hop}, which is not an http(s) URL")));
        }
        if let Some(allow) = &self.allow
            && allow.check(to.as_str()).is_err()
        {
            return Err(Refused::new(format!(
                "{hop}, which is outside of what is allowed here: {allow:?}; add that place if you trust it"
            )));
        }
        let reach = if is_local { Reach::NotLinkLocal } else { Reach::Public };
        if address(to).is_some_and(|ip| !reach.covers(ip)) {
            return Err(Refused::new(format!("{hop}, which is {}", reach.beyond())));
        }
        Ok(())
    }
}

#[async_trait]
impl HttpService for Redirecting {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut at: Url = request.uri().to_string().parse().map_err(failed)?;
        if let Some(login) = take_login(&mut at)? {
            request.headers_mut().entry(AUTHORIZATION).or_insert(login);
            *request.uri_mut() = at.as_str().parse().map_err(failed)?;
        }
        let (mut client, mut is_local) = (&self.first, true);
        for _ in 0..=HOPS_MAX {
            let mut next = request.clone();
            let response = client.execute(request).await.map_err(|error| match error.kind() {
                HttpErrorKind::Connect => {
                    HttpError::new(HttpErrorKind::Connect, Unconnected::new(&at, error))
                }
                _ => error,
            })?;
            let Some(to) = target(&at, next.method().as_str(), &response) else { return Ok(response) };
            is_local &= is_on_this_machine(&at);
            self.check(&at, &to, is_local).map_err(failed)?;
            if (at.scheme(), at.host(), at.port()) != (to.scheme(), to.host(), to.port()) {
                let headers = next.headers_mut();
                let dropped: Vec<_> =
                    headers.keys().filter(|name| !KEPT.contains(&name.as_str())).cloned().collect();
                for name in dropped {
                    headers.remove(name);
                }
            }
            *next.uri_mut() = to.as_str().parse().map_err(failed)?;
            tracing::debug!(
                from = shown(at.as_str()),
                to = shown(to.as_str()),
                "storage: following a redirect"
            );
            client = self.client(is_local)?;
            (at, request) = (to, next);
        }
        Err(failed(Refused::new(format!(
            "it is redirected more than {HOPS_MAX} times; the last redirect is to {}",
            shown(at.as_str())
        ))))
    }
}

fn failed(error: impl StdError + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// Returns where the answer redirects a request with this method to. A write is followed only if it stays the same write.
fn target(at: &Url, method: &str, answer: &HttpResponse) -> Option<Url> {
    let is_followed = match answer.status().as_u16() {
        301 | 302 => matches!(method, "GET" | "HEAD" | "PROPFIND"),
        303 => matches!(method, "GET" | "HEAD"),
        307 | 308 => true,
        _ => false,
    };
    let location = answer.headers().get("location").filter(|_| is_followed)?;
    let mut to = at.join(location.to_str().ok()?).ok()?;
    to.set_fragment(None);
    // a target that a store names gets no credentials
    to.set_username("").and_then(|()| to.set_password(None)).ok()?;
    Some(to)
}

/// Removes user name and password from the URL, and returns them as the header value in which they are sent (RFC 7617).
fn take_login(url: &mut Url) -> Result<Option<HeaderValue>, HttpError> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let part = |encoded: &str| {
        decode(encoded)
            .ok_or_else(|| failed(Refused::new("the user name or the password of its URL is not UTF-8")))
    };
    let login = format!("{}:{}", part(url.username())?, part(url.password().unwrap_or_default())?);
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(login))).map_err(failed)?;
    value.set_sensitive(true);
    if url.set_username("").and_then(|()| url.set_password(None)).is_err() {
        return Err(failed(Refused::new("its URL has a user name and no host")));
    }
    Ok(Some(value))
}

/// Returns the address in the URL, if its host is one.
fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
        Host::Domain(_) => None,
    }
}

/// Decides from the URL alone; no name is resolved.
fn is_on_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        _ => address(url).is_some_and(Reach::is_loopback),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(allow: Option<Allow>, from: &str, to: &str) -> Option<String> {
        let redirecting = Redirecting::new(&ClientOptions::new().with_allow_http(true), allow).unwrap();
        let from: Url = from.parse().unwrap();
        let is_local = address(&from).is_some_and(Reach::is_loopback);
        redirecting.check(&from, &to.parse().unwrap(), is_local).err().map(|refused| refused.to_string())
    }

    #[test]
    fn no_hop_leads_to_this_machine_or_its_metadata() {
        let hop = |from, to| refused(None, from, to);
        assert_eq!(hop("https://h/x", "https://cdn/x?sig=1"), None);
        assert_eq!(hop("http://127.0.0.1:1/x", "http://127.0.0.1:2/x"), None);
        assert_eq!(hop("http://127.0.0.1:1/x", "https://cdn/x"), None);
        for to in [
            "http://127.0.0.1/x",
            "http://127.9.9.9/x",
            "http://0.0.0.0/x",
            "http://2130706433/x",
            "http://[::1]/x",
            "http://[::ffff:127.0.0.1]/x",
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]/x",
            "http://[fd00:ec2::254]/x",
            "http://[64:ff9b::a9fe:a9fe]/x",
            "http://[64:ff9b:1::a9fe:a9fe]/x",
            "http://[::169.254.169.254]/x",
            "http://[::127.0.0.1]/x",
            "http://[fd00:ec2::23]/x",
            "http://[fd20:ce::254]/x",
            "http://192.0.0.192/opc/v2/",
            "ftp://h/x",
        ] {
            assert!(hop("https://h/x", to).is_some(), "{to}");
        }
        assert!(hop("http://127.0.0.1:1/x", "http://169.254.169.254/x").is_some());
        let text = hop("https://h/x?sig=SECRET", "http://u:SECRET@127.0.0.1/x?sig=SECRET").unwrap();
        assert!(!text.contains("SECRET"), "{text}");
    }

    #[test]
    fn hops_are_within_the_allow_list() {
        let allow = |list: &[&str]| Some(Allow::new(list).unwrap());
        assert_eq!(
            refused(allow(&["https://h/", "https://cdn/a"]), "https://h/x", "https://cdn/a/x?sig=1"),
            None
        );
        let text = refused(allow(&["https://h/"]), "https://h/x", "https://cdn/a/x").unwrap();
        assert!(text.contains("outside of what is allowed here: https://h/"), "{text}");
        assert!(refused(allow(&["https://h/a/"]), "https://h/a/x", "https://h/b/x").is_some());
    }

    /// `runs.localhost` is this machine by its name (RFC 6761); `localhost.example` is not.
    #[test]
    fn a_name_is_this_machine_by_itself_and_not_by_what_it_resolves_to() {
        let local = |url: &str| is_on_this_machine(&url.parse().unwrap());
        for yes in ["http://localhost:1/", "http://runs.localhost/", "http://[::1]:1/", "http://127.0.0.1/"] {
            assert!(local(yes), "{yes}");
        }
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let own = format!("http://{}/", own.trim());
        for no in
            ["http://192.0.2.1/", "http://localhost.example/", "http://127.0.0.1.example/", own.as_str()]
        {
            assert!(!local(no), "{no}");
        }
    }

    #[test]
    fn a_login_leaves_the_url_for_a_header() {
        let mut url: Url = "http://us%40er:p%3Aw@h/x?y".parse().unwrap();
        let login = take_login(&mut url).unwrap().unwrap();
        assert_eq!((url.as_str(), login.to_str().unwrap()), ("http://h/x?y", "Basic dXNAZXI6cDp3"));
        assert!(login.is_sensitive());
        assert!(take_login(&mut url).unwrap().is_none());
    }
}
