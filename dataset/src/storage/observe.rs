//! Observes each HTTP answer before object_store turns it into an error.
//!
//! object_store does not expose status codes and `Retry-After`, and the retry decision needs both. This connector notes them
//! in a task-local that the retry loop opens around every attempt.

use super::allow::Allow;
use super::redirect::Redirecting;
use super::retry_after::requested_wait;
use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use std::cell::RefCell;
use std::future::Future;
use std::time::{Duration, SystemTime};

/// The last HTTP exchange of an attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answer {
    /// The status, if a whole header arrived.
    pub(crate) status: Option<u16>,
    /// The wait that it requests.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the exchange was with a cloud's metadata service, in search of credentials.
    pub(crate) for_credentials: bool,
}

tokio::task_local! {
    static ANSWER: RefCell<Answer>;
}

/// Runs one attempt and returns its result with the last answer it saw.
pub(crate) async fn observed<T>(attempt: impl Future<Output = T>) -> (T, Answer) {
    ANSWER
        .scope(RefCell::default(), async move {
            let result = attempt.await;
            (result, ANSWER.with(|answer| *answer.borrow()))
        })
        .await
}

/// Returns the status of the last answer that this attempt saw.
pub(crate) fn status() -> Option<u16> {
    ANSWER.try_with(|answer| answer.borrow().status).ok().flatten()
}

/// Notes the last answer of this attempt.
pub(super) fn note(answer: Answer) {
    let _ = ANSWER.try_with(|cell| *cell.borrow_mut() = answer); // outside an attempt, nothing reads it
}

/// Makes clients that note their answers and check redirects.
#[derive(Debug)]
pub(crate) struct ObservedConnector {
    /// What redirects may lead to.
    pub(crate) allow: Option<Allow>,
}

impl HttpConnector for ObservedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let redirecting = Redirecting::new(options, self.allow.clone())?;
        Ok(HttpClient::new(Observed(HttpClient::new(redirecting))))
    }
}

#[derive(Debug)]
struct Observed(HttpClient);

/// Where clouds provide machines with credentials: link-local, so never a store.
const METADATA_HOSTS: [&str; 4] =
    ["169.254.169.254", "169.254.170.2", "169.254.170.23", "metadata.google.internal"];

/// The same service at another address (`aws_metadata_endpoint`); no bucket has such a name.
const METADATA_PATHS: [&str; 2] = ["/latest/api/token", "/latest/meta-data/iam/security-credentials"];

#[async_trait]
impl HttpService for Observed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let for_credentials = uri.host().is_some_and(|host| METADATA_HOSTS.contains(&host))
            || METADATA_PATHS.iter().any(|path| uri.path().starts_with(path));
        note(Answer { for_credentials, ..Answer::default() });
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        let retry_after = requested_wait(status, response.headers(), SystemTime::now());
        note(Answer { status: Some(status), retry_after, for_credentials });
        Ok(response)
    }
}
