//! Credentials that a service hands out for a time.
//!
//! object_store asks for new ones minutes before the old ones end, and fails if the service does not answer just then.
//! Here the old ones stay in use meanwhile, and a service that does not answer is one of the faults that pass.

use async_trait::async_trait;
use object_store::{CredentialProvider, Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Credentials that object_store hands out are good for at least so long: the least of its `min_ttl` (0.13, those of S3
/// Express sessions).
const GOOD_FOR: Duration = Duration::from_secs(60);

/// A service that takes longer is asked again by the next request, while there are good credentials.
const PATIENCE: Duration = Duration::from_secs(2);

/// How errors about credentials that were had once, and could not be renewed, are marked.
const RENEWAL: &str = "renewed credentials";

/// A provider whose credentials outlive a hiccup of their service.
#[derive(Debug)]
pub(super) struct Steady<C> {
    inner: Arc<dyn CredentialProvider<Credential = C>>,
    /// The latest, and when they were handed out.
    last: Mutex<Option<(Instant, Arc<C>)>>,
}

impl<C> Steady<C> {
    pub(super) fn new(inner: Arc<dyn CredentialProvider<Credential = C>>) -> Self {
        Self { inner, last: Mutex::new(None) }
    }

    fn last(&self) -> Option<(Instant, Arc<C>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone() // stored whole
    }

    /// New ones, for which the old ones do not wait.
    async fn renewed(&self) -> Result<Arc<C>> {
        let asked = timeout(PATIENCE, self.inner.get_credential()).await;
        asked.unwrap_or_else(|_| {
            let silent = format!("no answer within {} s", PATIENCE.as_secs());
            Err(Error::Generic { store: RENEWAL, source: silent.into() })
        })
    }

    fn keep(&self, found: &Arc<C>) {
        let now = Some((Instant::now(), found.clone()));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

#[async_trait]
impl<C: std::fmt::Debug + Send + Sync + 'static> CredentialProvider for Steady<C> {
    type Credential = C;

    async fn get_credential(&self) -> Result<Arc<C>> {
        let Some((at, last)) = self.last() else {
            return self.inner.get_credential().await.inspect(|found| self.keep(found));
        };
        let error = match self.renewed().await.inspect(|found| self.keep(found)) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if at.elapsed() < GOOD_FOR {
            tracing::warn!("credentials were not renewed, the old ones stay in use: {error}");
            return Ok(last);
        }
        Err(Error::Generic { store: RENEWAL, source: Box::new(error) })
    }
}

/// Whether the error says that credentials which were good once could not be renewed.
pub(super) fn is_renewal(error: &Error) -> bool {
    matches!(error, Error::Generic { store, .. } if *store == RENEWAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Hands out numbers while it is up.
    #[derive(Debug, Default)]
    struct Service {
        down: AtomicBool,
        silent: AtomicBool,
        handed_out: AtomicU64,
    }

    #[async_trait]
    impl CredentialProvider for Service {
        type Credential = u64;

        async fn get_credential(&self) -> Result<Arc<u64>> {
            if self.silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            match self.down.load(Ordering::Relaxed) {
                true => Err(Error::Generic { store: "S3", source: "HTTP 500".into() }),
                false => Ok(Arc::new(self.handed_out.fetch_add(1, Ordering::Relaxed))),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn good_credentials_outlive_a_hiccup() {
        let service = Arc::new(Service::default());
        let steady = Steady::new(service.clone());
        assert_eq!(*steady.get_credential().await.unwrap(), 0);
        for fault in [&service.down, &service.silent] {
            fault.store(true, Ordering::Relaxed);
            let last = service.handed_out.load(Ordering::Relaxed) - 1;
            assert_eq!(*steady.get_credential().await.unwrap(), last);
            tokio::time::sleep(GOOD_FOR).await;
            assert!(is_renewal(&steady.get_credential().await.unwrap_err()), "they may have ended by now");
            fault.store(false, Ordering::Relaxed);
            assert_eq!(*steady.get_credential().await.unwrap(), last + 1);
        }
    }

    #[tokio::test]
    async fn without_any_credentials_the_services_own_error_comes() {
        let service = Arc::new(Service::default());
        service.down.store(true, Ordering::Relaxed);
        let error = Steady::new(service).get_credential().await.unwrap_err();
        assert!(!is_renewal(&error) && error.to_string().contains("HTTP 500"), "{error}");
    }
}
