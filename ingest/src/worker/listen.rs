//! Sockets: accepting, encrypting, and telling rows from gRPC.

use super::connection::serve;
use super::service::Service;
use crate::wire::{ALPN_GRPC, Io};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

/// Connections at once. A rank has one a worker, or two while streams move.
const CONNECTIONS: usize = 4096;

/// Until a connection has said what it speaks.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);

/// Of these, gRPC's, which may idle: they must not keep ranks out.
const GRPC_CONNECTIONS: usize = 256;

/// gRPC connections accepted and not yet taken over.
const GRPC_WAITING: usize = 64;

/// After the system refused a connection: out of descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first bytes of HTTP/2 without TLS.
const HTTP2: &[u8; 4] = b"PRI ";

/// Accepts connections for ever: rows are served here, gRPC is handed on.
pub(crate) struct Listener {
    pub(crate) service: Arc<Service>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) grpc: mpsc::Sender<io::Result<GrpcIo>>,
    permits: Arc<Semaphore>,
    grpc_permits: Arc<Semaphore>,
}

impl Listener {
    pub(crate) fn new(
        service: Arc<Service>,
        tls: Option<TlsAcceptor>,
    ) -> (Arc<Self>, mpsc::Receiver<io::Result<GrpcIo>>) {
        let (grpc, incoming) = mpsc::channel(GRPC_WAITING);
        let (permits, grpc_permits) = (Semaphore::new(CONNECTIONS), Semaphore::new(GRPC_CONNECTIONS));
        let (permits, grpc_permits) = (Arc::new(permits), Arc::new(grpc_permits));
        (Arc::new(Self { service, tls, grpc, permits, grpc_permits }), incoming)
    }

    pub(crate) async fn tcp(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new(); // aborted with this task
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let this = self.clone();
                    connections.spawn(async move {
                        if let Err(error) = this.connection(stream, permit).await {
                            tracing::debug!(%peer, "a connection ended: {error}");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }

    /// The same for this host's own processes. The file's permissions limit who may connect, so nothing is encrypted.
    pub(crate) async fn unix(self: Arc<Self>, listener: UnixListener) {
        let mut connections = JoinSet::new();
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let this = self.clone();
                    connections.spawn(async move {
                        let _permit = permit;
                        if let Err(error) = serve(stream, &*this.service).await {
                            tracing::debug!("a local connection ended: {error}");
                        }
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
            while connections.try_join_next().is_some() {}
        }
    }

    async fn connection(&self, stream: TcpStream, _permit: OwnedSemaphorePermit) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return match timeout(FIRST_BYTES_TIMEOUT, is_http2(&stream)).await?? {
                true => self.hand_on(Box::new(stream)).await,
                false => serve(stream, &*self.service).await,
            };
        };
        let stream = timeout(FIRST_BYTES_TIMEOUT, tls.accept(stream)).await??;
        match stream.get_ref().1.alpn_protocol() == Some(ALPN_GRPC) {
            true => self.hand_on(Box::new(stream)).await,
            false => serve(stream, &*self.service).await,
        }
    }

    async fn hand_on(&self, io: Box<dyn Io>) -> io::Result<()> {
        let permit = self.grpc_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| io::Error::other("too many gRPC connections"))?;
        let sent = self.grpc.send(Ok(GrpcIo { io, _permit: permit })).await;
        sent.map_err(|_| io::Error::other("the worker is going away"))
    }
}

/// Whether the first bytes are HTTP/2's.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != HTTP2[..seen] {
            return Ok(false);
        }
        if seen == HTTP2.len() {
            return Ok(true);
        }
        sleep(Duration::from_millis(5)).await; // `peek` returns at once with the same few bytes
    }
}

/// A socket that only this user's processes may connect to.
pub(crate) fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A connection that tonic takes over.
pub(crate) struct GrpcIo {
    io: Box<dyn Io>,
    _permit: OwnedSemaphorePermit,
}

impl Connected for GrpcIo {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for GrpcIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for GrpcIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
