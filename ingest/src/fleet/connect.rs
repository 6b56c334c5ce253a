//! Reaching a worker: TCP, TLS, the socket of one on the same host, or this process itself.

use super::dispatch::HERE;
use super::member::Reported;
use super::members::Workers;
use crate::wire::{
    ALPN_ROWS, Answer, Ask, ClientTls, Hello, Io, MAGIC, MESSAGE_BYTES, PROTOCOL, Token, Versions, Welcome,
    WorkerStatus, agree, read_greeting, read_length, read_message, read_text, release, write_greeting,
    write_message,
};
use crate::worker::{Serve, serve};
use crate::{Error, ErrorKind, Result};
use feedstock_ops::OPS_VERSION;
use futures::future::BoxFuture;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, duplex};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Until a connection is made and the worker has answered.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Likewise on the same host.
const UNIX_TIMEOUT: Duration = Duration::from_millis(300);

/// Between two signs of life of a worker that opens a data set.
pub(crate) const OPENING_TIMEOUT: Duration = Duration::from_secs(3);

/// For a description on its way: 16 MiB at most, and the worker's own patience.
pub(crate) const DESCRIBING_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of the pipe to this process's own lanes: a large image.
const PIPE_BYTES: usize = 512 << 10;

/// Makes connections to members.
pub(crate) trait Connect: Send + Sync + 'static {
    /// A connection, encrypted where it should be.
    fn connect<'a>(&'a self, member: &'a str) -> BoxFuture<'a, Result<Box<dyn Io>>>;
    /// One by a socket in the file system, if there is such a thing here.
    fn unix<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Option<Box<dyn Io>>>;
}

/// Connections over the network.
pub(crate) struct Network {
    tls: Option<(TlsConnector, ClientTls)>,
    /// What serves as this machine.
    here: Option<Arc<dyn Serve>>,
}

impl Network {
    pub(crate) fn new(workers: &Workers, here: Option<Arc<dyn Serve>>) -> Result<Self> {
        if workers.sent_token().is_some()
            && workers.client_tls().is_none()
            && !workers.addresses().iter().all(|a| is_near(a))
        {
            tracing::warn!(
                "the token is said in clear to workers on other machines: give the authority of their TLS"
            );
        }
        let tls =
            workers.client_tls().map(|tls| Ok::<_, Error>((tls.connector()?, tls.clone()))).transpose()?;
        Ok(Self { tls, here })
    }

    async fn network(&self, member: &str) -> Result<Box<dyn Io>> {
        let unreachable = |e: io::Error| Error::new(ErrorKind::Retryable, format!("{member}: {e}"));
        let stream = TcpStream::connect(member).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let Some((connector, tls)) = &self.tls else { return Ok(Box::new(stream)) };
        let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
        let name = tls.name(host.trim_start_matches('[').trim_end_matches(']'))?;
        let stream = connector.connect(name, stream).await.map_err(|e| broken(member, &e))?;
        if stream.get_ref().1.alpn_protocol() != Some(ALPN_ROWS) {
            let message = format!("{member}: what answers at this address is not a feedstock worker");
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        Ok(Box::new(stream))
    }
}

impl Connect for Network {
    fn connect<'a>(&'a self, member: &'a str) -> BoxFuture<'a, Result<Box<dyn Io>>> {
        Box::pin(async move {
            match &self.here {
                Some(here) if member == HERE => {
                    let (ours, theirs) = duplex(PIPE_BYTES);
                    let here = here.clone();
                    tokio::spawn(async move {
                        // It ends with the other end of the pipe, whose reader hears of errors.
                        let _ended = serve(theirs, &*here).await;
                    });
                    Ok(Box::new(ours) as Box<dyn Io>)
                }
                _ => self.network(member).await,
            }
        })
    }

    fn unix<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Option<Box<dyn Io>>> {
        Box::pin(async move {
            let stream = UnixStream::connect(path).await.ok()?;
            Some(Box::new(stream) as Box<dyn Io>)
        })
    }
}

/// A connection over which both sides have greeted.
pub(crate) struct Greeted {
    pub(crate) io: Box<dyn Io>,
    pub(crate) reported: Reported,
}

/// A connection to `member` over which both sides have greeted; the shortest way there is.
pub(crate) async fn greeted(connect: &dyn Connect, member: &str, token: Option<&Token>) -> Result<Greeted> {
    let greeting = async {
        let io = connect.connect(member).await?;
        greet(io, member, token).await
    };
    let late = |_| {
        let message = format!("{member}: no answer within {:.1} s", CONNECT_TIMEOUT.as_secs_f64());
        Error::new(ErrorKind::Retryable, message)
    };
    let (io, welcome) = timeout(CONNECT_TIMEOUT, greeting).await.map_err(late)??;
    let reported = Reported { instance: welcome.instance, capacity: welcome.capacity, is_draining: false };
    let Some(path) = welcome.unix.filter(|path| is_ours(path)) else { return Ok(Greeted { io, reported }) };
    let shorter = async {
        let io = connect.unix(&path).await?;
        let (io, other) = greet(io, member, token).await.ok()?;
        (other.instance == reported.instance).then_some(io)
    };
    let io = timeout(UNIX_TIMEOUT, shorter).await.ok().flatten().unwrap_or(io);
    Ok(Greeted { io, reported })
}

/// Whether an address is this machine's own.
fn is_near(address: &str) -> bool {
    address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:")
}

/// Whether the socket at a path that a worker sent belongs to this user. The token is sent to no other.
fn is_ours(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| std::fs::metadata(path).map(|facts| facts.uid());
    matches!((owner(path), owner(Path::new("/proc/self"))), (Ok(socket), Ok(own)) if socket == own)
}

async fn greet(mut io: Box<dyn Io>, member: &str, token: Option<&Token>) -> Result<(Box<dyn Io>, Welcome)> {
    let hello =
        Hello { protocol: PROTOCOL, release: release(), ops_version: OPS_VERSION, token: token.cloned() };
    let said = async {
        tokio::io::AsyncWriteExt::write_all(&mut io, MAGIC).await?;
        write_greeting(&mut io, &hello).await
    }
    .await;
    // If the worker closed the connection, its last message has the reason: TLS 1.3 rejects certificates after the handshake.
    let heard = read_greeting(&mut io, MESSAGE_BYTES).await;
    let welcome: Welcome = match (said, heard) {
        (_, Ok(welcome)) => welcome,
        (Err(error), Err(heard)) if heard.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(broken(member, &error));
        }
        (_, Err(heard)) => return Err(broken(member, &heard)),
    };
    if let Some(refused) = welcome.refused {
        let error = Error::from(refused);
        return Err(Error::new(error.kind(), format!("{member}: {error}")));
    }
    agree(&welcome.versions(), &Versions::OURS)
        .map_err(|error| Error::new(error.kind(), format!("{member}: {error}")))?;
    Ok((io, welcome))
}

/// How the worker at `member` is.
pub(crate) async fn status(
    connect: &dyn Connect,
    member: &str,
    token: Option<&Token>,
) -> Result<WorkerStatus> {
    let mut io = greeted(connect, member, token).await?.io;
    let asked = async {
        write_message(&mut io, &Ask::Status).await?;
        read_message(&mut io, MESSAGE_BYTES).await
    };
    let late = |_| Error::new(ErrorKind::Retryable, format!("{member}: no answer"));
    match timeout(CONNECT_TIMEOUT, asked).await.map_err(late)?.map_err(|e| broken(member, &e))? {
        Answer::Status(status) => Ok(status),
        other => {
            Err(Error::new(ErrorKind::Bug, format!("{member}: answered {other:?} when asked how it is")))
        }
    }
}

/// The next answer, however long it takes, as long as the worker reports that it is at work; `at_work` is called whenever it
/// does.
pub(crate) async fn answer(
    io: &mut (impl AsyncRead + Unpin),
    member: &str,
    at_work: &impl Fn(),
) -> Result<Answer> {
    loop {
        match within(OPENING_TIMEOUT, member, read_length(io, MESSAGE_BYTES)).await? {
            0 => at_work(), // not yet
            length => return within(OPENING_TIMEOUT, member, read_text(io, length)).await,
        }
    }
}

/// A part of a conversation with `member`, which must not take longer than this.
pub(crate) async fn within<T>(
    time: Duration,
    member: &str,
    part: impl Future<Output = io::Result<T>>,
) -> Result<T> {
    let late = |_| {
        let message = format!("{member}: nothing heard for {:.0} s", time.as_secs_f64());
        Error::new(ErrorKind::Retryable, message)
    };
    timeout(time, part).await.map_err(late)?.map_err(|e| broken(member, &e))
}

/// An error of a connection: it broke, it brought what makes no sense, or one side does not trust the other.
pub(crate) fn broken(member: &str, error: &io::Error) -> Error {
    if error.get_ref().is_some_and(|cause| cause.is::<tokio_rustls::rustls::Error>()) {
        return Error::new(ErrorKind::Denied, format!("{member}: TLS: {error}"));
    }
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended".to_owned(),
        _ => error.to_string(),
    };
    Error::new(ErrorKind::Retryable, format!("{member}: {what}"))
}

/// The error of an answer that ends a conversation.
pub(crate) fn refused(member: &str, answer: Answer) -> Error {
    match answer {
        Answer::Failed(failure) => named(member, &failure.into()),
        Answer::Unknown => {
            let message =
                format!("{member}: the worker forgot the recipe at once: it is asked for too many of them");
            Error::new(ErrorKind::Retryable, message)
        }
        other => Error::new(ErrorKind::Bug, format!("{member}: unexpected answer {other:?}")),
    }
}

/// An error with the name of the member that it comes from.
pub(crate) fn named(member: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{member}: {error}"))
}
