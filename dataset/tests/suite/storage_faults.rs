//! Faults of a real S3 server, injected by a proxy in front of it: nothing is lost or wrong, and retries are counted.

use crate::storage_support::{Case, LEN, data, options, storage};
use feedstock_dataset::ErrorKind;
use feedstock_testkit::{Fault, FaultProxy, Rule, StaticServer};
use futures::StreamExt;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

impl Case {
    /// Reads a range `times` times under `rule` and checks the bytes and the count of retries.
    async fn survives(&self, rule: Rule, retries: u64) {
        let before = self.storage.stats();
        let what = format!("{rule:?}");
        self.s3.proxy.inject(rule);
        let got =
            self.storage.read(&self.object, 1000..201_000).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(got, self.bytes.slice(1000..201_000), "{what}");
        let after = self.storage.stats();
        assert_eq!(after.retries - before.retries, retries, "{what}");
        assert_eq!(after.requests - before.requests, retries + 1, "{what}");
        assert_eq!(after.read_bytes - before.read_bytes, 200_000, "{what}");
        self.s3.proxy.heal();
    }
}

#[tokio::test]
async fn each_passing_fault_is_survived() {
    let case = Case::new().await;
    for status in [500, 502, 503, 504, 429, 408] {
        case.survives(Rule::times(3, Fault::Status(status)), 3).await;
    }
    for fault in [
        Fault::ResetMidBody(0),
        Fault::ResetMidBody(100_000),
        Fault::ShortBody(0),
        Fault::ShortBody(199_999),
        Fault::ShortLength(0),
        Fault::ShortLength(150_000),
    ] {
        case.survives(Rule::times(1, fault), 1).await;
    }
}

/// Backblaze B2 answers a conditional write with 501.
#[tokio::test]
async fn without_conditional_writes_the_object_is_looked_for_first() {
    let case = Case::new().await;
    let uri = "s3://bucket/folder/new";
    for (seed, is_new) in [(1, true), (2, false)] {
        case.s3.proxy.inject(Rule::times(1, Fault::Status(501)));
        assert_eq!(case.storage.create(uri, data(100, seed)).await.unwrap(), is_new);
        case.s3.proxy.heal();
    }
    let object = case.storage.head(uri).await.unwrap();
    assert_eq!(case.storage.read(&object, 0..100).await.unwrap(), data(100, 1));
}

/// Bytes that arrived are not requested again: each request but the first begins where the previous one ended.
#[tokio::test]
async fn a_broken_read_goes_on_where_it_ended() {
    let case = Case::new().await;
    for fault in [Fault::ResetMidBody(100_000), Fault::ShortBody(100_000), Fault::ShortLength(100_000)] {
        case.s3.proxy.forget();
        case.survives(Rule::times(1, fault.clone()), 1).await;
        let ranges: Vec<_> =
            case.s3.proxy.log().into_iter().map(|e| (e.range.unwrap(), e.if_match)).collect();
        let etag = case.object.etag.clone();
        let expected = ["bytes=1000-200999", "bytes=101000-200999"].map(|range| (range.into(), etag.clone()));
        assert_eq!(ranges, expected, "{fault:?}");
    }
}

/// Only the size pins such an object, so the first half may be of another version than the second.
#[tokio::test]
async fn a_broken_read_of_an_object_without_a_version_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = data(LEN, 7);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let server = StaticServer::start_without_etags(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let storage = storage(options());
    let object = storage.head(&format!("{}/x", proxy.endpoint())).await.unwrap();
    assert_eq!(object.etag, None);
    proxy.forget();
    proxy.inject(Rule::times(1, Fault::ResetMidBody(100_000)));
    assert_eq!(storage.read(&object, 1000..201_000).await.unwrap(), bytes.slice(1000..201_000));
    let ranges: Vec<_> = proxy.log().into_iter().map(|exchange| exchange.range.unwrap()).collect();
    assert_eq!(ranges, ["bytes=1000-200999"; 2]);
}

/// Only an ETag on both answers proves that the rest is of the same version; the server may have ignored `If-Match`.
#[tokio::test]
async fn a_broken_read_goes_on_only_where_the_rest_shows_the_same_etag() {
    let case = Case::new().await;
    case.s3.proxy.inject(Rule::times(1, Fault::ResetMidBody(100_000)));
    case.survives(Rule::times(1, Fault::WithoutHeader("etag")), 2).await;
    let ranges: Vec<_> = case.s3.proxy.log().into_iter().map(|e| e.range.unwrap()).collect();
    assert_eq!(ranges, ["bytes=1000-200999", "bytes=101000-200999", "bytes=1000-200999"]);
}

/// Two contents may have the same `Last-Modified`, whose resolution is a second.
#[tokio::test]
async fn a_broken_read_of_an_object_with_a_time_of_change_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = data(LEN, 7);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let server = StaticServer::start_with_times(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let storage = storage(options());
    let object = storage.head(&format!("{}/x", proxy.endpoint())).await.unwrap();
    proxy.forget();
    proxy.inject(Rule::times(1, Fault::ResetMidBody(100_000)));
    assert_eq!(storage.read(&object, 1000..201_000).await.unwrap(), bytes.slice(1000..201_000));
    let ranges: Vec<_> = proxy.log().into_iter().map(|exchange| exchange.range.unwrap()).collect();
    assert_eq!(ranges, ["bytes=1000-200999"; 2]);
}

#[tokio::test]
async fn a_broken_read_of_a_server_without_ranges_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = data(LEN, 7);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let server = StaticServer::start_without_ranges(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let storage = storage(options());
    let object = storage.head(&format!("{}/x", proxy.endpoint())).await.unwrap();
    proxy.inject(Rule::times(1, Fault::ResetMidBody(100_000)).on("GET"));
    assert_eq!(storage.read(&object, 0..object.size).await.unwrap(), bytes);
}

/// 400 bytes/s are not a stall, but at that rate the read would take four minutes.
#[tokio::test]
async fn a_connection_that_trickles_is_given_up_for_another_one() {
    let case = Case::new().await;
    let began = Instant::now();
    case.survives(Rule::times(1, Fault::TrickleMidBody(100_000, 400)), 1).await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    let second = case.s3.proxy.log()[1].clone();
    let start: u64 =
        second.range.unwrap().trim_start_matches("bytes=").split('-').next().unwrap().parse().unwrap();
    assert!((101_000..110_000).contains(&start), "it continues at {start}");
    assert_eq!(second.if_match, case.object.etag);
}

#[tokio::test]
async fn a_store_that_only_trickles_is_tried_several_times_and_the_error_says_what_arrived() {
    let short = feedstock_dataset::StorageOptions { deadline: Duration::from_secs(4), ..options() };
    let case = Case::with(short).await;
    case.s3.proxy.inject(Rule::always(Fault::TrickleMidBody(0, 400)));
    let began = Instant::now();
    let error = case.storage.read(&case.object, 1000..201_000).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert!(case.s3.proxy.log().len() >= 3, "{error}");
    for part in [" of 200000 bytes had arrived", "attempts", "64 KiB/s"] {
        assert!(error.message().contains(part), "'{part}' is not in: {error}");
    }
    for untrue in ["nothing arrived", " 0 of 200000"] {
        assert!(!error.message().contains(untrue), "{error}");
    }
}

/// 3 s at 100 kB/s, with a deadline of 2 s.
#[tokio::test]
async fn a_slow_read_that_makes_progress_outlasts_its_deadline() {
    let short = feedstock_dataset::StorageOptions { deadline: Duration::from_secs(2), ..options() };
    let case = Case::with(short).await;
    case.s3.proxy.inject(Rule::always(Fault::TrickleMidBody(0, 100_000)));
    let began = Instant::now();
    let got = case.storage.read(&case.object, 0..LEN as u64).await.unwrap();
    assert_eq!(got, case.bytes);
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
}

/// A large range is several requests; a fault of one does not affect the others.
#[tokio::test]
async fn a_large_range_is_split_and_its_pieces_are_resumed() {
    let case = Case::new().await;
    let large = data((96 << 20) + 10, 5); // three equal pieces, so that it does not matter which is reset
    case.s3.put("large", &large);
    let object = case.storage.head("s3://bucket/large").await.unwrap();
    case.s3.proxy.forget();
    case.s3.proxy.inject(Rule::times(1, Fault::ResetMidBody(10 << 20)));
    let got = case.storage.read(&object, 5..object.size - 5).await.unwrap();
    assert!(got == large.slice(5..large.len() - 5));
    let log = case.s3.proxy.log();
    assert_eq!(log.len(), 4, "three pieces and the rest of one");
    let asked: u64 = log
        .iter()
        .map(|exchange| {
            let range = exchange.range.as_deref().unwrap().trim_start_matches("bytes=");
            let (first, last) = range.split_once('-').unwrap();
            last.parse::<u64>().unwrap() + 1 - first.parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(asked, (96 << 20) + (22 << 20), "10 of a piece's 32 MiB were kept");
}

/// hyper itself sends a request again when a pooled connection dies before any answer, so our count of retries is at most the
/// number of resets.
#[tokio::test]
async fn resets_before_the_answer_are_survived() {
    let case = Case::new().await;
    case.s3.proxy.inject(Rule::times(3, Fault::ResetBeforeHead));
    let got = case.storage.read(&case.object, 0..1000).await.unwrap();
    assert_eq!(got, case.bytes.slice(0..1000));
    assert_eq!(case.s3.proxy.log().len(), 4);
    assert!((1..=3).contains(&case.storage.stats().retries));
}

#[tokio::test]
async fn stalls_are_cut_and_asked_again() {
    let stall = Duration::from_secs(1);
    let case = Case::with(feedstock_dataset::StorageOptions { stall_timeout: stall, ..options() }).await;
    let long = Duration::from_secs(30);
    let began = Instant::now();
    case.survives(Rule::times(1, Fault::StallBeforeHead(long)), 1).await;
    case.survives(Rule::times(1, Fault::StallMidBody(100_000, long)), 1).await;
    case.survives(Rule::times(1, Fault::StallMidBody(0, long)), 1).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // Slow but moving is not a stall.
    case.survives(Rule::times(1, Fault::Latency(stall / 5)), 0).await;
}

#[tokio::test]
async fn retry_after_is_obeyed() {
    let case = Case::new().await;
    let began = Instant::now();
    case.survives(Rule::times(1, Fault::StatusRetryAfter(503, 1)), 1).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn after_the_deadline_the_error_says_how_often_how_long_and_why() {
    let short = feedstock_dataset::StorageOptions { deadline: Duration::from_millis(700), ..options() };
    let case = Case::with(short).await;
    case.s3.proxy.inject(Rule::always(Fault::Status(503)));
    let began = Instant::now();
    let error = case.storage.read(&case.object, 0..10).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(3));
    assert_eq!(error.kind(), ErrorKind::Retryable);
    for part in ["s3://bucket/folder/x", "bytes 0..10", "attempts", "deadline", "503", "SlowDown"] {
        assert!(error.message().contains(part), "'{part}' is not in: {error}");
    }
    assert!(case.storage.stats().retries >= 2);
    assert_eq!(case.storage.stats().failed, 1);
}

/// A permanent error is requested once, since retrying does not help.
#[tokio::test]
async fn lasting_faults_are_not_retried() {
    let case = Case::new().await;
    for (status, kind) in [(403, ErrorKind::Denied), (401, ErrorKind::Denied), (400, ErrorKind::BadConfig)] {
        case.s3.proxy.forget();
        case.s3.proxy.inject(Rule::always(Fault::Status(status)));
        let error = case.storage.read(&case.object, 0..10).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(case.s3.proxy.log().len(), 1, "{error}");
        case.s3.proxy.heal();
    }
}

#[tokio::test]
async fn if_match_is_sent_and_its_refusal_is_a_changed_object() {
    let case = Case::new().await;
    case.storage.read(&case.object, 0..10).await.unwrap();
    assert_eq!(case.s3.proxy.log()[0].if_match, case.object.etag);
    for fault in [Fault::Status(412), Fault::OtherEtag("another".into())] {
        case.s3.proxy.inject(Rule::always(fault));
        let error = case.storage.read(&case.object, 0..10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.message().contains("changed since the catalog was built"), "{error}");
        case.s3.proxy.heal();
    }
    assert_eq!(case.storage.stats().retries, 0);
}

#[tokio::test]
async fn listings_and_writes_survive_too() {
    let case = Case::new().await;
    for i in 0..30 {
        case.s3.put(&format!("many/{}/{i}", i % 10), &data(10, i));
    }
    case.s3.proxy.inject(Rule::every(3, Fault::Status(503)).on("GET"));
    case.s3.proxy.inject(Rule::every(4, Fault::ResetBeforeHead).on("HEAD"));
    assert_eq!(case.storage.list("s3://bucket/many").await.unwrap().len(), 30);
    case.s3.proxy.heal();
    case.s3.proxy.inject(Rule::every(2, Fault::Status(503)));
    let large = data(20 << 20, 3);
    case.storage.write("s3://bucket/large", large.clone()).await.unwrap();
    case.storage.write("s3://bucket/small", data(10, 1)).await.unwrap();
    case.s3.proxy.heal();
    let object = case.storage.head("s3://bucket/large").await.unwrap();
    assert_eq!(case.storage.read(&object, 0..object.size).await.unwrap(), large);
    assert!(case.storage.stats().retries >= 5);
}

/// The upload is joined, but the answer is lost: the second request finds no upload, but the object exists.
#[tokio::test]
async fn a_lost_answer_to_the_last_request_of_a_large_write_is_no_failure() {
    let case = Case::new().await;
    let large = data(20 << 20, 3);
    let lose_the_answer = |case: &Case| {
        case.s3.proxy.inject(Rule::times(1, Fault::ResetMidBody(0)).on("POST").at("uploadId="));
        case.s3.proxy.inject(Rule::always(Fault::Status(404)).on("POST").at("uploadId=")); // as S3: NoSuchUpload
    };
    lose_the_answer(&case);
    case.storage.write("s3://bucket/large", large.clone()).await.unwrap();
    case.s3.proxy.heal();
    let object = case.storage.head("s3://bucket/large").await.unwrap();
    assert_eq!(case.storage.read(&object, 0..object.size).await.unwrap(), large);

    // An object of the same size that existed before is not what was written.
    case.s3.proxy.inject(Rule::always(Fault::Status(404)).on("POST").at("uploadId="));
    let error = case.storage.write("s3://bucket/large", data(20 << 20, 4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A line of 200 KB/s that eight answers share: each is below the minimum rate, and all would be cut for ever.
#[tokio::test]
async fn a_line_below_the_least_rate_of_all_requests_lowers_their_number() {
    const BYTES: usize = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let bytes = data(BYTES, 7);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let server = StaticServer::start_without_etags(folder.path()).unwrap(); // the bytes of a cut answer are lost
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let limits = feedstock_dataset::StorageOptions {
        stall_timeout: Duration::from_secs(2), // so the minimum rate is checked after 1 s
        deadline: Duration::from_secs(30),
        max_concurrency: NonZeroUsize::new(8),
        ..options()
    };
    let storage = storage(limits);
    let object = storage.head(&format!("{}/x", proxy.endpoint())).await.unwrap();
    proxy.inject(Rule::always(Fault::SharedLine(200_000)));
    let reads = futures::future::join_all((0..16).map(|_| storage.read(&object, 0..BYTES as u64))).await;
    for read in reads {
        assert_eq!(read.unwrap(), bytes);
    }
    let stats = storage.stats();
    assert!(stats.concurrency_limit <= 4, "{stats:?}");
    assert_eq!(stats.throttled, 0, "the store did not throttle");
}

/// A store that allows four requests at once: the limit falls to about that, nothing is lost, and the limit rises again when
/// the store is healthy.
#[tokio::test]
async fn throttling_lowers_concurrency_and_it_recovers() {
    let case =
        Case::with(feedstock_dataset::StorageOptions { max_concurrency: NonZeroUsize::new(32), ..options() })
            .await;
    let burst = Duration::from_secs(4); // less than a stall
    let slow = Fault::Latency(Duration::from_millis(30));
    let read_many = |n: u64| {
        let (storage, object, bytes) = (case.storage.clone(), case.object.clone(), case.bytes.clone());
        async move {
            futures::stream::iter(0..n)
                .map(|i| {
                    let (storage, object, bytes) = (storage.clone(), object.clone(), bytes.clone());
                    async move {
                        let range = i * 100..i * 100 + 100;
                        let got = storage.read(&object, range).await.unwrap();
                        let start = usize::try_from(i * 100).unwrap();
                        assert_eq!(got, bytes.slice(start..start + 100));
                    }
                })
                .buffer_unordered(64)
                .count()
                .await
        }
    };
    case.s3
        .proxy
        .inject(Rule::always(Fault::StatusAfter(503, Duration::from_millis(50))).over_concurrency(4));
    case.s3.proxy.inject(Rule::always(slow.clone()));
    case.s3.proxy.gather(17, burst);
    assert_eq!(read_many(200).await, 200);
    let first_peak = case.s3.proxy.concurrency_peak();
    assert!(first_peak > 16, "the first burst used the whole limit: {first_peak}");
    assert!(case.storage.stats().throttled > 0);

    case.s3.proxy.forget();
    assert_eq!(read_many(200).await, 200);
    let calm_peak = case.s3.proxy.concurrency_peak();
    let limit = case.storage.stats().concurrency_limit;
    assert!(calm_peak <= 12, "peak {calm_peak}, limit {limit} against an allowance of 4");

    case.s3.proxy.heal();
    case.s3.proxy.inject(Rule::always(slow));
    assert_eq!(read_many(1200).await, 1200);
    let limit = case.storage.stats().concurrency_limit;
    assert!(limit >= 28, "limit {limit} after recovery");
    case.s3.proxy.forget();
    case.s3.proxy.gather(20, burst);
    assert_eq!(read_many(64).await, 64);
    let peak = case.s3.proxy.concurrency_peak();
    assert!(peak >= 20, "the limit of {limit} is used: {peak}");
}
