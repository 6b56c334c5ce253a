//! Servers that feedstock's tests, examples and benches run against.
//!
//! ```text
//! test ─▶ FaultProxy ─▶ S3Server (the real s3s-fs) or StaticServer (files over HTTP/1.1)
//!          └ 503, 429, resets, short bodies, stalls, changed objects, by script; a log of what passed
//! test ─▶ SimulatedStore: S3's answers, late by a latency, with bytes made when they are read (10 TB of SparseTars)
//! ```
//! `S3Server`, `StaticServer` and `SimulatedStore` can answer as a real store does: late, at the rate of a connection, sometimes
//! never (`start_profiled`, `Profile`).
//!
//! Another one, `KeyServer`, lists any number of keys and has no bytes. Each server listens on 127.0.0.1 at its own
//! port, runs on its own thread, and stops when dropped. Only tests, examples and benches depend on this crate.
//!
//! ```
//! use feedstock_testkit::{Fault, FaultProxy, Rule, StaticServer};
//!
//! # use std::io::{Read, Write};
//! # fn get(endpoint: &str, path: &str, headers: &str) -> String {
//! #     let mut socket = std::net::TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
//! #     write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
//! #     let mut answer = Vec::new();
//! #     socket.read_to_end(&mut answer).unwrap();
//! #     String::from_utf8_lossy(&answer).into_owned()
//! # }
//! # let folder = tempfile::tempdir()?;
//! std::fs::write(folder.path().join("a.txt"), "hello")?;
//! let server = StaticServer::start(folder.path())?;
//! let proxy = FaultProxy::start(&server.endpoint())?;
//! proxy.inject(Rule::times(1, Fault::Status(503)));
//! assert!(get(&proxy.endpoint(), "/a.txt", "").starts_with("HTTP/1.1 503"));
//! assert!(get(&proxy.endpoint(), "/a.txt", "").ends_with("hello")); // a retry succeeds
//! assert_eq!(proxy.log().len(), 2);
//! # Ok::<(), std::io::Error>(())
//! ```

mod background;
mod fault_proxy;
mod key_server;
mod object_body;
mod profile_arguments;
mod profiled;
mod rate_limit;
mod s3_process;
mod s3_server;
mod simulated_store;
mod sparse_tar;
mod static_server;
mod tar;
mod wire;

pub use fault_proxy::{Exchange, Fault, FaultProxy, Rule};
pub use feedstock_base::{Fate, StoreProfile as Profile};
pub use key_server::{KeyServer, KeyServerOptions, Keys};
pub use profile_arguments::ProfileArguments;
pub use profiled::ProfileCounts;
pub use s3_process::S3Process;
pub use s3_server::{ACCESS_KEY, S3Server, SECRET_KEY};
pub use simulated_store::{SimulatedObject, SimulatedStore};
pub use sparse_tar::SparseTar;
pub use static_server::StaticServer;
pub use tar::tar_member;
