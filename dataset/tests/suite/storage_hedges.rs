//! Requests whose answers are late are made a second time.

use crate::storage_support::{Case, LEN, data, options};
use feedstock_dataset::{ErrorKind, StorageOptions};
use feedstock_testkit::{Fault, Rule};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

async fn case(hedge: bool) -> Case {
    let (deadline, stall_timeout) = (Duration::from_secs(120), Duration::from_secs(20));
    Case::with(StorageOptions { hedge, deadline, stall_timeout, ..options() }).await
}

#[tokio::test]
async fn requests_that_are_never_answered_cost_little() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::every(60, Fault::StallBeforeHead(MINUTE)));
    with_lost_requests(&case, async |case| {
        case.timed_read().await;
    })
    .await;
}

#[tokio::test]
async fn the_answer_to_the_first_request_is_not_counted_if_it_comes_later() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(Duration::from_millis(1500))));
    let before = case.storage.stats();
    let (took, _) = case.timed_read().await;
    assert!(took < Duration::from_millis(1400), "{took:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = case.storage.stats();
    assert_eq!((after.requests - before.requests, after.hedges, after.retries), (2, 1, 0));
    assert_eq!(after.read_bytes - before.read_bytes, 200_000);
}

#[tokio::test]
async fn without_hedges_the_first_request_is_waited_for() {
    let case = case(false).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(Duration::from_millis(1500))));
    let before = case.storage.stats();
    assert!(case.timed_read().await.0 > Duration::from_millis(1400));
    let after = case.storage.stats();
    assert_eq!((after.requests - before.requests, after.hedges), (1, 0));
}

/// The second request finds another version, and so does the first one.
#[tokio::test]
async fn an_object_that_is_replaced_between_two_requests_is_gone() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(Duration::from_secs(3))));
    let replaced = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        case.s3.put("folder/x", &data(LEN, 8));
    };
    let (read, ()) = tokio::join!(case.storage.read(&case.object, 1000..201_000), replaced);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!((case.storage.stats().hedges, case.storage.stats().read_bytes), (1, 0));
}

/// Makes a request again and again while each 60th one is lost.
async fn with_lost_requests(case: &Case, request: impl AsyncFn(&Case)) {
    for number in 0..300 {
        let began = Instant::now();
        request(case).await;
        assert!(began.elapsed() < Duration::from_secs(3), "request {number}: {:?}", began.elapsed());
    }
    let stats = case.storage.stats();
    assert!((4..=9).contains(&stats.hedges), "{stats:?}");
    assert_eq!((stats.retries, stats.failed), (0, 0), "{stats:?}");
}

#[tokio::test]
async fn heads_that_are_never_answered_cost_little() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::every(60, Fault::StallBeforeHead(MINUTE)).on("HEAD"));
    with_lost_requests(&case, async |case| {
        assert_eq!(case.storage.head("s3://bucket/folder/x").await.unwrap(), case.object);
    })
    .await;
}

#[tokio::test]
async fn pages_of_listings_that_are_never_answered_cost_little() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::every(60, Fault::StallBeforeHead(MINUTE)).at("list-type=2"));
    with_lost_requests(&case, async |case| {
        let listed = case.storage.list("s3://bucket/folder").await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&case.object));
    })
    .await;
}

/// 503 to the hedge of a HEAD request lowers the limit, although the first request succeeds.
#[tokio::test]
async fn a_throttled_hedge_of_a_head_is_counted() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::times(1, Fault::StallBeforeHead(Duration::from_millis(1_400))).on("HEAD"));
    case.s3.proxy.inject(Rule::times(1, Fault::Status(503)).on("HEAD"));
    case.storage.head("s3://bucket/folder/x").await.unwrap();
    let stats = case.storage.stats();
    assert_eq!((stats.hedges, stats.throttled, stats.retries), (1, 1, 0), "{stats:?}");
    assert_eq!(stats.concurrency_limit, 128 / 2);
}
