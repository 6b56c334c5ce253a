//! Reads whose first byte is late are requested a second time.

use crate::storage_support::{Case, LEN, data, options};
use feedstock_dataset::{ErrorKind, StorageOptions};
use feedstock_testkit::{Fault, Rule};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

async fn case(hedge: bool) -> Case {
    let (deadline, stall_timeout) = (Duration::from_secs(120), Duration::from_secs(20));
    Case::with(StorageOptions { hedge, deadline, stall_timeout, ..options() }).await
}

#[tokio::test]
async fn requests_that_are_never_answered_cost_little() {
    let case = case(true).await;
    case.s3.proxy.inject(Rule::every(60, Fault::StallBeforeHead(MINUTE)));
    for read in 0..300 {
        let (took, _) = case.timed_read().await;
        assert!(took < Duration::from_secs(3), "read {read}: {took:?}");
    }
    let stats = case.storage.stats();
    assert!((4..=9).contains(&stats.hedges), "{stats:?}");
    assert_eq!((stats.retries, stats.failed), (0, 0), "{stats:?}");
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
