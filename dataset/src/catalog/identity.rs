//! What a data set is, wherever a copy of it lies: the hashes that cursors are compared by.
//!
//! ```text
//! identity   layout │ names, sizes │ what cataloguing reads anyway: footers of row groups, IPC messages; where samples
//!            lie in tars and lists, and their keys, labels and texts
//! blocks     how the samples were cut into blocks
//! legacy     what releases before 0.2 stored as one hash: names, sizes, ETags, blocks
//! ```
//! ETags, inodes and times guard reads and are no part of the identity: a copy (`cp -a`, `rsync`, another node's) has
//! others. An MD5 as an ETag is none either: a listing never proves that it is one, and a copy on a file system has none.

use super::{BlockTable, Content, CopiedFrom, DURATION, Draft, Objects};
use crate::format::{name_below, unit_digest};
use crate::plan::DataHashes;
use crate::storage::is_etag;
use crate::{Layout, Result, Storage};
use arrow::array::Array;
use std::hash::Hasher;
use twox_hash::XxHash64;

/// Raised when the identity would differ for the same data.
const VERSION: u64 = 3;
const LEGACY_VERSION: u64 = 2;

/// The hashes of a data set that was just catalogued.
pub(super) async fn hashes(
    draft: &Draft,
    layout: Layout,
    block_bytes: u64,
    storage: &Storage,
) -> Result<DataHashes> {
    let from = draft.copied_from.as_ref();
    Ok(DataHashes {
        identity: identity(layout, from, &draft.objects, &draft.content, storage).await?,
        blocks: blocks(&draft.blocks, block_bytes)?,
        legacy: legacy(draft, layout, block_bytes)?,
    })
}

/// Those of several data sets, one after another.
pub(super) fn joined(parts: &[DataHashes]) -> DataHashes {
    let of = |seed: u64, hash: fn(&DataHashes) -> u64| {
        let mut joined = XxHash64::with_seed(seed);
        parts.iter().for_each(|part| joined.write_u64(hash(part)));
        joined.finish()
    };
    let seed = parts.len() as u64;
    DataHashes {
        identity: of(VERSION + (seed << 8), |part| part.identity),
        blocks: of(VERSION + (seed << 8), |part| part.blocks),
        legacy: of(seed, |part| part.legacy),
    }
}

pub(super) fn joined_listing(listings: &[u64]) -> u64 {
    let mut joined = XxHash64::with_seed(listings.len() as u64);
    listings.iter().for_each(|listing| joined.write_u64(*listing));
    joined.finish()
}

/// What the data set is, without where it lies and how it was cut.
pub(super) async fn identity(
    layout: Layout,
    copied_from: Option<&CopiedFrom>,
    objects: &Objects,
    content: &Content,
    storage: &Storage,
) -> Result<u64> {
    let mut hash = XxHash64::with_seed(VERSION);
    text(&mut hash, layout.name());
    if let Some(from) = copied_from {
        text(&mut hash, &from.detail);
    }
    let objects = copied_from.map_or(objects, |from| &from.objects);
    hash.write_u64(objects.len() as u64);
    for i in 0..objects.len() {
        text(&mut hash, &name_below(objects.base(), &objects.get(i).uri));
        hash.write_u64(objects.size(i));
    }
    match content {
        Content::Located(samples) => {
            samples.hash_places(&mut hash);
            samples.hash_values(&mut hash, DURATION)?; // a clip's header tells it, or a table
        }
        Content::Units { units, .. } => {
            for unit in units.all(storage).await? {
                hash.write_u64(unit_digest(layout, &unit)?);
            }
        }
        Content::Union(_) => {} // made of identities: `joined`
    }
    Ok(hash.finish())
}

/// How the samples were cut.
pub(super) fn blocks(blocks: &BlockTable, block_bytes: u64) -> Result<u64> {
    let mut hash = XxHash64::with_seed(VERSION);
    hash.write_u64(block_bytes);
    write_blocks(&mut hash, blocks)?;
    Ok(hash.finish())
}

/// As releases before 0.2 computed it.
fn legacy(draft: &Draft, layout: Layout, block_bytes: u64) -> Result<u64> {
    let mut hash = XxHash64::with_seed(LEGACY_VERSION);
    hash.write(layout.name().as_bytes());
    hash.write_u64(block_bytes);
    if let Some(from) = &draft.copied_from {
        text(&mut hash, &from.detail);
    }
    let objects = draft.copied_from.as_ref().map_or(&draft.objects, |from| &from.objects);
    for i in 0..objects.len() {
        let object = objects.get(i);
        text(&mut hash, objects.name(i));
        hash.write_u64(object.size);
        text(&mut hash, object.etag.as_deref().filter(|version| is_etag(version)).unwrap_or(""));
    }
    write_blocks(&mut hash, &draft.blocks)?;
    Ok(hash.finish())
}

fn write_blocks(hash: &mut XxHash64, blocks: &BlockTable) -> Result<()> {
    hash.write_u64(blocks.len() as u64);
    for column in blocks.to_batch()?.columns() {
        for buffer in column.to_data().buffers() {
            hash.write(buffer.as_slice());
        }
    }
    Ok(())
}

fn text(hash: &mut XxHash64, text: &str) {
    hash.write(text.as_bytes());
    hash.write_u8(0xff); // no UTF-8 text holds it
}
