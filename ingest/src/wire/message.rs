//! Control messages, which are sent as JSON (`control.rs`).

use super::capacity::Capacity;
use super::control::Greeting;
use super::secure::Token;
use crate::{Error, ErrorKind, RecipeSpec, SampleContext};
use feedstock_dataset::{Cursor, Rank, StepShape, StepSize, StrandSet};
use feedstock_ops::OPS_VERSION;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Raised whenever a message or a frame changes its meaning. If the two sides have different ones, they refuse each other.
pub(crate) const PROTOCOL: u32 = 6;

/// The first bytes of a connection that is not HTTP.
pub(crate) const MAGIC: &[u8; 8] = b"feedstck";

/// A greeting at most. Strangers may send one: 4,096 connections of them are 64 MiB.
pub(crate) const HELLO_BYTES: u32 = 16 << 10;

/// A control message at most: a request names up to 16,384 strands, in 100 kB.
pub(crate) const MESSAGE_BYTES: u32 = 1 << 20;

/// Rows of a global step at most, six times the largest batch known of: listing a padded one takes 60 MB of the worker.
pub(crate) const STEP_ROWS: u64 = 1 << 20;

/// A recipe at most: mixes of thousands of data sets, vocabularies written into an op.
pub(crate) const SPEC_BYTES: u32 = 16 << 20;

/// The release that this is, for messages.
pub(crate) fn release() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// The name of a recipe: a hash of its description.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PlanId(String);

impl PlanId {
    pub(crate) fn of(spec: &RecipeSpec) -> Result<Self, Error> {
        let text = serde_json::to_vec(spec)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the plan: {e}")))?;
        let half = |seed| twox_hash::XxHash64::oneshot(seed, &text);
        Ok(Self(format!("{:016x}{:016x}", half(0), half(1))))
    }

    /// A number that differs between recipes.
    pub(crate) fn salt(&self) -> u64 {
        twox_hash::XxHash64::oneshot(0, self.0.as_bytes())
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What both sides must have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Versions<'a> {
    pub(crate) protocol: u32,
    pub(crate) ops: u32,
    pub(crate) release: &'a str,
}

impl Versions<'static> {
    pub(crate) const OURS: Self =
        Self { protocol: PROTOCOL, ops: OPS_VERSION, release: env!("CARGO_PKG_VERSION") };
}

/// Checks that a worker's rows are the bytes that the rank would make itself.
///
/// # Errors
/// `BadConfig`, which names both versions.
pub(crate) fn agree(worker: &Versions<'_>, rank: &Versions<'_>) -> Result<(), Error> {
    let (what, theirs, ours) = if worker.protocol != rank.protocol {
        ("protocol", worker.protocol, rank.protocol)
    } else if worker.ops != rank.ops {
        ("ops version", worker.ops, rank.ops)
    } else {
        return Ok(());
    };
    let message = format!(
        "the worker has {what} {theirs} (feedstock {}), the rank has {what} {ours} (feedstock {}); run the same release \
         on both",
        worker.release, rank.release
    );
    Err(Error::new(ErrorKind::BadConfig, message))
}

/// The version of the ops in releases that do not send one.
const fn first_ops_version() -> u32 {
    1
}

/// The first message of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) release: String,
    /// The version of the rank's ops.
    #[serde(default = "first_ops_version")]
    pub(crate) ops_version: u32,
    #[serde(default)]
    pub(crate) token: Option<Token>,
}

impl Greeting for Hello {
    fn protocol(&self) -> u32 {
        self.protocol
    }
}

impl Hello {
    pub(crate) fn versions(&self) -> Versions<'_> {
        Versions { protocol: self.protocol, ops: self.ops_version, release: &self.release }
    }
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) protocol: u32,
    pub(crate) release: String,
    /// The version of the worker's ops.
    #[serde(default = "first_ops_version")]
    pub(crate) ops_version: u32,
    /// Which process this is: another one after a restart.
    #[serde(default)]
    pub(crate) instance: String,
    /// A socket in the file system at which the same process answers those on its host.
    #[serde(default)]
    pub(crate) unix: Option<PathBuf>,
    /// Its share of the strands, relative to other workers. `None`: the median of them.
    #[serde(default)]
    pub(crate) capacity: Option<Capacity>,
    /// Why it does not serve this rank.
    #[serde(default)]
    pub(crate) refused: Option<Failure>,
}

impl Greeting for Welcome {
    fn protocol(&self) -> u32 {
        self.protocol
    }
}

impl Welcome {
    pub(crate) fn versions(&self) -> Versions<'_> {
        Versions { protocol: self.protocol, ops: self.ops_version, release: &self.release }
    }
}

/// Rows of some strands of a rank's steps, from a place on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneRequest {
    pub(crate) plan: PlanId,
    /// From where; its fingerprint is what the worker's own plan must be.
    pub(crate) cursor: Cursor,
    /// Whose steps.
    pub(crate) shape: StepShape,
    pub(crate) strands: StrandSet,
    #[serde(default)]
    pub(crate) end_epoch: Option<u64>,
    /// Encoded bytes in the worker's memory for this stream, if it has as many.
    pub(crate) budget_bytes: u64,
    /// The most of them, for a step that needs more: what the rank itself would take.
    pub(crate) most_bytes: u64,
    /// A sample that needs more working memory is bad, on every worker as on the rank.
    pub(crate) sample_bytes: u64,
    /// Steps made ahead of the one being sent.
    pub(crate) places: u32,
    /// The number of first steps that are waited for: other streams have brought rows of them.
    pub(crate) overdue: u32,
}

impl LaneRequest {
    /// Refuses numbers that no rank means, before anything is computed from them.
    ///
    /// # Errors
    /// `BadConfig`, which names the number.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Rank { rank, world_size } = self.shape.rank;
        let rows = match self.shape.size {
            StepSize::Rows(rows) => rows,
            StepSize::Total { .. } => 0, // bounded by what there is
        };
        let message = if rank >= world_size {
            format!("rank {rank} is not below its world size of {world_size}")
        } else if rows.max(world_size.into()) > STEP_ROWS {
            format!("a step of {rows} rows for {world_size} ranks: workers make at most {STEP_ROWS} rows")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::BadConfig, message))
    }
}

/// A catalog that a rank can send.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Offered {
    /// Which of the recipe's URIs it is of.
    pub(crate) number: u32,
    /// The hash of the listing that it fits.
    pub(crate) listing: u64,
}

/// What a rank asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// How are you?
    Status,
    /// A recipe follows, as a separate message. The rank can send these catalogs.
    Describe {
        #[serde(default)]
        catalogs: Vec<Offered>,
    },
    /// A catalog that the worker lacks, by its index. The bytes of its tables follow, in the index's order.
    Catalog { number: u32, index: String },
    /// Have the data set of this recipe open.
    Prepare(PlanId),
    /// Rows.
    Open(Box<LaneRequest>),
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Well.
    Status(WorkerStatus),
    /// The recipe is known now. The worker lacks the catalogs of these of its URIs.
    Described { wanted: Vec<u32> },
    /// The catalog is stored.
    Taken,
    /// The recipe is not known: describe it.
    Unknown,
    /// Data set, catalog and ops are ready.
    Prepared,
    /// Data set, catalog and ops are ready: the tensors' specs and frames follow. From now on the rank counts rows that do
    /// not come as late.
    Opened,
    /// It cannot be.
    Failed(Failure),
}

/// The state of a worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The release it runs.
    pub release: String,
    /// The protocol it speaks.
    pub protocol: u32,
    /// Which process it is.
    pub instance: String,
    /// It is about to end: ranks use other workers, if there are any.
    pub draining: bool,
    /// Streams of rows under way.
    pub streams: u64,
    /// Recipes that it knows.
    pub plans: u64,
    /// Samples made since it started.
    pub samples: u64,
    /// Of these, taken from another stream that had made them already.
    pub shared_samples: u64,
    /// Bytes promised to streams, and the limit.
    pub reserved_bytes: u64,
    /// The limit of these bytes.
    pub memory_bytes: u64,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// CPU threads that make rows. 0: the worker is of a release that does not report it.
    #[serde(default)]
    pub threads: u64,
    /// Seconds that these threads have spent on rows since the worker started, added up.
    #[serde(default)]
    pub busy_s: f64,
    /// Its share of the strands relative to other workers: a worker of 8 serves twice the strands of a worker of 4. 0: the worker is
    /// of a release that does not report it.
    #[serde(default)]
    pub capacity: u32,
    /// The generation of `capacity`, which rises when it changes: milliseconds since 1970.
    #[serde(default)]
    pub capacity_generation: u64,
}

/// An error on its way to the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// Older workers send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<SampleContext>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind(), message: error.to_string(), sample: error.sample_context().cloned() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Self::new(failure.kind, failure.message);
        match failure.sample {
            Some(sample) => error.with_sample(sample),
            None => error,
        }
    }
}
