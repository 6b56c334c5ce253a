//! Errors of a real S3 server state the cause, and no message shows a secret.

use crate::storage_support::{S3, data, options, storage, with_config};
use feedstock_dataset::{Error, ErrorKind, IoRuntime, ObjectRef, Storage, StorageOptions};
use feedstock_testkit::{ACCESS_KEY, Fault, Rule, S3Server, SECRET_KEY, StaticServer};
use std::error::Error as _;
use std::time::{Duration, Instant};

/// Returns everything that an error can print, through all its sources.
fn texts(error: &Error) -> String {
    let mut out = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(next) = cause {
        out.push_str(&format!(" {next} {next:?}"));
        cause = next.source();
    }
    out
}

fn shows_no_secret(text: &str) {
    for secret in [SECRET_KEY, ACCESS_KEY, "WRONG-secret", "session-TOKEN-1", "sig-QUERY-1", "url-PASSWORD-1"]
    {
        assert!(!text.contains(secret), "'{secret}' is shown in: {text}");
    }
}

fn keyed(s3: &S3, key: &str, secret: &str) -> StorageOptions {
    let config = S3Server::config_at(&s3.server.endpoint());
    with_config(options(), config).with("aws_access_key_id", key).with("aws_secret_access_key", secret)
}

async fn every_door(storage: &Storage, uri: &str) -> Vec<Error> {
    let object = ObjectRef { uri: uri.to_owned(), size: 10, etag: None };
    vec![
        storage.list(uri).await.unwrap_err(),
        storage.head(uri).await.unwrap_err(),
        storage.read(&object, 0..10).await.unwrap_err(),
        storage.write(uri, data(10, 1)).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn a_wrong_key_is_denied_at_once() {
    let s3 = S3::start();
    s3.put("x", &data(10, 1));
    for (key, secret) in [(ACCESS_KEY, "WRONG-secret"), ("nobody-knows-me", SECRET_KEY)] {
        let storage = storage(keyed(&s3, key, secret));
        for error in every_door(&storage, "s3://bucket/x").await {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.message().contains("credentials"), "{error}");
            shows_no_secret(&texts(&error));
        }
        assert_eq!(storage.stats().retries, 0);
    }
}

#[tokio::test]
async fn anonymous_access_to_a_private_bucket_is_denied() {
    let s3 = S3::start();
    let mut options = keyed(&s3, ACCESS_KEY, SECRET_KEY);
    options.anonymous = true;
    for error in every_door(&storage(options), "s3://bucket/x").await {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

/// Without any credentials the machine's metadata service is queried; here that is a server that has none.
#[tokio::test]
async fn no_credentials_at_all_is_said_and_soon() {
    let s3 = S3::start();
    let dir = tempfile::tempdir().unwrap();
    let metadata = StaticServer::start(dir.path()).unwrap();
    let config = vec![
        ("aws_endpoint".into(), s3.server.endpoint()),
        ("aws_metadata_endpoint".into(), metadata.endpoint()),
    ];
    let storage = storage(with_config(options(), config));
    let began = Instant::now();
    let error = storage.head("s3://bucket/x").await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("AWS_ACCESS_KEY_ID"), "{error}");
}

#[tokio::test]
async fn a_missing_bucket_and_a_missing_object_are_told_apart() {
    let s3 = S3::start();
    let storage = storage(with_config(options(), s3.server.config()));
    let object = ObjectRef { uri: "s3://nosuchbucket/x".into(), size: 10, etag: None };
    for error in [
        storage.list("s3://nosuchbucket/x").await.unwrap_err(),
        storage.list_some("s3://nosuchbucket", 3).await.unwrap_err(),
        storage.head("s3://nosuchbucket/x").await.unwrap_err(),
        storage.read(&object, 0..10).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert!(error.message().contains("bucket does not exist"), "{error}");
        assert!(error.message().contains("nosuchbucket"), "{error}");
    }
    let error = storage.head("s3://bucket/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("object does not exist"), "{error}");
    assert_eq!(storage.list("s3://bucket/x").await.unwrap(), [], "an empty prefix is not an error");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_after_the_deadline() {
    let mut options = with_config(options(), S3Server::config_at("http://127.0.0.1:9"));
    options.deadline = Duration::from_millis(500);
    let error = storage(options).head("s3://bucket/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert!(
        error.message().contains("gave up after") && error.message().contains("s3://bucket/x"),
        "{error}"
    );
    shows_no_secret(&texts(&error));
}

#[test]
fn bad_options_are_refused_before_any_request() {
    let io = IoRuntime::new().unwrap();
    for options in
        [options().with("aws_endpont", "http://x"), StorageOptions { deadline: Duration::ZERO, ..options() }]
    {
        assert_eq!(Storage::new(options, io.clone()).unwrap_err().kind(), ErrorKind::BadConfig);
    }
}

#[tokio::test]
async fn no_print_of_anything_shows_a_secret() {
    let s3 = S3::start();
    s3.put("x", &data(1000, 1));
    let mut options = keyed(&s3, ACCESS_KEY, SECRET_KEY).with("aws_session_token", "session-TOKEN-1");
    options.deadline = Duration::from_millis(300);
    shows_no_secret(&format!("{options:?} {options:#?}"));
    let options = options.with("aws_endpoint", s3.proxy.endpoint());
    let storage = storage(options);
    shows_no_secret(&format!("{storage:?} {storage:#?} {:?}", storage.options()));

    let signed = format!(
        "{}/bucket/x?X-Amz-Signature=sig-QUERY-1&X-Amz-Security-Token=session-TOKEN-1",
        s3.proxy.endpoint()
    );
    let with_password = s3.proxy.endpoint().replace("http://", "http://user:url-PASSWORD-1@") + "/bucket/x";
    for fault in [
        Fault::Status(503),
        Fault::Status(403),
        Fault::Status(412),
        Fault::Status(400),
        Fault::ResetBeforeHead,
        Fault::ShortBody(3),
        Fault::OtherEtag("y".into()),
    ] {
        s3.proxy.heal();
        s3.proxy.inject(Rule::always(fault));
        for uri in ["s3://bucket/x", &signed, &with_password] {
            let object = ObjectRef { uri: uri.to_owned(), size: 1000, etag: Some("\"x\"".into()) };
            shows_no_secret(&format!("{object:?} {:?}", storage.reader(&object, 1 << 16)));
            let error = storage.read(&object, 0..1000).await.unwrap_err();
            shows_no_secret(&texts(&error));
            for result in [storage.list(uri).await.map(|_| ()), storage.head(uri).await.map(|_| ())] {
                if let Err(error) = result {
                    shows_no_secret(&texts(&error));
                }
            }
            if let Err(error) = storage.write(uri, data(10, 1)).await {
                shows_no_secret(&texts(&error));
            }
        }
    }
}

/// Starts a server with a certificate that no authority knows.
async fn self_signed() -> std::net::SocketAddr {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let config = tokio_rustls::rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let _refused = acceptor.accept(socket).await;
        }
    });
    address
}

#[tokio::test]
async fn a_failure_to_connect_names_the_server_and_what_to_change() {
    let files = tempfile::tempdir().unwrap();
    let plain = StaticServer::start(files.path()).unwrap();
    let plain = format!("{}/x", plain.endpoint()).replace("http://", "https://");
    let unknown = format!("https://localhost:{}/x", self_signed().await.port());
    for (uri, why, advice) in [
        (plain, "InvalidContentType", "write http:// instead of https://"),
        (unknown, "invalid peer certificate", "update-ca-certificates"),
    ] {
        let storage = storage(options());
        let error = storage.head(&uri).await.unwrap_err();
        let host = uri.split('/').nth(2).unwrap();
        for part in [&format!("cannot connect to {host}: "), why, advice] {
            assert!(error.message().contains(part), "'{part}' is not in: {error}");
        }
        assert_eq!((error.kind(), storage.stats().retries), (ErrorKind::BadConfig, 0), "{error}");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let storage = storage(options());
    let error = storage.head(&format!("http://{closed}/x")).await.unwrap_err();
    assert!(error.message().contains(&format!("cannot connect to {closed}: Connection refused")), "{error}");
    assert!(
        error.kind() == ErrorKind::Retryable && storage.stats().retries > 0,
        "it may be starting: {error}"
    );
}
