//! URLs that are signed one by one.

use crate::storage_support::{data, options, storage};
use bytes::Bytes;
use feedstock_dataset::{ErrorKind, StorageOptions};
use feedstock_testkit::{Fault, FaultProxy, Rule, StaticServer};
use std::num::NonZeroUsize;
use std::time::Duration;

fn methods(proxy: &FaultProxy) -> Vec<String> {
    let log = proxy.log();
    proxy.forget();
    log.into_iter().map(|exchange| exchange.method).collect()
}

/// A signature of S3 covers the method: the server answers HEAD of such a URL with 403.
#[tokio::test]
async fn a_url_that_is_presigned_for_get_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x"), data(1_000, 3)).unwrap();
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    let server = StaticServer::start_presigned(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let url = |path: &str| format!("{}{}", proxy.endpoint(), StaticServer::presigned("GET", path));
    let storage = storage(options());
    let object = storage.head(&url("/x")).await.unwrap();
    assert_eq!(object.size, 1_000);
    assert!(object.etag.is_some());
    assert_eq!(methods(&proxy), ["GET"]);
    assert_eq!(storage.read(&object, 10..20).await.unwrap(), data(1_000, 3).slice(10..20));
    assert_eq!(storage.list(&url("/x")).await.unwrap(), [object]);
    assert_eq!(storage.head(&url("/empty")).await.unwrap().size, 0);
    assert_eq!(storage.head(&url("/none")).await.unwrap_err().kind(), ErrorKind::Gone);
    let head = format!("{}{}", proxy.endpoint(), StaticServer::presigned("HEAD", "/x"));
    let error = storage.head(&head).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_server_that_refuses_head_is_asked_by_get() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x"), data(1_000, 3)).unwrap();
    for server in [StaticServer::start(folder.path()), StaticServer::start_without_ranges(folder.path())] {
        let server = server.unwrap();
        let proxy = FaultProxy::start(&server.endpoint()).unwrap();
        let storage = storage(options());
        let url = format!("{}/x", proxy.endpoint());
        let expected = storage.head(&url).await.unwrap();
        assert_eq!(methods(&proxy), ["HEAD"]);
        for status in [403, 405, 501] {
            proxy.inject(Rule::always(Fault::Status(status)).on("HEAD"));
            assert_eq!(storage.head(&url).await.unwrap(), expected, "{status}");
            assert_eq!(methods(&proxy)[..2], ["HEAD", "GET"]);
            proxy.heal();
        }
    }
}

/// Each is a store, but all share one host.
#[tokio::test]
async fn urls_that_are_signed_one_by_one_share_their_hosts_limit() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Bytes = data(1_000, 3);
    std::fs::write(folder.path().join("x"), &bytes).unwrap();
    let server = StaticServer::start(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let storage = storage(StorageOptions { max_concurrency: NonZeroUsize::new(2), ..options() });
    proxy.inject(Rule::always(Fault::Latency(Duration::from_millis(20))));
    let reads = (0..24).map(|i| {
        let (storage, url) = (&storage, format!("{}/x?X-Amz-Signature={i}", proxy.endpoint()));
        async move {
            let object = storage.head(&url).await.unwrap();
            storage.read(&object, 0..1_000).await.unwrap()
        }
    });
    assert!(futures::future::join_all(reads).await.iter().all(|read| *read == bytes));
    assert!(proxy.concurrency_peak() <= 2, "{} requests at once", proxy.concurrency_peak());
}
