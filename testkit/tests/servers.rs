//! Tests of the servers themselves, in plain HTTP.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use feedstock_testkit::{Fault, FaultProxy, Rule, S3Process, S3Server, StaticServer};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends one request and returns the status line, the head and the body.
fn ask(endpoint: &str, request: &str) -> io::Result<(String, String, Vec<u8>)> {
    let mut socket = TcpStream::connect(endpoint.trim_start_matches("http://"))?;
    write!(socket, "{request}\r\nhost: test\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.lines().next().unwrap_or_default().to_owned();
    Ok((status, head, answer[end + 4..].to_vec()))
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
}

#[test]
fn etags_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), b"0123456789").unwrap();
    let at = StaticServer::start_without_etags(dir.path()).unwrap();
    let (status, head, body) = ask(&at.endpoint(), "GET /x HTTP/1.1\r\nif-match: \"other\"").unwrap();
    assert!(status.contains("200") && body == b"0123456789");
    assert_eq!(header(&head, "etag"), None);
}

#[test]
fn files_come_whole_and_in_ranges_and_by_version() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x y"), b"0123456789").unwrap();
    let server = StaticServer::start(dir.path()).unwrap();
    let at = server.endpoint();
    let (status, head, body) = ask(&at, "GET /x%20y HTTP/1.1").unwrap();
    assert!(status.contains("200") && body == b"0123456789");
    let etag = header(&head, "etag").unwrap();

    let (status, head, body) = ask(&at, "GET /x%20y HTTP/1.1\r\nrange: bytes=2-4").unwrap();
    assert!(status.contains("206") && body == b"234");
    assert_eq!(header(&head, "content-range").unwrap(), "bytes 2-4/10");
    assert!(ask(&at, "GET /x%20y HTTP/1.1\r\nrange: bytes=10-11").unwrap().0.contains("416"));

    let (status, head, body) = ask(&at, "HEAD /x%20y HTTP/1.1").unwrap();
    assert!(status.contains("200") && body.is_empty());
    assert_eq!(header(&head, "content-length").unwrap(), "10");

    assert!(ask(&at, &format!("GET /x%20y HTTP/1.1\r\nif-match: {etag}")).unwrap().0.contains("200"));
    assert!(ask(&at, "GET /x%20y HTTP/1.1\r\nif-match: \"other\"").unwrap().0.contains("412"));
    assert!(ask(&at, &format!("GET /x%20y HTTP/1.1\r\nif-none-match: {etag}")).unwrap().0.contains("304"));
    assert!(ask(&at, "GET /none HTTP/1.1").unwrap().0.contains("404"));
    assert!(ask(&at, "GET /../../etc/passwd HTTP/1.1").unwrap().0.contains("404"));
    assert!(ask(&at, "PROPFIND / HTTP/1.1").unwrap().0.contains("405"));
}

#[test]
fn the_proxy_passes_breaks_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), vec![7_u8; 1000]).unwrap();
    let server = StaticServer::start(dir.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let get = || ask(&proxy.endpoint(), "GET /x HTTP/1.1\r\nrange: bytes=0-499");
    assert_eq!(get().unwrap().2, vec![7; 500]);

    proxy.inject(Rule::times(1, Fault::Status(503)));
    assert!(get().unwrap().0.contains("503"));
    assert_eq!(get().unwrap().2.len(), 500);

    proxy.inject(Rule::times(1, Fault::ShortBody(100)));
    let (_, head, body) = get().unwrap();
    assert_eq!((header(&head, "content-length").unwrap().as_str(), body.len()), ("500", 100));

    proxy.inject(Rule::times(1, Fault::ShortLength(100)));
    let (_, head, body) = get().unwrap();
    assert_eq!((header(&head, "content-length").unwrap().as_str(), body.len()), ("100", 100));

    proxy.inject(Rule::times(1, Fault::ResetMidBody(100)));
    assert_eq!(get().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    proxy.inject(Rule::times(1, Fault::ResetBeforeHead));
    assert!(get().is_err());

    proxy.inject(Rule::times(1, Fault::StallMidBody(100, Duration::from_millis(200))));
    let began = Instant::now();
    assert_eq!(get().unwrap().2.len(), 500);
    assert!(began.elapsed() >= Duration::from_millis(200));

    proxy.inject(Rule::times(1, Fault::OtherEtag("new".into())));
    assert_eq!(header(&get().unwrap().1, "etag").unwrap(), "\"new\"");

    let log = proxy.log();
    assert_eq!(log.len(), 9);
    assert_eq!(log.iter().filter(|e| e.faulty).count(), 7);
    assert_eq!((log[0].method.as_str(), log[0].path.as_str(), log[0].status), ("GET", "/x", Some(206)));
    assert_eq!(log[0].range.as_deref(), Some("bytes=0-499"));
    assert_eq!(log[1].status, Some(503));
    assert_eq!(proxy.concurrency_peak(), 1);
    proxy.forget();
    assert!(proxy.log().is_empty());
}

#[test]
fn s3_rejects_unsigned_requests_and_also_serves_from_a_separate_process() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start(dir.path()).unwrap();
    server.create_bucket("bucket").unwrap();
    server.put("bucket", "folder/x", b"hello".to_vec()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("bucket/folder/x")).unwrap(), b"hello");
    assert!(ask(&server.endpoint(), "GET /bucket/folder/x HTTP/1.1").unwrap().0.contains("403"));
    let head = |path| ask(&server.endpoint(), &format!("HEAD {path} HTTP/1.1")).unwrap().0;
    assert!(head("/bucket/folder").contains("404"), "a prefix is not an object");
    assert!(head("/bucket/folder/x").contains("403") && head("/bucket").contains("403"));

    let process = S3Process::start(dir.path()).unwrap();
    assert!(ask(process.endpoint(), "GET /bucket/folder/x HTTP/1.1").unwrap().0.contains("403"));
    assert!(std::path::Path::new(&format!("/proc/{}", process.id())).exists());
    let endpoint = process.endpoint().to_owned();
    drop(process);
    assert!(ask(&endpoint, "GET / HTTP/1.1").is_err());
}
