//! Rewriting a data set of any layout into well-formed shards.
//!
//! ```text
//! plan ─▶ RawBatches ─▶ change (optional, CPU pool) ─▶ row groups ─▶ shard in memory ─▶ destination ─▶ state file
//!                            digests of ids and rows ┘                    one building, one on its way │
//!                                                    read back at the end, compared ◀──────────────────┘
//! ```
//! Invariants
//! - Where shards begin is arithmetic over the catalog, and a shard's bytes depend on the data set and the options
//!   alone: a run that was killed and continued writes the same bytes as an unbroken one.
//! - A shard is written whole or not at all, and counts when the state file names it.
//! - Samples come once, in plan order, on one lane: row r of the whole is position r.
//!
//! Memory: the byte budget, two shards, and seven batches of about a group each: by default 512 MiB + 2 × 512 MiB +
//! 28 MiB. Lower `shard_bytes` where that is too much. Changing images takes a decoded one for each thread, restart
//! markers up to 300 MB of coefficients of one.

mod cuts;
mod digest;
mod encode;
mod options;
mod page_writer;
mod recode;
mod report;
mod schema;
mod state;
mod verify;
mod write;

pub use options::{
    OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteProgress, RewriteProgressFn, RewriteStage,
};
pub use report::{KeptSample, RewriteReport};

use crate::{Error, Result};
use feedstock_dataset::{Dataset, Digest, Plan};
use report::NAMED_SAMPLES;
use state::{FinishedShard, RewriteSettings, RewriteState, Target};
use std::collections::BTreeMap;
use write::Rewriter;

/// Rewrites the selected samples and columns of `dataset` into shards below `destination`, a local folder or any URI
/// that [`feedstock_dataset::Storage`] writes (with the data set's own storage options). Blocks until done.
///
/// A destination with an unfinished rewrite of the same data set and options is continued at the first shard that is
/// missing; a finished one is only verified again. Of several runs that begin in one empty destination at the same time, one
/// writes and the others fail. Once a run has begun, another one with the same options continues it, even while the first
/// still runs: both then write the same bytes.
///
/// ```
/// use feedstock_ingest::{RewriteFormat, RewriteOptions, rewrite};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let own = || OpenOptions {
/// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
/// #     ..OpenOptions::default()
/// # };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
/// # let copy = tempfile::tempdir().unwrap();
/// # let destination = copy.path().to_str().unwrap();
/// let options = RewriteOptions { format: RewriteFormat::Ipc, threads: 1, ..RewriteOptions::default() };
/// let report = rewrite(&dataset, destination, &options)?;
/// assert_eq!((report.samples, report.shards, report.verified), (16, 1, true));
///
/// assert_eq!(rewrite(&dataset, destination, &options)?.resumed_shards, 1); // only verified again
/// assert_eq!(futures::executor::block_on(Dataset::open_with(destination, own()))?.len(), 16);
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
///
/// # Errors
/// `BadConfig` for options out of range, a destination that holds anything else, or one in which another run began;
/// `BadSample` for an image that cannot be decoded under [`OnBadPicture::Raise`]; `Gone` where the shards read back
/// differ from what was written; storage's own errors. What was written until then stays and counts.
pub fn rewrite(dataset: &Dataset, destination: &str, options: &RewriteOptions) -> Result<RewriteReport> {
    options.check()?;
    let shuffle = options.shuffle.clone().lanes(1);
    let plan = dataset.plan(&shuffle)?;
    if plan.is_mix() {
        let message = "a mix is made anew each epoch and has no shards; rewrite its parts, one by one";
        return Err(Error::config(message));
    }
    let page = options.page_samples.map_or(1, |samples| u64::from(samples.get()));
    let starts = cuts::shard_starts(dataset, &plan, shuffle.kind(), (options.shard_bytes, page));
    let shards = (starts.len() - 1) as u64;
    let settings = settings(dataset, &plan, options);
    let target = Target::new(dataset.storage(), destination);
    let found = target.open(&plan, &settings, shards)?;
    let resumed_shards = found.as_ref().map_or(0, |state| state.finished.len() as u64);
    let rewriter = Rewriter { dataset, plan: &plan, shuffle, starts: &starts, target: &target, options };
    let mut state = match found {
        Some(state) if resumed_shards == shards => state,
        Some(state) => {
            let rest = rewriter.read(starts[state.finished.len()])?;
            rewriter.write(state, None, rest)?
        }
        None => {
            let mut rest = rewriter.read(0)?;
            let first = rest.next().transpose()?;
            let payload = first.as_ref().map_or_else(BTreeMap::new, |b| schema::payload_kinds(dataset, b));
            let state = RewriteState::new(settings, shards, payload);
            if !target.begin(&state)? {
                target.open(&plan, &state.settings, shards)?; // names what differs
                return Err(target.taken());
            }
            rewriter.write(state, first, rest)?
        }
    };
    verify::check_ids(&state, &plan)?;
    if options.verify {
        verify::read_back(dataset, &target, &state, options)?;
        state.verified = true;
        target.save(&state)?;
    }
    Ok(report(&state, resumed_shards, options.verify))
}

fn settings(dataset: &Dataset, plan: &Plan, options: &RewriteOptions) -> RewriteSettings {
    RewriteSettings {
        version: RewriteSettings::version(),
        plan: plan.fingerprint().clone(),
        format: options.format,
        name: options.name.clone(),
        shard_bytes: options.shard_bytes,
        group_bytes: options.group_bytes,
        columns: dataset.block_reader().schema().fields().iter().map(|field| field.name().clone()).collect(),
        recode: options.recode,
        restart_interval: options.restart_interval,
        page_samples: options.page_samples,
    }
}

fn report(state: &RewriteState, resumed_shards: u64, verified: bool) -> RewriteReport {
    let sum = |of: fn(&FinishedShard) -> u64| state.finished.iter().map(of).sum();
    let mut ids = Digest::default();
    state.finished.iter().for_each(|shard| ids.merge(&shard.ids));
    let mut unmarked = BTreeMap::new();
    for (why, samples) in state.finished.iter().flat_map(|shard| &shard.unmarked) {
        *unmarked.entry(*why).or_default() += samples;
    }
    RewriteReport {
        samples: sum(|shard| shard.samples),
        shards: state.finished.len() as u64,
        resumed_shards,
        file_bytes: sum(|shard| shard.file_bytes),
        payload_bytes: sum(|shard| shard.payload_bytes),
        shrunk: sum(|shard| shard.shrunk),
        restarted: sum(|shard| shard.restarted),
        unmarked,
        kept_samples: sum(|shard| shard.kept_samples),
        kept: state
            .finished
            .iter()
            .flat_map(|shard| shard.kept.iter().cloned())
            .take(NAMED_SAMPLES)
            .collect(),
        ids,
        verified,
    }
}
