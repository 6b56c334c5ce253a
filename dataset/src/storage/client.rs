//! HTTP clients like object_store's, except that they follow no redirect and connect only to addresses in reach.

use super::refused::Refused;
use object_store::client::HttpClient;
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, NoProxy, Proxy, redirect};
use std::error::Error as StdError;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Which addresses a client connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Any,
    /// All but link-local ones.
    NotLinkLocal,
    /// Neither link-local ones nor this machine's own.
    Public,
}

/// Metadata services that are not at a link-local address: those of Alibaba, Azure and Oracle, and Google's with IPv6.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];
/// Amazon's services with IPv6 share a network: metadata, time, names.
const METADATA_AMAZON: [u16; 2] = [0xfd00, 0xec2];

/// Returns the address itself, or the IPv4 address in the last 32 bits of an IPv6 one: mapped (`::ffff:a.b.c.d`), compatible
/// (`::a.b.c.d`), or of NAT64 with its well-known prefix (`64:ff9b::/96`) or a network's own (`64:ff9b:1::/48`; with a prefix
/// of 96 bits).
fn canonical(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    if v6.is_loopback() || v6.is_unspecified() {
        return ip; // `::1` and `::` are not IPv4 addresses
    }
    let [a, b, c, d] = [v6.octets()[12], v6.octets()[13], v6.octets()[14], v6.octets()[15]];
    match v6.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => {
            Ipv4Addr::new(a, b, c, d).into()
        }
        _ => ip,
    }
}

impl Reach {
    /// Whether the address is this machine's own; so is 0.0.0.0.
    pub(super) fn is_loopback(ip: IpAddr) -> bool {
        match canonical(ip) {
            IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified(),
        }
    }

    fn is_link_local(ip: IpAddr) -> bool {
        let ip = canonical(ip);
        METADATA.contains(&ip)
            || match ip {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments()[..2] == METADATA_AMAZON,
            }
    }

    /// Whether the address is in reach.
    pub(super) fn covers(self, ip: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::NotLinkLocal => !Self::is_link_local(ip),
            Self::Public => !Self::is_link_local(ip) && !Self::is_loopback(ip),
        }
    }

    /// Returns the name of addresses out of reach.
    pub(super) fn beyond(self) -> &'static str {
        match self {
            Self::Public => "an address of this machine or a link-local one",
            _ => "a link-local address",
        }
    }
}

/// Makes a client with these options.
pub(super) fn client(options: &ClientOptions, reach: Reach) -> object_store::Result<HttpClient> {
    build(options, reach)
        .map(HttpClient::new)
        .map_err(|source| object_store::Error::Generic { store: "HTTP", source })
}

type Built<T> = Result<T, Box<dyn StdError + Send + Sync>>;

/// Parses the value of a key.
fn value<T: FromStr<Err: StdError + Send + Sync + 'static>>(
    options: &ClientOptions,
    key: ClientConfigKey,
) -> Built<Option<T>> {
    Ok(options.get_config_value(&key).map(|text| text.parse()).transpose()?)
}

fn is_set(options: &ClientOptions, key: ClientConfigKey) -> Built<bool> {
    Ok(value(options, key)?.unwrap_or(false))
}

fn duration(options: &ClientOptions, key: ClientConfigKey) -> Built<Option<Duration>> {
    Ok(value::<humantime::Duration>(options, key)?.map(Into::into))
}

fn build(options: &ClientOptions, reach: Reach) -> Built<reqwest::Client> {
    use ClientConfigKey as Key;
    let text = |key: Key| options.get_config_value(&key);
    let resolver = Arc::new(Resolver { reach, is_rotated: is_set(options, Key::RandomizeAddresses)? });
    let mut builder = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .referer(false)
        .dns_resolver(resolver)
        .user_agent(
            text(Key::UserAgent).unwrap_or_else(|| concat!("feedstock/", env!("CARGO_PKG_VERSION")).into()),
        )
        .danger_accept_invalid_certs(is_set(options, Key::AllowInvalidCertificates)?)
        .http2_keep_alive_while_idle(is_set(options, Key::Http2KeepAliveWhileIdle)?)
        .https_only(!is_set(options, Key::AllowHttp)?)
        // Compression would change `Content-Length`.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(url) = text(Key::ProxyUrl) {
        let excludes = text(Key::ProxyExcludes).and_then(|names| NoProxy::from_string(&names));
        builder = builder.proxy(Proxy::all(url)?.no_proxy(excludes));
        if let Some(pem) = text(Key::ProxyCaCertificate) {
            builder = builder.add_root_certificate(Certificate::from_pem(pem.as_bytes())?);
        }
    }
    if let Some(timeout) = duration(options, Key::Timeout)? {
        builder = builder.timeout(timeout);
    }
    if let Some(timeout) = duration(options, Key::ConnectTimeout)? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = duration(options, Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(timeout);
    }
    if let Some(max) = value(options, Key::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(max);
    }
    if let Some(interval) = duration(options, Key::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(interval);
    }
    if let Some(timeout) = duration(options, Key::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(timeout);
    }
    if let Some(bytes) = value::<u32>(options, Key::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(bytes);
    }
    if is_set(options, Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if is_set(options, Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder.build()?)
}

/// Resolves names to the addresses in reach, starting from another one each time if they are to share the load.
struct Resolver {
    reach: Reach,
    is_rotated: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, is_rotated) = (self.reach, self.is_rotated);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut kept: Vec<_> = found.iter().copied().filter(|at| reach.covers(at.ip())).collect();
            if kept.is_empty() && !found.is_empty() {
                let why = format!("it is redirected to {}, which is {}", name.as_str(), reach.beyond());
                return Err(Refused::new(why).into());
            }
            if is_rotated && !kept.is_empty() {
                let draw = RandomState::new().hash_one(name.as_str());
                let by = usize::try_from(draw % kept.len() as u64).unwrap_or(0);
                kept.rotate_left(by);
            }
            Ok(Box::new(kept.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_options_of_its_store() {
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout(Duration::from_secs(90))
            .with_connect_timeout(Duration::from_millis(1_500));
        assert_eq!(duration(&options, ClientConfigKey::Timeout).unwrap(), Some(Duration::from_secs(90)));
        let connect = duration(&options, ClientConfigKey::ConnectTimeout).unwrap();
        assert_eq!(connect, Some(Duration::from_millis(1_500)));
        assert!(is_set(&options, ClientConfigKey::AllowHttp).unwrap());
        assert!(is_set(&options, ClientConfigKey::Http1Only).unwrap(), "object_store's default");
        build(&options, Reach::Any).unwrap();
    }

    #[tokio::test]
    async fn names_resolve_to_addresses_in_reach() {
        let resolved = |reach| async move {
            let found = Resolver { reach, is_rotated: true }.resolve("localhost".parse().unwrap()).await;
            found.map(|found| found.count()).map_err(|e| Refused::within(&*e).is_some())
        };
        assert!(resolved(Reach::NotLinkLocal).await.unwrap() > 0);
        assert_eq!(resolved(Reach::Public).await, Err(true), "rejected, not failed");
    }
}
