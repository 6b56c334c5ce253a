//! Signatures and passwords of URLs are in requests, and nowhere else.

use crate::format_common::{all_rows, options, picture, tar_of, texts as texts_of, write_parquet};
use feedstock_dataset::{BlockId, CatalogStore, Dataset, Error, ErrorKind, OpenOptions, Result, SampleId};
use feedstock_testkit::{FaultProxy, StaticServer};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const SECRETS: [&str; 3] = ["SIGNATURE-1", "SIGNATURE-2", "PASSWORD-1"];

struct Case {
    data: TempDir,
    cache: TempDir,
    _server: StaticServer,
    proxy: FaultProxy,
}

impl Case {
    fn new() -> Self {
        let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = StaticServer::start(data.path()).unwrap();
        let proxy = FaultProxy::start(&server.endpoint()).unwrap();
        Self { data, cache, _server: server, proxy }
    }

    fn url(&self, name: &str, signature: &str) -> String {
        let host = self.proxy.endpoint().replace("http://", "http://user:PASSWORD-1@");
        format!("{host}/{name}?X-Amz-Date=20260101&X-Amz-Signature={signature}")
    }

    fn options(&self) -> OpenOptions {
        let archives = Some(self.cache.path().join("archives"));
        OpenOptions { archives, ..options(CatalogStore::Cache(self.cache.path().join("catalogs"))) }
    }

    async fn open(&self, url: &str) -> Result<Dataset> {
        Dataset::open_with(url, self.options()).await
    }

    /// Returns the signatures of all requests since the start or the last call.
    fn signatures(&self) -> Vec<String> {
        let log = self.proxy.log();
        self.proxy.forget();
        log.iter().map(|e| e.path.rsplit('=').next().unwrap().to_owned()).collect()
    }

    fn catalogs(&self) -> usize {
        fs::read_dir(self.cache.path().join("catalogs")).map_or(0, Iterator::count)
    }
}

fn shows_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "'{secret}' is shown in: {text}");
    }
}

fn files_have_no_secret(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let at = entry.unwrap().path();
        if at.is_dir() {
            files_have_no_secret(&at);
            continue;
        }
        let bytes = fs::read(&at).unwrap();
        for secret in SECRETS {
            let is_there = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_there, "'{secret}' is in {}", at.display());
        }
    }
}

fn texts(error: &Error) -> String {
    format!("{error} {error:?} {error:#?}")
}

fn write_tar(case: &Case, name: &str) {
    let members = (0..8).map(|i| (format!("{i}.jpg"), picture(i, 500))).collect::<Vec<_>>();
    fs::write(case.data.path().join(name), tar_of(&members)).unwrap();
}

#[tokio::test]
async fn a_url_that_is_signed_anew_is_the_same_data_set_and_its_catalog_has_no_signature() {
    let case = Case::new();
    write_tar(&case, "a.tar");
    let first = case.open(&case.url("a.tar", "SIGNATURE-1")).await.unwrap();
    let rows = all_rows(&first).await;
    assert_eq!(rows.iter().map(|rows| rows.num_rows()).sum::<usize>(), 8);
    assert!(case.signatures().iter().all(|signature| signature == "SIGNATURE-1"));
    assert_eq!(case.catalogs(), 1);
    files_have_no_secret(case.cache.path());

    let second = case.open(&case.url("a.tar", "SIGNATURE-2")).await.unwrap();
    assert_eq!(second.catalog().content_hash(), first.catalog().content_hash());
    assert_eq!(second.place_hash(), first.place_hash());
    assert_eq!(case.catalogs(), 1, "the stored catalog was used");
    assert_eq!(all_rows(&second).await, rows);
    let signatures = case.signatures();
    assert!(!signatures.is_empty() && signatures.iter().all(|one| one == "SIGNATURE-2"), "{signatures:?}");
    files_have_no_secret(case.cache.path());

    let spec = second.spec();
    shows_no_secret(&format!("{second:?} {:?} {} {spec:?}", second.catalog(), second.uri()));
    for sample in 0..8 {
        shows_no_secret(&second.catalog().sample_uri(SampleId(sample)));
    }
    let json = serde_json::to_string(&spec).unwrap();
    assert!(json.contains("SIGNATURE-2"), "another process needs it: {json}");
}

#[tokio::test]
async fn no_error_shows_a_signature() {
    let case = Case::new();
    for (name, bytes) in [
        ("a.parquet", &b"PAR1 no parquet PAR1"[..]),
        ("a.tar", b"no tar"),
        ("a.arrow", b"ARROW1 no arrow"),
        ("a.csv", b"no,file\n1,2\n"),
        ("b.csv", b"uri\nmissing.jpg\n"),
        ("a.tar.gz", b"no gzip"),
        ("a.txt", b"not data"),
    ] {
        fs::write(case.data.path().join(name), bytes).unwrap();
        for url in [case.url(name, "SIGNATURE-1"), format!("{}&other=1", case.url(name, "SIGNATURE-2"))] {
            let error = case.open(&url).await.unwrap_err();
            assert!(error.message().contains(name), "{error}");
            shows_no_secret(&texts(&error));
        }
    }
    let error = case.open(&case.url("missing.tar", "SIGNATURE-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    shows_no_secret(&texts(&error));

    // Whatever the name of a query parameter, no error shows it.
    let url = format!("{}/a.parquet?mine=SIGNATURE-1", case.proxy.endpoint());
    shows_no_secret(&texts(&case.open(&url).await.unwrap_err()));

    write_parquet(case.data.path());
    let opened = case.open(&case.url("b.parquet", "SIGNATURE-1")).await.unwrap();
    fs::remove_file(case.data.path().join("b.parquet")).unwrap();
    let error = opened.block_reader().fetch(BlockId(0), u64::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    shows_no_secret(&texts(&error));
}

#[tokio::test]
async fn a_manifest_of_signed_urls_is_read_each_time() {
    let case = Case::new();
    for i in 0..3 {
        fs::write(case.data.path().join(format!("{i}.jpg")), picture(i, 500)).unwrap();
    }
    let write = |signature: &str| {
        let rows: Vec<String> = (0..3).map(|i| case.url(&format!("{i}.jpg"), signature)).collect();
        fs::write(case.data.path().join("list.csv"), format!("uri\n{}\n", rows.join("\n"))).unwrap();
    };
    write("SIGNATURE-1");
    let url = case.url("list.csv", "SIGNATURE-1");
    let rows = all_rows(&case.open(&url).await.unwrap()).await;
    assert!(case.signatures().iter().all(|signature| signature == "SIGNATURE-1"));
    assert_eq!(case.catalogs(), 0, "a stored catalog would have no signatures");
    write("SIGNATURE-2");
    let again = case.open(&case.url("list.csv", "SIGNATURE-2")).await.unwrap();
    assert!(all_rows(&again).await == rows);
    assert!(case.signatures().iter().all(|signature| signature == "SIGNATURE-2"));
    let uris = texts_of(&rows, "uri");
    assert!(uris.iter().all(|uri| uri.ends_with(".jpg")), "{uris:?}");
}
