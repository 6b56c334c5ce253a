//! One connection, from its first bytes to the last frame. It knows nothing of sockets: any bytes in and out will do.

use super::at_work::{at_work, unless_leaving};
use super::lane::{Body, FinishedRows, Lane};
use super::receiving;
use super::receptions::Reception;
use crate::wire::{
    ALIVE_EVERY, Answer, Ask, Capacity, FRAME_ROWS, Failure, FrameHead, HEAD_BYTES, HELLO_BYTES, HeadWriter,
    Hello, Io, LaneRequest, MAGIC, MESSAGE_BYTES, Offered, PROTOCOL, PlanId, ROW_BYTES, RowHead, SPEC_BYTES,
    Tag, Token, Versions, Welcome, WorkerStatus, agree, garbage, read_greeting, read_message, release,
    write_greeting, write_message,
};
use crate::{Error, ErrorKind, RecipeSpec, Result};
use feedstock_ops::{OPS_VERSION, TensorSpec};
use futures::future::BoxFuture;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The longest time between two messages of a client.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// A rank that was silent for this long is gone. It sends a byte every second, whatever its trainer does.
const RANK_TIMEOUT: Duration = Duration::from_secs(30);

/// Small rows and heads are sent together up to this; larger parts go out as they are.
const SEND_BYTES: usize = 64 << 10;

/// What connections ask of a worker.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Who may come in.
    fn token(&self) -> Option<&Token>;
    /// Which process this is, and its socket for those on the same host.
    fn instance(&self) -> (&str, Option<&PathBuf>);
    fn status(&self) -> WorkerStatus;
    /// Takes a recipe down, and returns which of its catalogs are to be sent, of those that the rank can send.
    fn describe(&self, spec: RecipeSpec, catalogs: Vec<Offered>) -> BoxFuture<'_, Result<Vec<Reception>>>;
    /// Opens the data set of a recipe; false where the recipe is not known.
    fn prepare(&self, plan: PlanId) -> BoxFuture<'_, Result<bool>>;
    /// A lane; `None` where its recipe is not known.
    fn open(&self, request: LaneRequest) -> BoxFuture<'_, Result<Option<Box<dyn Lane>>>>;
    /// Turns true when the worker wants to go.
    fn leaving(&self) -> watch::Receiver<bool>;
    /// Its share of the strands, relative to other workers.
    fn capacity(&self) -> watch::Receiver<Capacity>;
}

/// Serves one connection until it ends.
pub(crate) async fn serve<S: Serve + ?Sized>(mut io: impl Io, server: &S) -> io::Result<()> {
    let hello = timeout(ASK_TIMEOUT, hello(&mut io)).await??;
    let refused = refusal(&hello, server);
    let (instance, unix) = server.instance();
    let mut capacity = server.capacity();
    let published = *capacity.borrow_and_update();
    let welcome = Welcome {
        protocol: PROTOCOL,
        release: release(),
        ops_version: OPS_VERSION,
        instance: instance.to_owned(),
        unix: unix.filter(|_| refused.is_none()).cloned(),
        capacity: Some(published),
        refused,
    };
    write_greeting(&mut io, &welcome).await?;
    if welcome.refused.is_some() {
        return Ok(());
    }
    let mut receptions = Vec::new(); // given back at the end of the connection
    loop {
        let ask: Ask = match timeout(ASK_TIMEOUT, read_message(&mut io, MESSAGE_BYTES)).await? {
            Ok(ask) => ask,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        if !matches!(ask, Ask::Catalog { .. }) {
            receptions.clear(); // what is not sent at once is built
        }
        let answer = match ask {
            Ask::Status => Answer::Status(server.status()),
            Ask::Describe { catalogs } => {
                let spec = timeout(ASK_TIMEOUT, read_message(&mut io, SPEC_BYTES)).await??;
                match unless_leaving(&mut io, &server.leaving(), server.describe(spec, catalogs)).await? {
                    Ok(wanted) => {
                        receptions = wanted;
                        Answer::Described { wanted: receptions.iter().map(Reception::number).collect() }
                    }
                    Err(error) => Answer::Failed(Failure::from(&error)),
                }
            }
            Ask::Catalog { number, index } => {
                let wanted = receptions.iter().position(|reception| reception.number() == number);
                let wanted = wanted.ok_or_else(|| garbage("a catalog that was not asked for".into()))?;
                let reception = receptions.swap_remove(wanted);
                let taken = receiving::catalog(&mut io, &server.leaving(), reception, index).await?;
                if let Err(error) = taken {
                    return write_message(&mut io, &Answer::Failed(Failure::from(&error))).await;
                }
                Answer::Taken
            }
            Ask::Prepare(plan) => {
                match unless_leaving(&mut io, &server.leaving(), server.prepare(plan)).await? {
                    Ok(true) => Answer::Prepared,
                    Ok(false) => Answer::Unknown,
                    Err(error) => Answer::Failed(Failure::from(&error)),
                }
            }
            // Also while it drains: the stream first reports that, so only a rank without another ready worker keeps it.
            Ask::Open(request) => match at_work(&mut io, server.open(*request)).await? {
                Ok(Some(lane)) => return stream(io, lane, server.leaving(), capacity).await,
                Ok(None) => Answer::Unknown,
                Err(error) => Answer::Failed(Failure::from(&error)),
            },
        };
        write_message(&mut io, &answer).await?;
    }
}

async fn hello(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Hello> {
    let mut magic = [0; MAGIC.len()];
    io.read_exact(&mut magic).await?;
    if magic != *MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a connection that does not speak our protocol",
        ));
    }
    read_greeting(io, HELLO_BYTES).await
}

fn refusal<S: Serve + ?Sized>(hello: &Hello, server: &S) -> Option<Failure> {
    if let Err(error) = agree(&Versions::OURS, &hello.versions()) {
        return Some(Failure::from(&error));
    }
    let given = hello.token.as_ref().map_or("", Token::expose);
    if server.token().is_some_and(|token| !token.is(given)) {
        let which = if given.is_empty() { "no token was given" } else { "the token is another one" };
        let message = format!("the worker does not know this rank: {which}");
        return Some(Failure::from(&Error::new(ErrorKind::Denied, message)));
    }
    None
}

/// Sends frames until the lane ends or the rank is gone.
async fn stream(
    io: impl Io,
    mut lane: Box<dyn Lane>,
    mut leaving: watch::Receiver<bool>,
    mut capacity: watch::Receiver<Capacity>,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(io);
    let gone = gone(read);
    tokio::pin!(gone);
    let mut write = BufWriter::with_capacity(SEND_BYTES, write);
    let send = async {
        write_message(&mut write, &Answer::Opened).await?;
        write_message(&mut write, &lane.specs()).await?;
        let mut heads = HeadWriter::new(lane.specs().iter().filter(|spec| spec.is_ragged()).count());
        let mut tick = interval(ALIVE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = false;
        loop {
            let next = tokio::select! {
                biased; // before rows, of which a slow rank always finds more
                true = left(&mut leaving), if !told => {
                    told = true;
                    write.write_u8(Tag::Leaving as u8).await?;
                    None
                }
                Ok(()) = capacity.changed() => {
                    let published = *capacity.borrow_and_update();
                    write.write_u8(Tag::Capacity as u8).await?;
                    write_message(&mut write, &published).await?;
                    None
                }
                next = lane.next() => Some(next),
                _ = tick.tick() => {
                    write.write_u8(Tag::Alive as u8).await?;
                    None
                }
            };
            match next {
                None => {}
                Some(Ok(Some(rows))) => {
                    tick.reset();
                    if let SentRows::Refused(error) =
                        send_rows(&mut write, &mut heads, lane.specs(), rows).await?
                    {
                        return fail(&mut write, &error).await;
                    }
                }
                Some(Ok(None)) => {
                    write.write_u8(Tag::End as u8).await?;
                    return write.flush().await;
                }
                Some(Err(error)) => return fail(&mut write, &error).await,
            }
            write.flush().await?;
        }
    };
    let sent = tokio::select! {
        sent = send => sent,
        () = &mut gone => return Ok(()),
    };
    if sent.is_ok() {
        // The rank closes the connection when it has read the last frame. If the worker closed it before, bytes could be lost.
        gone.await;
    }
    sent
}

async fn left(leaving: &mut watch::Receiver<bool>) -> bool {
    leaving.wait_for(|leaving| *leaving).await.is_ok()
}

async fn fail(write: &mut (impl AsyncWrite + Unpin), error: &Error) -> io::Result<()> {
    write.write_u8(Tag::Failed as u8).await?;
    write_message(write, &Failure::from(error)).await
}

/// What became of a step's rows.
enum SentRows {
    Sent,
    /// They cannot be sent; nothing of them was.
    Refused(Error),
}

async fn send_rows(
    write: &mut (impl AsyncWrite + Unpin),
    heads: &mut HeadWriter,
    specs: &[TensorSpec],
    mut rows: FinishedRows,
) -> io::Result<SentRows> {
    refuse_long(&mut rows.heads, &*rows.body, specs.len(), ROW_BYTES);
    let head = match heads.write(&rows.heads, &rows.columns) {
        Ok(head) => head,
        Err(error) => return Ok(SentRows::Refused(error)),
    };
    let sizes = (u32::try_from(rows.heads.len()), u32::try_from(head.len()));
    let (Ok(count @ ..=FRAME_ROWS), Ok(head_bytes @ ..=HEAD_BYTES)) = sizes else {
        let message = format!(
            "a step of {} rows whose columns take {} bytes; workers send at most {FRAME_ROWS} rows and {HEAD_BYTES} bytes: \
             use a smaller batch",
            rows.heads.len(),
            head.len()
        );
        return Ok(SentRows::Refused(Error::config(message)));
    };
    let (epoch, position, head_crc) = (rows.epoch, rows.position, crc32fast::hash(&head));
    let frame = FrameHead { epoch, position, rows: count, head_bytes, head_crc };
    frame.write(write).await?;
    write.write_all(&head).await?;
    let mut body = crc32fast::Hasher::new();
    for (row, _) in rows.heads.iter().enumerate().filter(|(_, head)| head.failure.is_none()) {
        for column in 0..specs.len() {
            let part = rows.body.part(row, column);
            body.update(part);
            write.write_all(part).await?;
        }
    }
    write.write_u32_le(body.finalize()).await?;
    Ok(SentRows::Sent)
}

/// Makes rows that no rank takes bad samples: it would ask every worker for them.
fn refuse_long(heads: &mut [RowHead], body: &dyn Body, columns: usize, most: usize) {
    for (row, head) in heads.iter_mut().enumerate().filter(|(_, head)| head.failure.is_none()) {
        let longest = (0..columns).map(|column| body.part(row, column).len()).max().unwrap_or(0);
        if longest > most {
            let message = format!(
                "sample {}: the ops make a row of {longest} bytes of it, and workers send at most {most}; crop it, or decode it \
                 without workers",
                head.sample
            );
            head.failure = Some(Error::new(ErrorKind::BadSample, message));
        }
    }
}

/// Returns when the other side hung up, or was not heard of for too long.
async fn gone(mut read: impl AsyncRead + Unpin) {
    let mut bytes = [0; 64];
    while let Ok(Ok(1..)) = timeout(RANK_TIMEOUT, read.read(&mut bytes)).await {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_dataset::SampleId;
    use feedstock_ops::Warnings;

    /// Rows with this many bytes in each column.
    struct Lengths(Vec<[Vec<u8>; 2]>);

    impl Body for Lengths {
        fn part(&self, row: usize, column: usize) -> &[u8] {
            &self.0[row][column]
        }
    }

    #[test]
    fn rows_that_no_rank_takes_are_bad_samples() {
        let head = |sample| RowHead {
            sample: SampleId(sample),
            failure: None,
            warnings: Warnings::default(),
            lengths: Vec::new(),
        };
        let mut heads = [head(7), head(8), head(9)];
        let failed = Error::new(ErrorKind::BadSample, "damaged");
        heads[2].failure = Some(failed);
        let row = |first: usize, second: usize| [vec![0; first], vec![0; second]];
        let body = Lengths(vec![row(100, 100), row(3, 101), row(200, 0)]);
        refuse_long(&mut heads, &body, 2, 100);
        assert!(heads[0].failure.is_none());
        let error = heads[1].failure.as_ref().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadSample);
        assert!(error.to_string().contains("sample 8: the ops make a row of 101 bytes"), "{error}");
        assert_eq!(heads[2].failure.as_ref().unwrap().to_string(), "damaged");
    }
}
