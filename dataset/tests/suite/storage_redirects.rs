//! Redirects are followed to permitted places only, without credentials.

use crate::storage_support::{S3, data, options, storage, with_config};
use feedstock_dataset::{Allow, ErrorKind, Storage, StorageOptions};
use feedstock_testkit::{Fault, FaultProxy, Rule, S3Server, StaticServer};
use tempfile::TempDir;

/// A file server with two proxies in front, the first of which redirects to the second.
struct Case {
    _folder: TempDir,
    _server: StaticServer,
    first: FaultProxy,
    second: FaultProxy,
    uri: String,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x"), data(1_000, 3)).unwrap();
        let server = StaticServer::start(folder.path()).unwrap();
        let start = || FaultProxy::start(&server.endpoint()).unwrap();
        let (first, second) = (start(), start());
        first.inject(Rule::always(Fault::Redirect(302, format!("{}/x?sig=SECRET", second.endpoint()))));
        let uri = format!("{}/x", first.endpoint());
        Self { _folder: folder, _server: server, first, second, uri }
    }

    fn allowing(&self, prefixes: &[&FaultProxy]) -> Storage {
        let list: Vec<String> = prefixes.iter().map(|proxy| format!("{}/", proxy.endpoint())).collect();
        storage(StorageOptions { allow: Some(Allow::new(list).unwrap()), ..options() })
    }
}

#[tokio::test]
async fn a_redirect_is_followed_without_credentials() {
    let case = Case::new();
    let storage = storage(options());
    let uri = case.uri.replace("http://", "http://user:PASSWORD@");
    let object = storage.head(&uri).await.unwrap();
    assert_eq!(object.size, 1_000);
    assert_eq!(storage.read(&object, 10..20).await.unwrap(), data(1_000, 3).slice(10..20));
    for exchange in case.first.log() {
        assert_eq!(exchange.header("authorization"), Some("Basic dXNlcjpQQVNTV09SRA=="), "user:PASSWORD");
        assert!(!exchange.path.contains("PASSWORD"), "{exchange:?}");
    }
    let log = case.second.log();
    assert_eq!(log.len(), 2);
    assert!(
        log.iter().all(|e| e.header("authorization").is_none() && e.header("referer").is_none()),
        "{log:?}"
    );
    assert_eq!(log[1].range.as_deref(), Some("bytes=10-19"));
    assert_eq!(log[1].if_match, object.etag);
    case.first.heal();
    case.first.inject(Rule::always(Fault::Redirect(302, "/y".into())));
    let error = storage.head(&uri).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.message().contains("more than 10 times") && !error.message().contains("PASSWORD"),
        "{error}"
    );
}

#[tokio::test]
async fn user_name_and_password_of_a_url_are_sent_to_its_host() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x y"), data(1_000, 3)).unwrap();
    let server = StaticServer::start_authorized(folder.path(), "Basic dXM6cDp3").unwrap(); // us:p:w
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let at = |user: &str| format!("{}/x%20y", proxy.endpoint().replace("http://", &format!("http://{user}")));
    let storage = storage(options());
    let object = storage.head(&at("us:p%3Aw@")).await.unwrap();
    assert_eq!(storage.read(&object, 10..20).await.unwrap(), data(1_000, 3).slice(10..20));
    for wrong in ["", "us:wrong@", "us@"] {
        let error = storage.head(&at(wrong)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{wrong}: {error}");
    }
    proxy.inject(Rule::times(1, Fault::Redirect(307, "/x%20y?again".into())));
    storage.head(&at("us:p%3Aw@")).await.unwrap(); // a hop within the host keeps user name and password
    assert!(proxy.log().last().unwrap().path.ends_with("?again"));
}

#[tokio::test]
async fn the_url_that_is_opened_is_the_one_that_the_allow_list_saw() {
    let case = Case::new();
    case.first.heal();
    let allow = Some(Allow::new(["http://data.example/"]).unwrap());
    let storage = storage(StorageOptions { allow, ..options() });
    for rest in ["#@data.example/x", r"\x#@data.example/x", "?@data.example/x", "/x?#@data.example/x"] {
        let error = storage.head(&format!("{}{rest}", case.first.endpoint())).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::BadConfig), "{rest}: {error}");
    }
    assert_eq!(case.first.log().len(), 0, "nothing was requested");
}

#[tokio::test]
async fn no_header_of_a_signed_request_reaches_another_host() {
    let (s3, other) = (S3::start(), Case::new());
    s3.put("x", &data(10, 1));
    s3.proxy.inject(Rule::always(Fault::Redirect(307, other.uri.clone())));
    other.first.heal();
    let config = S3Server::config_at(&s3.proxy.endpoint());
    let storage = storage(with_config(options(), config).with("aws_session_token", "session-TOKEN-1"));
    let _found = storage.head("s3://bucket/x").await; // the answer of a file server does not matter
    assert!(s3.proxy.log()[0].header("x-amz-security-token").is_some());
    let log = other.first.log();
    assert!(!log.is_empty());
    for exchange in &log {
        let sent: Vec<_> = exchange.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert!(!sent.iter().any(|name| name == "authorization" || name.starts_with("x-amz-")), "{sent:?}");
    }
}

#[tokio::test]
async fn a_redirect_stays_within_the_allow_list() {
    let case = Case::new();
    let error = case.allowing(&[&case.first]).head(&case.uri).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("redirected") && error.message().contains("allow"), "{error}");
    assert!(!error.message().contains("SECRET"), "{error}");
    assert_eq!(
        (case.first.log().len(), case.second.log().len()),
        (1, 0),
        "requested once, and never followed"
    );
    let object = case.allowing(&[&case.first, &case.second]).head(&case.uri).await.unwrap();
    assert_eq!(object.size, 1_000);
}

#[tokio::test]
async fn no_redirect_leads_to_a_metadata_service() {
    let case = Case::new();
    case.first.heal();
    for to in ["http://169.254.169.254/latest/meta-data", "http://[fe80::1]/x"] {
        case.first.forget();
        case.first.inject(Rule::times(1, Fault::Redirect(302, to.into())));
        let error = storage(options()).head(&case.uri).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.message().contains("link-local"), "{error}");
        assert_eq!(case.first.log().len(), 1);
        case.first.heal();
    }
}
