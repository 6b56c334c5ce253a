//! The thread of a server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime with an accept loop. Dropping it closes every connection.
pub(crate) struct Background {
    runtime: Option<Runtime>,
    address: SocketAddr,
}

impl Background {
    /// Listens on a free port of 127.0.0.1 and calls `serve` for each connection.
    pub(crate) fn serve<F, Fut>(name: &str, serve: F) -> io::Result<Self>
    where
        F: Fn(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
        let listener = runtime.block_on_elsewhere(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            loop {
                if let Ok((socket, _)) = listener.accept().await {
                    let _ = socket.set_nodelay(true);
                    tokio::spawn(serve(socket));
                }
            }
        });
        Ok(Self { runtime: Some(runtime), address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Blocking on a future even if the caller runs inside a runtime.
pub(crate) trait BlockOnElsewhere {
    fn block_on_elsewhere<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T>;
}

impl BlockOnElsewhere for Handle {
    fn block_on_elsewhere<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (send, receive) = std::sync::mpsc::channel();
        self.spawn(async move {
            let _ = send.send(future.await); // the caller waits for it below
        });
        receive.recv().map_err(io::Error::other)?
    }
}

impl BlockOnElsewhere for Runtime {
    fn block_on_elsewhere<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.handle().block_on_elsewhere(future)
    }
}
