//! The real S3 server s3s-fs, in this process.

use crate::background::{Background, BlockOnElsewhere};
use crate::object_body;
use crate::profiled::{self, ProfileCounts, Profiled};
use crate::static_server::resolve;
use bytes::Bytes;
use feedstock_base::StoreProfile as Profile;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::dto::{PutObjectInput, StreamingBlob};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3, S3Request};
use s3s_fs::FileSystem;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::RwLock;

/// The access key that the test servers accept.
pub const ACCESS_KEY: &str = "feedstock-test-access";
/// The secret key that the test servers accept. Tests check that no message contains it.
pub const SECRET_KEY: &str = "feedstock-test-SECRET-4f7a";

/// An S3 server for a folder whose sub-folders are the buckets. Signatures are checked.
///
/// Differences between s3s-fs and S3, and what this server does about them:
///  - Conditional writes are executed one at a time, as in S3. s3s-fs alone lets several succeed.
///  - s3s-fs leaves ETags out of listings and ignores `If-Match` on GET. It sends an ETag with each object.
///  - HEAD of a key that is only a prefix returns 404, as in S3. s3s-fs takes its folder for an object and fails.
///  - Bodies of objects are read in larger chunks than s3s-fs's (`object_body.rs`).
///  - Objects copied into the folder by hand are hashed whole at every request. [`put`](Self::put) and
///    [`import`](Self::import) store the hash once.
pub struct S3Server {
    background: Background,
    root: PathBuf,
    files: Arc<FileSystem>,
    /// s3s-fs puts an object in place before it stores its ETag. No request is answered between the two.
    storing: Arc<RwLock<()>>,
    profiled: Option<Arc<Profiled>>,
}

impl S3Server {
    /// Serves `root`, which must exist.
    ///
    /// # Errors
    /// If the folder cannot be used or no port is free.
    pub fn start(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), None)
    }

    /// As [`start`](Self::start); requests over HTTP meet the fates that `profile` draws from `seed`.
    pub fn start_profiled(root: impl Into<PathBuf>, profile: Profile, seed: u64) -> io::Result<Self> {
        Self::with(root.into(), Some(Arc::new(Profiled::new(profile, seed))))
    }

    fn with(root: PathBuf, profiled: Option<Arc<Profiled>>) -> io::Result<Self> {
        let files = Arc::new(FileSystem::new(&root).map_err(|e| io::Error::other(format!("{e:?}")))?);
        let storing = Arc::new(RwLock::new(()));
        let mut builder =
            S3ServiceBuilder::new(FileSystem::new(&root).map_err(|e| io::Error::other(format!("{e:?}")))?);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let (folder, stored, shared) = (root.clone(), Arc::clone(&storing), profiled.clone());
        let background = Background::serve("test-s3", move |socket| {
            let (service, root, stored) = (service.clone(), folder.clone(), Arc::clone(&stored));
            let profiled = shared.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                let (service, root, stored) = (service.clone(), root.clone(), Arc::clone(&stored));
                let profiled = profiled.clone();
                async move {
                    let served = serve(&service, &root, &stored, request);
                    profiled::answer(profiled.as_deref(), served).await
                }
            });
            async move {
                // A client that closes its connection is not an error.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
            }
        })?;
        Ok(Self { background, root, files, storing, profiled })
    }

    /// Returns what a server with a profile has done; zeros for one without.
    pub fn profile_counts(&self) -> ProfileCounts {
        self.profiled.as_ref().map(|profiled| profiled.counts()).unwrap_or_default()
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.background.address())
    }

    /// Returns the options, under object_store's names, to connect to this server with the right key.
    pub fn config(&self) -> Vec<(String, String)> {
        Self::config_at(&self.endpoint())
    }

    /// Returns the same options for an endpoint in front of a server, such as a [`FaultProxy`](crate::FaultProxy)'s.
    pub fn config_at(endpoint: &str) -> Vec<(String, String)> {
        [
            ("aws_endpoint", endpoint),
            ("aws_region", "us-east-1"),
            ("aws_access_key_id", ACCESS_KEY),
            ("aws_secret_access_key", SECRET_KEY),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// Creates a bucket; it may exist already.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create_bucket(&self, bucket: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(bucket))
    }

    /// Stores an object through the server's own code, with its ETag.
    ///
    /// ```
    /// use feedstock_testkit::S3Server;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let server = S3Server::start(folder.path())?;
    /// server.create_bucket("corpus")?;
    /// server.put("corpus", "train/a.tar", "data")?;
    /// assert_eq!(std::fs::read(folder.path().join("corpus/train/a.tar"))?, b"data");
    /// assert_eq!(server.config()[0], ("aws_endpoint".to_owned(), server.endpoint()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the server rejects it.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) -> io::Result<()> {
        let handle = self.background.handle().ok_or_else(|| io::Error::other("the server has ended"))?;
        let (files, bucket, key) = (self.files.clone(), bucket.to_owned(), key.to_owned());
        let (bytes, storing) = (bytes.into(), Arc::clone(&self.storing));
        handle.block_on_elsewhere(async move {
            let _alone = storing.write().await;
            put(&files, bucket, key, bytes).await
        })
    }

    /// Stores every file below `folder` under `prefix`, and returns their number.
    ///
    /// # Errors
    /// If a file cannot be read or stored.
    pub fn import(&self, bucket: &str, prefix: &str, folder: &Path) -> io::Result<usize> {
        self.create_bucket(bucket)?;
        let mut count = 0;
        let mut open = vec![(folder.to_owned(), prefix.trim_end_matches('/').to_owned())];
        while let Some((folder, prefix)) = open.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let name = entry.file_name().into_string().map_err(|n| io::Error::other(format!("{n:?}")))?;
                let key = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                if entry.file_type()?.is_dir() {
                    open.push((entry.path(), key));
                } else {
                    self.put(bucket, &key, fs::read(entry.path())?)?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}

/// Answers one request.
async fn serve(
    service: &S3Service,
    root: &Path,
    stored: &RwLock<()>,
    request: Request<Incoming>,
) -> Result<Response<Body>, HttpError> {
    if is_head_of_prefix(root, &request) {
        let mut missing = Response::new(Body::empty());
        *missing.status_mut() = StatusCode::NOT_FOUND;
        return Ok(missing);
    }
    // s3s-fs checks and then writes, so conditional writes run alone; S3 does both atomically.
    let is_conditional = request.headers().contains_key("if-none-match");
    let _alone = if is_conditional { Some(stored.write().await) } else { None };
    let _whole = if is_conditional { None } else { Some(stored.read().await) };
    let object = object_body::open(root, &request);
    let answer = service.call(request.map(Body::from)).await;
    answer.map(|answer| object_body::in_large_pieces(object, answer))
}

/// Returns whether this requests an object where only a folder exists: `HEAD /bucket/key`, not `/bucket` or
/// `/bucket/key/`.
fn is_head_of_prefix<B>(root: &Path, request: &Request<B>) -> bool {
    let path = request.uri().path();
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    request.method() == Method::HEAD
        && !key.is_empty()
        && !key.ends_with('/')
        && resolve(root, path).is_ok_and(|path| path.is_dir())
}

async fn put(files: &FileSystem, bucket: String, key: String, bytes: Bytes) -> io::Result<()> {
    let input = PutObjectInput::builder()
        .bucket(bucket)
        .key(key)
        .body(Some(StreamingBlob::from(Body::from(bytes))))
        .build()
        .map_err(io::Error::other)?;
    let request = S3Request {
        input,
        method: hyper::Method::PUT,
        uri: hyper::Uri::from_static("/"),
        headers: hyper::HeaderMap::new(),
        extensions: hyper::http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    };
    files.put_object(request).await.map(|_| ()).map_err(io::Error::other)
}
