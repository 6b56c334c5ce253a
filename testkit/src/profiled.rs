//! Answers of a server, delayed and paced by a [`Profile`]. A delay takes no CPU time.

use crate::rate_limit::RateLimit;
use bytes::Bytes;
use feedstock_base::{Fate, StoreProfile as Profile};
use futures::FutureExt;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Response, StatusCode};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Bytes that a body sends at once: 0.8 ms at 85 MB/s.
const PIECE_BYTES: usize = 64 << 10;

/// Applies a profile to all requests of one server.
#[derive(Debug)]
pub(crate) struct Profiled {
    profile: Profile,
    seed: u64,
    origin: Instant,
    limit: Mutex<RateLimit>,
    requests: AtomicU64,
    lost: AtomicU64,
    throttled: AtomicU64,
}

/// What a server with a profile has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProfileCounts {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that were never answered.
    pub lost: u64,
    /// Requests that were answered with 503.
    pub throttled: u64,
}

/// An answer at the rate of its connection.
pub(crate) type Answer<B> = Response<Either<Paced<B>, Full<Bytes>>>;

impl Profiled {
    pub(crate) fn new(profile: Profile, seed: u64) -> Self {
        let limit = Mutex::new(RateLimit::new(profile.requests_per_s));
        let counter = AtomicU64::default;
        let (requests, lost, throttled) = (counter(), counter(), counter());
        Self { profile, seed, origin: Instant::now(), limit, requests, lost, throttled }
    }

    pub(crate) fn counts(&self) -> ProfileCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProfileCounts {
            requests: get(&self.requests),
            lost: get(&self.lost),
            throttled: get(&self.throttled),
        }
    }

    /// Delays the answer of `served`, or sends another one, as the request's fate is.
    pub(crate) async fn answer<B, E>(
        &self,
        served: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Answer<B>, E> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let is_served = self.limit.lock().unwrap_or_else(PoisonError::into_inner).take(self.origin.elapsed());
        if !is_served {
            self.throttled.fetch_add(1, Ordering::Relaxed);
            sleep(self.profile.refusal()).await;
            return Ok(slow_down());
        }
        let Fate { first_byte, bytes_per_s } = self.profile.fate(self.seed, number);
        let Some(first_byte) = first_byte else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return std::future::pending().await; // until the client closes the connection
        };
        let answer = served.await?;
        sleep_until(began + first_byte).await;
        Ok(answer.map(|body| Either::Left(Paced::new(body, bytes_per_s))))
    }
}

/// As [`Profiled::answer`]; without a profile, the answer is sent at once.
pub(crate) async fn answer<B, E>(
    profiled: Option<&Profiled>,
    served: impl Future<Output = Result<Response<B>, E>>,
) -> Result<Answer<B>, E> {
    match profiled {
        Some(profiled) => profiled.answer(served).await,
        None => Ok(served.await?.map(|body| Either::Left(Paced::new(body, f64::INFINITY)))),
    }
}

fn slow_down<B>() -> Answer<B> {
    let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
    let mut answer = Response::new(Either::Right(Full::from(body)));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer
}

/// A body that comes at a constant rate, which may be infinite.
pub(crate) struct Paced<B> {
    inner: Pin<Box<B>>,
    bytes_per_s: f64,
    began: Option<Instant>,
    sent: u64,
    /// Data that the inner body has handed out and that are not sent yet.
    held: Bytes,
    until: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    fn new(inner: B, bytes_per_s: f64) -> Self {
        let inner = Box::pin(inner);
        Self { inner, bytes_per_s, began: None, sent: 0, held: Bytes::new(), until: None }
    }

    /// Returns when the piece of `length` bytes that follows has arrived.
    fn due(&mut self, length: usize) -> Instant {
        let began = *self.began.get_or_insert_with(Instant::now);
        self.sent += length as u64;
        began + Duration::from_secs_f64(self.sent as f64 / self.bytes_per_s)
    }
}

impl<B: Body<Data = Bytes>> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if this.bytes_per_s.is_infinite() {
            return this.inner.as_mut().poll_frame(context);
        }
        if this.held.is_empty() {
            match ready!(this.inner.as_mut().poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.held = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = this.held.len().min(PIECE_BYTES);
        if this.until.is_none() {
            let due = this.due(length);
            this.until = Some(Box::pin(sleep_until(due)));
        }
        if let Some(until) = &mut this.until {
            ready!(until.poll_unpin(context));
        }
        this.until = None;
        Poll::Ready(Some(Ok(Frame::data(this.held.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), self.held.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + held);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::convert::Infallible;

    const QUIET: Profile = Profile {
        first_byte_sigma: 0.0,
        slow_share: 0.0,
        stuck_share: 0.0,
        lost_share: 0.0,
        bytes_per_s_sigma: 0.0,
        trickle_share: 0.0,
        ..Profile::S3
    };

    async fn served(bytes: usize) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(Response::new(Full::new(vec![7; bytes].into())))
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_comes_after_its_time_and_the_body_at_its_rate() {
        let profiled = Profiled::new(QUIET, 1);
        let began = Instant::now();
        let answer = profiled.answer(served(8_500_000)).await.unwrap();
        assert_eq!(began.elapsed().as_millis(), 27);
        assert_eq!(answer.body().size_hint().exact(), Some(8_500_000));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.len() == 8_500_000 && body.iter().all(|byte| *byte == 7));
        let took = began.elapsed().as_millis();
        assert!((127..=128).contains(&took), "100 ms for the body, in {took} ms; timers round up");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_above_the_rate_are_refused_and_lost_ones_are_not_answered() {
        let profiled = Profiled::new(Profile { requests_per_s: 2.0, ..QUIET }, 1);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(profiled.answer(served(1)).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 503]);
        let lost = Profiled::new(Profile { lost_share: 1.0, ..QUIET }, 1);
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, lost.answer(served(1))).await.is_err());
        assert_eq!(lost.counts(), ProfileCounts { requests: 1, lost: 1, throttled: 0 });
    }
}
