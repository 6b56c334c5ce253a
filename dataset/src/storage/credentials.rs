//! Credentials that a service issues for a limited time.
//!
//! object_store requests new credentials minutes before the old ones expire, and fails if the service does not answer at that
//! moment. Here the old credentials stay in use meanwhile. If none are left, a service that does not answer is one of the
//! faults that are retried.

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::{CredentialProvider, Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum lifetime of credentials that object_store returns: its `min_ttl` (0.13: 300 s, 240 s for Google Cloud), less a
/// margin for clocks. S3 Express sessions, which live for 5 minutes, are not covered.
const VALID_FOR: Duration = Duration::from_secs(220);

/// Marks errors of renewals.
const RENEWAL: &str = "renewed credentials";

/// A provider whose credentials remain usable during an outage of their service.
#[derive(Debug)]
pub(super) struct Steady<C> {
    inner: Arc<dyn CredentialProvider<Credential = C>>,
    state: Arc<State<C>>,
}

#[derive(Debug)]
struct State<C> {
    /// The latest credentials, and when they were returned.
    last: Mutex<Option<(Instant, Arc<C>)>>,
    /// Whether a task waits for new ones.
    is_renewing: AtomicBool,
    /// Whether the service has failed since its last answer, so that the log has it once.
    is_down: AtomicBool,
}

impl<C> State<C> {
    fn last(&self) -> Option<(Instant, Arc<C>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone() // stored whole
    }

    fn keep(&self, asked: &Result<Arc<C>>) {
        match asked {
            Ok(found) => {
                let now = Some((Instant::now(), found.clone()));
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
                if self.is_down.swap(false, Ordering::Relaxed) {
                    tracing::info!("credentials could be renewed again");
                }
            }
            Err(error) => {
                if !self.is_down.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "credentials could not be renewed; the old ones stay in use until they expire: {error}"
                    );
                }
            }
        }
    }
}

impl<C: Send + Sync + 'static> Steady<C> {
    pub(super) fn new(inner: Arc<dyn CredentialProvider<Credential = C>>) -> Self {
        let (is_renewing, is_down) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, state: Arc::new(State { last: Mutex::new(None), is_renewing, is_down }) }
    }

    fn ask(&self) -> BoxFuture<'static, Result<Arc<C>>>
    where
        C: std::fmt::Debug,
    {
        let (inner, state) = (self.inner.clone(), self.state.clone());
        async move { inner.get_credential().await }.inspect(move |asked| state.keep(asked)).boxed()
    }

    /// Waits for a pending renewal in a separate task: object_store's cache fetches within the caller's future, so dropping
    /// that future would cancel the fetch.
    fn renew_later(&self, asked: BoxFuture<'static, Result<Arc<C>>>) {
        if !self.state.is_renewing.swap(true, Ordering::Relaxed) {
            let state = self.state.clone();
            tokio::spawn(async move {
                let _kept = asked.await;
                state.is_renewing.store(false, Ordering::Relaxed);
            });
        }
    }
}

#[async_trait]
impl<C: std::fmt::Debug + Send + Sync + 'static> CredentialProvider for Steady<C> {
    type Credential = C;

    async fn get_credential(&self) -> Result<Arc<C>> {
        let Some((at, last)) = self.state.last() else { return self.ask().await };
        if at.elapsed() >= VALID_FOR {
            return self.ask().await.map_err(|e| Error::Generic { store: RENEWAL, source: Box::new(e) });
        }
        if self.state.is_renewing.load(Ordering::Relaxed) {
            return Ok(last);
        }
        let mut asked = self.ask();
        match futures::poll!(&mut asked) {
            Poll::Ready(found) => Ok(found.unwrap_or(last)),
            Poll::Pending => {
                self.renew_later(asked);
                Ok(last)
            }
        }
    }
}

/// Whether the error is that credentials could not be renewed.
pub(super) fn is_renewal(error: &Error) -> bool {
    matches!(error, Error::Generic { store, .. } if *store == RENEWAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Issues numbers while it is up, after `delay`.
    #[derive(Debug, Default)]
    struct Service {
        is_down: AtomicBool,
        delay_seconds: AtomicU64,
        issued: AtomicU64,
    }

    #[async_trait]
    impl CredentialProvider for Service {
        type Credential = u64;

        async fn get_credential(&self) -> Result<Arc<u64>> {
            let delay = self.delay_seconds.load(Ordering::Relaxed);
            if delay > 0 {
                tokio::time::sleep(Duration::from_secs(delay)).await;
            }
            match self.is_down.load(Ordering::Relaxed) {
                true => Err(Error::Generic { store: "S3", source: "HTTP 500".into() }),
                false => Ok(Arc::new(self.issued.fetch_add(1, Ordering::Relaxed))),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_stay_in_use_while_their_service_fails() {
        let service = Arc::new(Service::default());
        let steady = Steady::new(service.clone());
        assert_eq!(*steady.get_credential().await.unwrap(), 0);
        service.is_down.store(true, Ordering::Relaxed);
        assert_eq!(*steady.get_credential().await.unwrap(), 0);
        tokio::time::sleep(VALID_FOR - Duration::from_secs(1)).await;
        assert_eq!(*steady.get_credential().await.unwrap(), 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_renewal(&steady.get_credential().await.unwrap_err()), "they may have expired");
        service.is_down.store(false, Ordering::Relaxed);
        assert_eq!(*steady.get_credential().await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_service_renews_while_the_old_credentials_are_used() {
        let service = Arc::new(Service::default());
        let steady = Steady::new(service.clone());
        steady.get_credential().await.unwrap();
        service.delay_seconds.store(30, Ordering::Relaxed);
        for _ in 0..20 {
            let asked = Instant::now();
            assert_eq!(*steady.get_credential().await.unwrap(), 0);
            assert_eq!(asked.elapsed(), Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(service.issued.load(Ordering::Relaxed), 2, "one renewal, which was not cancelled");
        assert_eq!(*steady.get_credential().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn without_any_credentials_the_services_own_error_comes() {
        let service = Arc::new(Service::default());
        service.is_down.store(true, Ordering::Relaxed);
        let error = Steady::new(service).get_credential().await.unwrap_err();
        assert!(!is_renewal(&error) && error.to_string().contains("HTTP 500"), "{error}");
    }
}
