//! The protocol of ranks and workers: messages, and frames with the rows of a step.
//!
//! ```text
//! rank                                             worker
//!  │ MAGIC, Hello {protocol, token}                   │
//!  │ ◀──────────────────── Welcome {instance, capacity} or Refused: both name protocol, ops version and release
//!  │ Open {plan, cursor, shape, strands}              │
//!  │ ◀──────────────────────────── Unknown: not told of this plan yet
//!  │ Describe {recipe}, then Open again               │
//!  │ ◀──────────────────────────── Described {wanted}: catalogs that the worker lacks and the rank can send: Catalog,
//!  │     and its tables. The same before Prepare, by which a rank has a worker open the data set ahead
//!  │ ◀──────────────────────────── empty messages, every 500 ms, until data set, catalog and ops are ready: not yet
//!  │ ◀──────────────────────────── Opened: from now on rows can be late; the tensors, then frames without end:
//!  │     Rows: an Arrow IPC batch of what rides along, then each row's tensor bytes as they stand in a slot
//!  │     Alive every 500 ms without rows · Capacity, where it changed · Leaving · Failed · End
//!  │ a byte a second: still here                      │
//! ```
//! One connection is one stream of rows; its flow control is TCP's. A frame's rows are those of one step on the stream's
//! strands, in the step's order, so frames do not name the rows: both sides compute them. Sample ids travel along and
//! are compared.
//!
//! Control messages are JSON with checksums (`control.rs`); lengths are bounded before they are used. A frame costs about 40 µs at both ends
//! together, in addition to one copy of each row from the kernel.

mod capacity;
mod control;
mod frame;
mod message;
mod secure;

pub(crate) use capacity::{CAPACITY_MAX, Capacity};
pub(crate) use control::{
    damaged, garbage, read_greeting, read_length, read_message, read_text, write_greeting, write_message,
    write_not_yet,
};
pub(crate) use frame::{
    FRAME_HEAD_BYTES, FRAME_ROWS, FrameHead, HEAD_BYTES, HeadReader, HeadWriter, ROW_BYTES, RowHead, Tag,
};
pub use message::WorkerStatus;
pub(crate) use message::{
    Answer, Ask, Failure, HELLO_BYTES, Hello, LaneRequest, MAGIC, MESSAGE_BYTES, Offered, PROTOCOL, PlanId,
    SPEC_BYTES, STEP_ROWS, Versions, Welcome, agree, release,
};
pub(crate) use secure::{ALPN_GRPC, ALPN_ROWS};
pub use secure::{ClientTls, FleetIdentity, Identity, ServerTls, Token};

use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The interval of a worker's signs of life while it has no rows to send. After three are missing, a rank takes it as lost.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_millis(500);

/// The interval of a rank's signs of life.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(1);

/// Any connection that bytes can take.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
