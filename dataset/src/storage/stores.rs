//! The open stores, and what the stores of one host share.

use super::limiter::Limiter;
use super::options::StorageOptions;
use super::retry::Shared;
use super::store::{Host, Store};
use super::uri::{Location, Scheme};
use crate::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of open stores; signed URLs make one each, and those are closed first.
const STORES_MAX: usize = 1_024;
/// Maximum number of hosts: each has a TLS client, about 1 MB with its certificates. Beyond it all hosts are dropped; stores
/// keep the one that they use.
const HOSTS_MAX: usize = 256;

/// Opens each store once. Opening a store, which may read certificates for 20 ms, holds no lock. If two callers open the same
/// store at once, the first one's is kept.
#[derive(Default)]
pub(super) struct Stores {
    /// By scheme and authority, and the query of a URL.
    open: Mutex<HashMap<String, Arc<Store>>>,
    /// By scheme, user and host: URLs that are signed one by one share connections and the limit on requests.
    hosts: Mutex<HashMap<String, Host>>,
}

impl Stores {
    /// Returns the store of the place.
    pub(super) fn get(
        &self,
        at: &Location,
        options: &StorageOptions,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Store>> {
        let key = match at.scheme {
            Scheme::Local => String::new(), // plain paths and file:// are one store
            _ => format!("{}{}", at.prefix, at.suffix),
        };
        if let Some(store) = lock(&self.open).get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(Store::open(at, options, shared, || self.host(at, options, shared))?);
        let mut open = lock(&self.open);
        if open.len() >= STORES_MAX {
            open.retain(|name, _| !name.contains('?'));
        }
        Ok(Arc::clone(open.entry(key).or_insert(store)))
    }

    fn host(&self, at: &Location, options: &StorageOptions, shared: &Shared) -> Result<Host> {
        if let Some(host) = lock(&self.hosts).get(&at.prefix) {
            return Ok(host.clone());
        }
        let host = Host::open(at, options, shared)?;
        let mut hosts = lock(&self.hosts);
        if hosts.len() >= HOSTS_MAX {
            hosts.clear();
        }
        Ok(hosts.entry(at.prefix.clone()).or_insert(host).clone())
    }

    /// Returns the smallest limit on concurrent requests, and the maximum number of requests that were under way at once.
    pub(super) fn concurrency(&self) -> (usize, usize) {
        let open = lock(&self.open);
        let limiters = || open.values().map(|store| &store.limiter);
        let limit = limiters().map(|limiter| Limiter::limit(limiter)).min().unwrap_or(0);
        (limit, limiters().map(|limiter| limiter.peak()).max().unwrap_or(0))
    }
}

fn lock<T>(map: &Mutex<HashMap<String, T>>) -> MutexGuard<'_, HashMap<String, T>> {
    map.lock().unwrap_or_else(PoisonError::into_inner) // inserted whole
}
