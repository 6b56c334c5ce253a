//! One contract, run on every kind of storage: memory, disk, a web server, a real S3 server.

use crate::storage_support::{S3, data, options, storage, with_config};
use bytes::Bytes;
use feedstock_dataset::{ErrorKind, ObjectRef, Storage};
use feedstock_testkit::StaticServer;
use std::io::{Read, Seek, SeekFrom};

/// Names for which bytewise order matters; each breaks some URI parser.
const ODD_NAMES: [&str; 10] = [
    "A.jpg",
    "a b/x y.jpg",
    "a#1",
    "a%20b",
    "a+b&c=d",
    "a-b/1",
    "a.b/1",
    "a/b/c.jpg#2",
    "n\u{e9}\u{1F40D}.tar",
    "q?x=1",
];

fn name<'a>(root: &str, object: &'a ObjectRef) -> &'a str {
    object.uri.strip_prefix(root).unwrap_or_else(|| panic!("{} is not below {root}", object.uri))
}

async fn write_all(storage: &Storage, root: &str) -> Vec<(String, Bytes)> {
    let mut written = Vec::new();
    for (i, name) in ODD_NAMES.iter().enumerate() {
        let bytes = data(1000 + i, i as u64);
        storage.write(&format!("{root}{name}"), bytes.clone()).await.unwrap();
        written.push(((*name).to_owned(), bytes));
    }
    written.sort();
    written
}

/// Lists, heads and reads the objects `written` below `root` (which ends with `/`).
async fn lists_and_reads(storage: &Storage, root: &str, written: &[(String, Bytes)]) {
    let listed = storage.list(root).await.unwrap();
    let names: Vec<_> = listed.iter().map(|o| name(root, o)).collect();
    assert_eq!(names, written.iter().map(|w| w.0.as_str()).collect::<Vec<_>>());
    assert_eq!(storage.list(root.trim_end_matches('/')).await.unwrap(), listed);
    assert_eq!(storage.list_some(root, 3).await.unwrap(), listed[..3]);
    for (object, (_, bytes)) in listed.iter().zip(written) {
        assert_eq!(&storage.head(&object.uri).await.unwrap(), object);
        assert_eq!(storage.list(&object.uri).await.unwrap(), std::slice::from_ref(object));
        assert!(object.etag.is_some(), "{object:?} is not pinned");
        reads_exactly(storage, object, bytes).await;
    }
}

async fn reads_exactly(storage: &Storage, object: &ObjectRef, bytes: &Bytes) {
    assert_eq!(object.size, bytes.len() as u64);
    let len = object.size;
    for range in [0..len, 0..1, len - 1..len, len / 3..len / 2, 5..5, len..len] {
        let got = storage.read(object, range.clone()).await.unwrap();
        assert_eq!(got, bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]);
    }
    for beyond in [0..len + 1, len + 1..len + 2] {
        assert_eq!(storage.read(object, beyond).await.unwrap_err().kind(), ErrorKind::Bug);
    }
    let ranges = [len - 7..len, 0..3, 1..2, 2..2, 900..950, 0..len];
    let pieces = storage.read_ranges(object, &ranges).await.unwrap();
    for (range, piece) in ranges.iter().zip(&pieces) {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        assert_eq!(piece, &bytes[range]);
    }
    assert!(storage.read_ranges(object, &[0..1, 0..len + 1]).await.is_err());
}

async fn reader_agrees(storage: &Storage, object: &ObjectRef, bytes: &Bytes) {
    let (storage, object, bytes) = (storage.clone(), object.clone(), bytes.clone());
    tokio::task::spawn_blocking(move || {
        let mut reader = storage.reader(&object, 64 << 10);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes);
        for at in [0, 1, 70_000, bytes.len() - 1, 65_536, bytes.len()] {
            reader.seek(SeekFrom::Start(at as u64)).unwrap();
            let mut some = vec![0; 1000.min(bytes.len() - at)];
            reader.read_exact(&mut some).unwrap();
            assert_eq!(some, bytes[at..at + some.len()], "at {at}");
        }
        assert_eq!(reader.seek(SeekFrom::End(-3)).unwrap(), bytes.len() as u64 - 3);
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 3);
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 0);
        assert!(reader.seek(SeekFrom::End(-(1 << 40))).is_err());
    })
    .await
    .unwrap();
}

async fn missing_is_gone(storage: &Storage, root: &str) {
    let absent = format!("{root}no/such/object");
    let error = storage.head(&absent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("no/such/object"), "{error}");
    let object = ObjectRef { uri: absent, size: 10, etag: None };
    assert_eq!(storage.read(&object, 0..10).await.unwrap_err().kind(), ErrorKind::Gone);
}

async fn changes_are_noticed(storage: &Storage, uri: &str) {
    storage.write(uri, data(500, 1)).await.unwrap();
    let seen = storage.head(uri).await.unwrap();
    storage.read(&seen, 0..500).await.unwrap();
    for other in [data(500, 2), data(300, 3), data(900, 4)] {
        storage.write(uri, other.clone()).await.unwrap();
        for range in [0..500, 10..20, 350..400] {
            let error = storage.read(&seen, range).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
            assert!(error.message().contains("changed"), "{error}");
        }
        let now = storage.head(uri).await.unwrap();
        assert_ne!(now, seen);
        assert_eq!(storage.read(&now, 0..now.size).await.unwrap(), other);
    }
}

async fn writes_hold(storage: &Storage, root: &str) {
    let uri = format!("{root}w/once");
    storage.write(&uri, data(90, 2)).await.unwrap();
    storage.write(&uri, data(100, 1)).await.unwrap();
    let object = storage.head(&uri).await.unwrap();
    assert_eq!(storage.read(&object, 0..100).await.unwrap(), data(100, 1));

    let first = format!("{root}w/first");
    let creations = (0..8).map(|seed| storage.create(&first, data(100, seed)));
    let created: Vec<bool> =
        futures::future::join_all(creations).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(created.iter().filter(|created| **created).count(), 1, "{created:?}");
    let winner = data(100, created.iter().position(|created| *created).unwrap() as u64);
    assert!(!storage.create(&first, data(90, 2)).await.unwrap());
    // As after a request whose answer was lost.
    assert!(storage.create(&first, winner.clone()).await.unwrap());
    let object = storage.head(&first).await.unwrap();
    assert_eq!(storage.read(&object, 0..100).await.unwrap(), winner);
    storage.delete(&first).await.unwrap();

    let empty = format!("{root}w/empty");
    storage.write(&empty, Bytes::new()).await.unwrap();
    let object = storage.head(&empty).await.unwrap();
    assert_eq!((object.size, storage.read(&object, 0..0).await.unwrap().len()), (0, 0));

    let large = format!("{root}w/large");
    let bytes = data((20 << 20) + 17, 9); // three parts
    storage.write(&large, bytes.clone()).await.unwrap();
    let object = storage.head(&large).await.unwrap();
    reads_exactly(storage, &object, &bytes).await;
    reader_agrees(storage, &object, &bytes).await;

    for gone in [&uri, &empty, &large] {
        storage.delete(gone).await.unwrap();
        storage.delete(gone).await.unwrap(); // the second time is not an error
        assert_eq!(storage.head(gone).await.unwrap_err().kind(), ErrorKind::Gone);
    }
}

async fn contract(storage: &Storage, root: &str) {
    let written = write_all(storage, root).await;
    lists_and_reads(storage, root, &written).await;
    missing_is_gone(storage, root).await;
    changes_are_noticed(storage, &format!("{root}zz/changing")).await;
    writes_hold(storage, root).await;
}

#[tokio::test]
async fn memory() {
    let storage = storage(options());
    contract(&storage, "memory://test/some/folder/").await;
    assert_eq!(storage.list("memory://test/nothing/here").await.unwrap(), []);
}

#[tokio::test]
async fn disk_by_plain_path() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(options());
    contract(&storage, &format!("{}/", dir.path().display())).await;
    let error = storage.list(&format!("{}/typo", dir.path().display())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn disk_by_file_uri() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(options());
    std::fs::create_dir_all(dir.path().join("a b")).unwrap();
    for name in ["a b/#1 %.jpg", "\u{e9}"] {
        std::fs::write(dir.path().join(name), data(2000, 3)).unwrap();
    }
    let listed = storage.list(&format!("file://{}", dir.path().display())).await.unwrap();
    let uris: Vec<_> = listed.iter().map(|o| o.uri.rsplit_once("/a%20b/").map_or("", |x| x.1)).collect();
    assert_eq!(uris, ["%231%20%25.jpg", ""]);
    for object in &listed {
        assert_eq!(&storage.head(&object.uri).await.unwrap(), object);
        reads_exactly(&storage, object, &data(2000, 3)).await;
    }
}

#[tokio::test]
async fn real_s3() {
    let s3 = S3::start();
    let storage = storage(with_config(options(), s3.server.config()));
    contract(&storage, "s3://bucket/some/folder/").await;
    assert_eq!(storage.list("s3://bucket/nothing/here").await.unwrap(), []);
}

/// Lists many class folders at once, page by page; the result is the same as a walk's.
#[tokio::test]
async fn real_s3_lists_many_folders_and_pages() {
    let s3 = S3::start();
    let folder = s3.folder.path().join("bucket/deep/train");
    let mut expected = Vec::new();
    for class in 0..12 {
        std::fs::create_dir_all(folder.join(format!("n{class:02}"))).unwrap();
        for picture in 0..if class == 5 { 1_100 } else { 3 } {
            let name = format!("n{class:02}/{picture:04}.jpg");
            std::fs::write(folder.join(&name), b"x").unwrap();
            expected.push(format!("s3://bucket/deep/train/{name}"));
        }
    }
    expected.sort();
    let storage = storage(with_config(options(), s3.server.config()));
    for root in ["s3://bucket/deep/train", "s3://bucket/deep", "s3://bucket", "s3://bucket/"] {
        let listed = storage.list(root).await.unwrap();
        assert!(listed.iter().map(|o| &o.uri).eq(&expected), "{root}: {} objects", listed.len());
        let some = storage.list_some(root, 40).await.unwrap();
        assert!(some.iter().map(|o| &o.uri).eq(&expected[..40]), "{root}: {} objects", some.len());
    }
}

#[tokio::test]
async fn web_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = StaticServer::start(dir.path()).unwrap();
    let storage = storage(options());
    std::fs::create_dir(dir.path().join("a b")).unwrap();
    for (file, url) in [("x.bin", "x.bin"), ("a b/#1 %.jpg", "a%20b/%231%20%25.jpg")] {
        let bytes = data(100_000, 1);
        std::fs::write(dir.path().join(file), &bytes).unwrap();
        let uri = format!("{}/{url}", server.endpoint());
        let object = storage.head(&uri).await.unwrap();
        assert_eq!(storage.list(&uri).await.unwrap(), std::slice::from_ref(&object));
        assert_eq!(object.uri, uri);
        reads_exactly(&storage, &object, &bytes).await;
        reader_agrees(&storage, &object, &bytes).await;
        // A query (a signature) goes with the request and is in the resulting URI, but is not shown.
        let signed = storage.head(&format!("{uri}?X-Amz-Signature=abc")).await.unwrap();
        reads_exactly(&storage, &signed, &bytes).await;
        assert!(signed.uri.ends_with("?X-Amz-Signature=abc") && !format!("{signed:?}").contains("=abc"));
    }
    missing_is_gone(&storage, &format!("{}/", server.endpoint())).await;

    let seen = storage.head(&format!("{}/x.bin", server.endpoint())).await.unwrap();
    std::fs::write(dir.path().join("x.bin"), data(100_000, 2)).unwrap();
    let error = storage.read(&seen, 0..10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("changed"), "{error}");
}

#[tokio::test]
async fn a_web_folder_cannot_be_listed_and_the_error_says_what_can() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("train")).unwrap();
    let server = StaticServer::start(dir.path()).unwrap();
    let storage = storage(options());
    for path in ["", "/", "/train", "/train/"] {
        let error = storage.list(&format!("{}{path}", server.endpoint())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.message().contains("manifest"), "{error}");
    }
}

#[tokio::test]
async fn a_web_server_without_ranges_serves_whole_files_only() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), data(5000, 1)).unwrap();
    let server = StaticServer::start_without_ranges(dir.path()).unwrap();
    let storage = storage(options());
    let object = storage.head(&format!("{}/x", server.endpoint())).await.unwrap();
    assert_eq!(storage.read(&object, 0..5000).await.unwrap(), data(5000, 1));
    let error = storage.read(&object, 10..20).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
}

/// A caller that blocks its runtime's only thread must not stall storage.
#[test]
fn a_blocked_caller_runtime_does_not_stall_requests() {
    let s3 = S3::start();
    s3.put("x", &data(1000, 1));
    let storage = storage(with_config(options(), s3.server.config()));
    let caller = tokio::runtime::Builder::new_current_thread().build().unwrap(); // no I/O, no timer
    caller.block_on(async {
        let object = storage.head("s3://bucket/x").await.unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let inner = storage.clone();
        storage.io().handle().spawn(async move { send.send(inner.read(&object, 0..1000).await) });
        let bytes = receive.recv_timeout(std::time::Duration::from_secs(10)).unwrap().unwrap();
        assert_eq!(bytes, data(1000, 1));
    });
}
