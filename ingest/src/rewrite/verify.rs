//! Reading the shards back and comparing them with what was read from the source.

use super::cuts::mean_batch_rows;
use super::digest::RowDigest;
use super::options::{RewriteOptions, RewriteStage};
use super::state::{RewriteState, Target};
use crate::{Error, ErrorKind, RawBatches, RawOptions, Result};
use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, Digest, OpenOptions, Plan, Shuffle};

/// Every planned sample was read once: the shards' ids add up to the plan's digest.
pub(super) fn check_ids(state: &RewriteState, plan: &Plan) -> Result<()> {
    let mut read = Digest::default();
    state.finished.iter().for_each(|shard| read.merge(&shard.ids));
    let planned = plan.digest();
    if read == planned {
        return Ok(());
    }
    let message = format!("the shards hold samples {read}, the plan {planned}: samples were lost or doubled");
    Err(Error::new(ErrorKind::Bug, message))
}

/// Opens the destination as any reader would and compares counts and digests, shard by shard.
pub(super) fn read_back(
    source: &Dataset,
    target: &Target,
    state: &RewriteState,
    options: &RewriteOptions,
) -> Result<()> {
    let written = open(source, target, state)?;
    let planned: u64 = state.finished.iter().map(|shard| shard.samples).sum();
    if written.len() != planned {
        let found = format!("{} samples were read back, {planned} were written", written.len());
        return Err(differs(target, &state.settings.name, &found));
    }
    let columns = &state.settings.columns;
    let raw = RawOptions {
        batch_rows: mean_batch_rows(&written, options.group_bytes),
        budget_bytes: options.budget_bytes,
        deadline: options.deadline,
        shuffle: Shuffle::none(),
        ..RawOptions::default()
    };
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let missing = |e: feedstock_dataset::Error| differs(target, &state.settings.name, &e.to_string());
    let mut batches = RawBatches::start(&written.columns(&names).map_err(missing)?, &raw)?;
    let mut shards = state.finished.iter();
    let Some(mut shard) = shards.next() else { return Ok(()) };
    let mut digest = RowDigest::new(columns);
    let mut done = 0;
    for batch in &mut batches {
        let mut batch = batch?;
        done += batch.num_rows() as u64;
        loop {
            let room = usize::try_from(shard.samples - digest.rows).unwrap_or(usize::MAX);
            let rows = batch.num_rows().min(room);
            digest.add(&batch.slice(0, rows))?;
            batch = batch.slice(rows, batch.num_rows() - rows);
            if digest.rows < shard.samples {
                break; // and the batch is used up
            }
            if digest.text() != shard.rows {
                let found = format!("its rows' digest is {}, {} was written", digest.text(), shard.rows);
                return Err(differs(target, &shard.file, &found));
            }
            digest = RowDigest::new(columns);
            match shards.next() {
                Some(next) => shard = next,
                None => break,
            }
        }
        options.report(RewriteStage::Verifying, done, planned, 0);
    }
    if done != planned || shards.next().is_some() {
        let found = format!("{done} rows came, {planned} were written");
        return Err(differs(target, &shard.file, &found));
    }
    Ok(())
}

fn open(source: &Dataset, target: &Target, state: &RewriteState) -> Result<Dataset> {
    let open = OpenOptions {
        storage: source.storage().options().clone(),
        catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
        layout: Some(state.settings.format.layout()),
        ..OpenOptions::default()
    };
    let uri = target.uri_of("");
    let opened = source.io().block_on(async move { Dataset::open_with(&uri, open).await });
    opened.map_err(|e| e.context("the shards were written but cannot be read back"))
}

fn differs(target: &Target, file: &str, what: &str) -> Error {
    let uri = target.uri_of(file);
    let message = format!(
        "{uri} is not what was written: {what}; it was damaged or overwritten: remove it and run the rewrite again"
    );
    Error::new(ErrorKind::Gone, message)
}
