//! Faults of a store while reads are hedged: no read waits for a lost request, and none returns other bytes.

use crate::storage_support::{Case, data, options, storage};
use bytes::Bytes;
use feedstock_dataset::{ErrorKind, StorageOptions};
use feedstock_testkit::{Fault, Profile, Rule, StaticServer};
use futures::{StreamExt, TryStreamExt};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Until a store's latencies are known, an answer is late after a second.
const LATE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(1_900);

/// The default time limits, with a second request for late reads.
fn hedged() -> StorageOptions {
    let defaults = StorageOptions::default();
    StorageOptions {
        hedge: true,
        deadline: defaults.deadline,
        stall_timeout: defaults.stall_timeout,
        ..options()
    }
}

/// Permits are never free at the moment when the answer is late.
#[tokio::test]
async fn a_request_that_is_lost_in_a_saturated_pipeline_costs_little() {
    let case = Case::with(StorageOptions { max_concurrency: NonZeroUsize::new(4), ..hedged() }).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(MINUTE)));
    case.s3.proxy.inject(Rule::always(Fault::Latency(Duration::from_millis(20))));
    let began = Instant::now();
    let reads = (0..800_u64).map(|i| case.storage.read(&case.object, i * 100..i * 100 + 50));
    let reads: Vec<Bytes> = futures::stream::iter(reads).buffered(400).try_collect().await.unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(took > LATE, "the requests take 4 s: at the end of the patience others are waiting");
    for (i, read) in reads.iter().enumerate() {
        assert_eq!(*read, case.bytes.slice(i * 100..i * 100 + 50));
    }
    let stats = case.storage.stats();
    assert_eq!((stats.retries, stats.failed, stats.read_bytes), (0, 0, 800 * 50), "{stats:?}");
    assert!(stats.hedges >= 1 && stats.concurrency_peak == 4, "{stats:?}");
}

#[tokio::test]
async fn a_hedge_that_finds_another_version_ends_the_read_at_once() {
    let case = Case::with(hedged()).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(MINUTE)));
    case.s3.proxy.inject(Rule::always(Fault::Status(412)));
    let began = Instant::now();
    let error = case.storage.read(&case.object, 1000..201_000).await.unwrap_err();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert!(error.message().contains("changed since the catalog was built"), "{error}");
}

/// The store ignores `If-Match`, and the ETag in the answer to the hedge is another one.
#[tokio::test]
async fn a_hedge_with_another_etag_is_refused() {
    let case = Case::with(hedged()).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(MINUTE)));
    case.s3.proxy.inject(Rule::always(Fault::OtherEtag("another".into())));
    let began = Instant::now();
    let error = case.storage.read(&case.object, 1000..201_000).await.unwrap_err();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert_eq!(case.storage.stats().read_bytes, 0);
}

#[tokio::test]
async fn a_hedge_wins_after_the_first_request_has_failed() {
    let case = Case::with(hedged()).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StatusAfter(500, LATE + Duration::from_millis(300))));
    case.s3.proxy.inject(Rule::times(1, Fault::Latency(Duration::from_millis(600))));
    let (_, stats) = case.timed_read().await;
    assert_eq!((stats.hedges, stats.retries, case.s3.proxy.log().len()), (1, 0, 2), "{stats:?}");
}

/// 503 to a hedge lowers the limit, although the first request succeeds.
#[tokio::test]
async fn a_throttled_hedge_is_counted() {
    let case = Case::with(hedged()).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(LATE + Duration::from_millis(400))));
    case.s3.proxy.inject(Rule::times(1, Fault::Status(503)));
    let (_, stats) = case.timed_read().await;
    assert_eq!((stats.hedges, stats.throttled, stats.retries), (1, 1, 0), "{stats:?}");
    assert_eq!(stats.concurrency_limit, 128 / 2);
}

/// The body stalls, not the head: the rest is requested from where it ended.
#[tokio::test]
async fn half_a_body_and_a_stall_are_resumed() {
    let case = Case::with(StorageOptions { stall_timeout: 2 * LATE, ..hedged() }).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallMidBody(100_000, MINUTE)));
    let (took, stats) = case.timed_read().await;
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!((stats.hedges, stats.retries, stats.read_bytes), (0, 1, 200_000), "{stats:?}");
    let ranges: Vec<_> = case.s3.proxy.log().into_iter().map(|exchange| exchange.range.unwrap()).collect();
    assert_eq!(ranges, ["bytes=1000-200999", "bytes=101000-200999"]);
}

#[tokio::test]
async fn a_retry_after_beyond_the_deadline_is_obeyed_as_far_as_it_allows() {
    let case = Case::with(StorageOptions { deadline: 4 * LATE, ..hedged() }).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StatusRetryAfter(503, 3600)));
    let (took, stats) = case.timed_read().await;
    assert!((LATE..3 * LATE).contains(&took), "{took:?}");
    assert_eq!((stats.retries, stats.throttled), (1, 1), "{stats:?}");
    case.s3.proxy.inject(Rule::always(Fault::StatusRetryAfter(503, 3600)));
    let began = Instant::now();
    let error = case.storage.read(&case.object, 0..10).await.unwrap_err();
    assert!(began.elapsed() < 5 * LATE, "{:?}", began.elapsed());
    assert!(error.message().contains("it requests a wait of 3600 s"), "{error}");
}

/// A store as real ones are, with ten times their lost requests.
#[tokio::test]
async fn reads_from_a_realistic_store_wait_for_no_lost_request() {
    const READS: usize = 4_000;
    const BYTES: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let bytes = data(BYTES, 3);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let profile = Profile { lost_share: 1e-3, ..Profile::S3 };
    let server = StaticServer::start_profiled(folder.path(), profile, 1).unwrap();
    let storage = storage(hedged());
    let object = storage.head(&format!("{}/x", server.endpoint())).await.unwrap();
    let read = || async {
        let began = Instant::now();
        assert_eq!(storage.read(&object, 0..BYTES as u64).await.unwrap(), bytes);
        began.elapsed()
    };
    let reads = std::iter::repeat_with(read).take(READS);
    let times: Vec<Duration> = futures::stream::iter(reads).buffer_unordered(32).collect().await;
    let (longest, stats, counts) = (times.iter().max().unwrap(), storage.stats(), server.profile_counts());
    assert!(counts.lost >= 5, "{counts:?}");
    assert!(*longest < Duration::from_secs(3), "{longest:?}"); // 1 s for the first hundred reads, and a busy machine
    assert!(stats.hedges <= 4 + READS as u64 / 50, "{stats:?}");
    assert_eq!((stats.failed, stats.retries), (0, 0), "{stats:?}");
}
