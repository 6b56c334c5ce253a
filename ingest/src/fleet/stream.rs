//! One stream of a rank: frames in, rows into their places.

use super::connect::{Connect, Greeted, OPENING_TIMEOUT, answer, broken, greeted, named, refused, within};
use super::dispatch::StreamId;
use super::gathering::{Claim, Gathering, Writing};
use super::member::Reported;
use super::progress::Counters;
use super::silence::{HeardReader, LastHeard, SILENCE};
use super::warm::Introduction;
use crate::memory::row::RowPlace;
use crate::run::job::Destination;
use crate::wire::{
    Answer, Ask, FRAME_HEAD_BYTES, Failure, FrameHead, HeadReader, Io, LaneRequest, MESSAGE_BYTES,
    PING_EVERY, ROW_BYTES, RowHead, Tag, Token, damaged, garbage, read_message, write_message,
};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use feedstock_ops::{RaggedRow, TensorSpec};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, split};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

/// Small rows and heads are read together up to this; larger rows go straight to their place.
const READ_BYTES: usize = 64 << 10;

/// A ragged row's buffer has this at once and doubles while bytes come, so a claimed length allocates nothing.
const GROW_BYTES: usize = 4 << 20;

/// Rows of one step that a stream is to bring.
pub(crate) struct Task<D: Destination> {
    pub(crate) gathering: Arc<Gathering<D>>,
    /// Which of the step's rows.
    pub(crate) rows: Vec<usize>,
}

/// What a stream reports to the driver of its run.
pub(crate) enum StreamEvent {
    /// The worker is at work on opening the data set.
    Opening,
    /// Data set, catalog and ops are ready there: rows follow.
    Opened,
    /// The rows of this step are there.
    Received(u64),
    /// What the worker reported of itself in its greeting.
    Greeted(Reported),
    /// The worker wants to go.
    Leaving,
    /// The stream is over.
    Lost(Error),
}

/// What a stream is opened with.
pub(crate) struct Opening {
    pub(crate) id: StreamId,
    pub(crate) member: String,
    pub(crate) token: Option<Token>,
    pub(crate) request: LaneRequest,
    pub(crate) introduction: Introduction,
    /// The mapped columns.
    pub(crate) tensors: Arc<[TensorSpec]>,
    /// The columns that ride along.
    pub(crate) columns: SchemaRef,
    /// Where the stream counts what it receives.
    pub(crate) counters: Arc<Counters>,
}

/// Runs a stream to its end.
pub(crate) async fn run<D: Destination>(
    opening: Opening,
    connect: Arc<dyn Connect>,
    mut tasks: UnboundedReceiver<Task<D>>,
    events: UnboundedSender<(StreamId, StreamEvent)>,
) {
    let id = opening.id;
    let report = |what| {
        // No driver listens once the run is dropped.
        let _unheard = events.send((id, what));
    };
    let io = match open(&opening, &connect, &report).await {
        Ok(io) => io,
        Err(error) => return report(StreamEvent::Lost(error)),
    };
    let (read, write) = split(io);
    let member = &opening.member;
    let reading = async {
        let mut stream = FrameReader::new(read, &opening.tensors, &opening.columns, &opening.counters);
        while let Some(task) = tasks.recv().await {
            let index = task.gathering.index;
            match stream.receive(task, &report).await {
                Ok(()) => report(StreamEvent::Received(index)),
                Err(Broken::Io(error)) => return report(StreamEvent::Lost(broken(member, &error))),
                Err(Broken::Lost(error)) => return report(StreamEvent::Lost(named(member, &error))),
            }
        }
    };
    tokio::select! {
        () = reading => {}
        error = ping(write) => report(StreamEvent::Lost(broken(member, &error))),
    }
}

async fn open(
    opening: &Opening,
    connect: &Arc<dyn Connect>,
    report: &impl Fn(StreamEvent),
) -> Result<Box<dyn Io>> {
    let member = opening.member.as_str();
    let at_work = || report(StreamEvent::Opening);
    opening.counters.expect(1, 0); // at least, until the tensors' specs are there
    let Greeted { mut io, reported } = greeted(&**connect, member, opening.token.as_ref()).await?;
    report(StreamEvent::Greeted(reported));
    let mut introduced = false;
    loop {
        let ask = Ask::Open(Box::new(opening.request.clone()));
        within(OPENING_TIMEOUT, member, write_message(&mut io, &ask)).await?;
        match answer(&mut io, member, &at_work).await? {
            Answer::Opened => break,
            Answer::Unknown if !introduced => {
                introduced = true;
                let to = (connect, member, opening.token.as_ref());
                io = opening.introduction.send(io, to, &at_work).await?;
            }
            other => return Err(refused(member, other)),
        }
    }
    report(StreamEvent::Opened);
    let specs: Vec<TensorSpec> =
        within(OPENING_TIMEOUT, member, read_message(&mut io, MESSAGE_BYTES)).await?;
    opening.counters.whole();
    if specs[..] != opening.tensors[..] {
        let message = format!("{member}: the ops make other tensors there: {specs:?}");
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    Ok(io)
}

/// Sends a sign of life until that fails.
async fn ping(mut write: impl AsyncWrite + Unpin) -> io::Error {
    loop {
        sleep(PING_EVERY).await;
        let sent = async {
            write.write_all(&[0]).await?;
            write.flush().await
        };
        if let Err(error) = sent.await {
            return error;
        }
    }
}

/// Why a stream is over.
enum Broken {
    /// The connection broke, fell silent, or brought what makes no sense.
    Io(io::Error),
    /// The worker gave up; another may not.
    Lost(Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => Self::Lost(error),
            Err(error) => Self::Io(error),
        }
    }
}

/// Reads the frames of one stream.
struct FrameReader<'a> {
    read: BufReader<HeardReader<ReadHalf<Box<dyn Io>>>>,
    last_heard: LastHeard,
    heads: HeadReader,
    tensors: &'a [TensorSpec],
    counters: &'a Arc<Counters>,
    /// The worker has said that it wants to go, which it does once.
    leaving: bool,
}

impl<'a> FrameReader<'a> {
    fn new(
        read: ReadHalf<Box<dyn Io>>,
        tensors: &'a [TensorSpec],
        columns: &SchemaRef,
        counters: &'a Arc<Counters>,
    ) -> Self {
        let last_heard = LastHeard::new();
        let read = HeardReader::new(read, last_heard.clone(), counters.clone());
        let heads = HeadReader::new(tensors.iter().filter(|spec| spec.is_ragged()).count(), columns.clone());
        Self {
            read: BufReader::with_capacity(READ_BYTES, read),
            last_heard,
            heads,
            tensors,
            counters,
            leaving: false,
        }
    }

    /// The frame under way has this many bytes more.
    fn expect(&self, bytes: u64) {
        self.counters.expect(bytes, self.read.buffer().len());
    }

    /// Reads frames until the task's rows are there.
    async fn receive<D: Destination>(
        &mut self,
        task: Task<D>,
        report: &impl Fn(StreamEvent),
    ) -> Result<(), Broken> {
        // Silence counts from now: before, the stream did not read.
        let last_heard = self.last_heard.clone();
        last_heard.mark();
        tokio::select! {
            biased; // a process that was stopped itself first reads what came meanwhile, so that no worker seems silent
            received = self.frames(task, report) => received,
            () = last_heard.silence() => {
                let message = format!("nothing heard for {:.1} s", SILENCE.as_secs_f64());
                Err(Broken::Lost(Error::new(ErrorKind::Retryable, message)))
            }
        }
    }

    async fn frames<D: Destination>(
        &mut self,
        task: Task<D>,
        report: &impl Fn(StreamEvent),
    ) -> Result<(), Broken> {
        loop {
            match Tag::read(&mut self.read).await? {
                Tag::Alive => {}
                Tag::Leaving => self.left(report)?,
                Tag::Capacity => {
                    self.counters.publish(read_message(&mut self.read, MESSAGE_BYTES).await?)?;
                }
                Tag::Rows => {
                    self.expect(FRAME_HEAD_BYTES as u64);
                    let frame = FrameHead::read(&mut self.read).await?;
                    let step = &task.gathering.step;
                    match (frame.epoch, frame.position) < (step.epoch, step.position.0) {
                        true => self.skip::<D>(frame).await?,
                        false => {
                            self.rows(frame, &task).await?;
                            self.counters.whole();
                            return Ok(());
                        }
                    }
                    self.counters.whole();
                }
                Tag::End => {
                    let message = "the worker ended before the plan did";
                    return Err(Broken::Lost(Error::new(ErrorKind::Bug, message)));
                }
                Tag::Failed => {
                    let failure: Failure = read_message(&mut self.read, MESSAGE_BYTES).await?;
                    let error = Error::from(failure);
                    // One worker's credentials, mounts and files may be wrong, so others are asked. If the data itself
                    // is wrong, all of them report it.
                    return Err(Broken::Lost(error));
                }
            }
        }
    }

    /// Reports once that the worker wants to leave. Reports are kept until the run handles them.
    fn left(&mut self, report: &impl Fn(StreamEvent)) -> io::Result<()> {
        if std::mem::replace(&mut self.leaving, true) {
            return Err(garbage("a worker that leaves twice".into()));
        }
        report(StreamEvent::Leaving);
        Ok(())
    }

    /// Passes over a step that others have brought: a stream that opens at the first step which lacks something also brings
    /// what later ones lack no more.
    async fn skip<D: Destination>(&mut self, frame: FrameHead) -> io::Result<()> {
        let (heads, _) = self.head(frame).await?;
        self.bodies(&heads, None::<&mut Writing<D>>).await
    }

    async fn head(&mut self, frame: FrameHead) -> io::Result<(Vec<RowHead>, RecordBatch)> {
        let fixed: usize = self.tensors.iter().map(TensorSpec::bytes).sum();
        self.expect(u64::from(frame.head_bytes) + u64::from(frame.rows) * fixed as u64);
        let head = frame.read_head(&mut self.read).await?;
        self.heads.read(head, frame.rows)
    }

    async fn rows<D: Destination>(&mut self, frame: FrameHead, task: &Task<D>) -> Result<(), Broken> {
        let step = &task.gathering.step;
        let expected = (step.epoch, step.position.0, task.rows.len());
        let found = (frame.epoch, frame.position, frame.rows as usize);
        if expected != found {
            let what = format!("rows (epoch, position, number) {found:?} came instead of {expected:?}");
            return Err(Broken::Lost(Error::new(ErrorKind::Bug, what)));
        }
        let (heads, columns) = self.head(frame).await?;
        for (head, &row) in heads.iter().zip(&task.rows) {
            let planned = step.rows[row].sample;
            if head.sample != planned {
                let what = format!("sample {} came where {planned} was planned", head.sample);
                return Err(Broken::Lost(Error::new(ErrorKind::Bug, what)));
            }
        }
        // While another stream is at these rows this one does not read, so that it cannot hear its worker.
        self.last_heard.pause();
        self.counters.wait(true);
        let claim = task.gathering.claim(&task.rows).await;
        self.counters.wait(false);
        self.last_heard.mark();
        match claim {
            Claim::Written => self.bodies(&heads, None::<&mut Writing<D>>).await?,
            Claim::Mine(mut writing) => {
                self.bodies(&heads, Some(&mut writing)).await?;
                for (nth, head) in heads.iter().enumerate() {
                    if let Some(memory) = writing.memory(nth) {
                        memory.set_warnings(head.warnings);
                    }
                }
                let failures = heads.into_iter().enumerate();
                let failures = failures.filter_map(|(nth, head)| Some((nth, head.failure?))).collect();
                writing.done(columns, failures);
            }
        }
        Ok(())
    }

    /// Reads the rows' bytes: into their memory, or past those that another stream has brought.
    async fn bodies<D: Destination>(
        &mut self,
        heads: &[RowHead],
        mut writing: Option<&mut Writing<D>>,
    ) -> io::Result<()> {
        self.expect(self.body_bytes(heads)?);
        let mut crc = crc32fast::Hasher::new();
        for (nth, head) in heads.iter().enumerate().filter(|(_, head)| head.failure.is_none()) {
            let mut lengths = head.lengths.iter();
            for (column, spec) in self.tensors.iter().enumerate() {
                let length = if spec.is_ragged() { lengths.next().copied().unwrap_or(0) } else { 0 };
                let bytes = row_bytes(spec, length)?;
                match writing.as_mut().and_then(|writing| writing.memory(nth)) {
                    None => self.pass(bytes, &mut crc).await?,
                    Some(memory) => {
                        let out = match memory.column(column).map_err(io::Error::other)? {
                            RowPlace::Fixed(out) => {
                                self.read.read_exact(out).await?;
                                out
                            }
                            RowPlace::Ragged(row) => self.ragged(row, length, bytes).await?,
                        };
                        crc.update(out);
                    }
                }
            }
        }
        let sent = self.read.read_u32_le().await?;
        match crc.finalize() == sent {
            true => Ok(()),
            false => Err(damaged("a step's rows")),
        }
    }

    /// Bytes of the rows and their checksum.
    fn body_bytes(&self, heads: &[RowHead]) -> io::Result<u64> {
        let mut bytes = size_of::<u32>() as u64;
        for head in heads.iter().filter(|head| head.failure.is_none()) {
            let mut lengths = head.lengths.iter();
            for spec in self.tensors {
                let length = if spec.is_ragged() { lengths.next().copied().unwrap_or(0) } else { 0 };
                bytes += row_bytes(spec, length)? as u64;
            }
        }
        Ok(bytes)
    }

    /// Reads a row into its buffer, which grows as the bytes come.
    async fn ragged<'r>(
        &mut self,
        row: &'r mut RaggedRow,
        length: usize,
        bytes: usize,
    ) -> io::Result<&'r mut [u8]> {
        let mut read = 0;
        while read < bytes {
            let end = bytes.min(read.max(GROW_BYTES / 2) * 2);
            self.read.read_exact(&mut row.lengthen(length, end)[read..]).await?;
            read = end;
        }
        Ok(row.lengthen(length, bytes))
    }

    /// Skips `bytes` bytes, which `crc` covers.
    async fn pass(&mut self, mut bytes: usize, crc: &mut crc32fast::Hasher) -> io::Result<()> {
        while bytes > 0 {
            let here = self.read.fill_buf().await?;
            if here.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let passed = here.len().min(bytes);
            crc.update(&here[..passed]);
            self.read.consume(passed);
            bytes -= passed;
        }
        Ok(())
    }
}

fn row_bytes(spec: &TensorSpec, length: usize) -> io::Result<usize> {
    spec.bytes_at(length).filter(|bytes| *bytes <= ROW_BYTES).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a row {length} long, over {ROW_BYTES} bytes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_worker_leaves_once() {
        let io: Box<dyn Io> = Box::new(tokio::io::duplex(1).0);
        let (columns, counters) = (Arc::new(Schema::empty()), Arc::default());
        let mut stream = FrameReader::new(split(io).0, &[], &columns, &counters);
        let told = Cell::new(0);
        let report = |_| told.set(told.get() + 1);
        stream.left(&report).unwrap();
        let error = stream.left(&report).unwrap_err();
        assert!(error.to_string().contains("leaves twice"), "{error}");
        assert_eq!(told.get(), 1);
    }
}
