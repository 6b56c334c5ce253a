//! The hashes that identify a data set. They are equal for all its copies, and cursors are compared by them.
//!
//! ```text
//! identity   layout │ names, sizes │ what cataloguing reads anyway: footers of row groups, IPC messages; places of
//!            samples in tars and lists, their keys, labels and texts
//! blocks     how the samples were cut into blocks
//! legacy     what releases before 0.2 stored as one hash: names, sizes, ETags, blocks
//! ```
//! ETags, inodes and times guard reads and are not part of the identity: a copy (`cp -a`, `rsync`, another node's) has
//! others. The same holds for an MD5 as an ETag: a listing never proves that it is one, and a copy on a file system has
//! none.

use crate::catalog::{BlockTable, Content, CopiedFrom, DURATION, Draft, Objects};
use crate::format::{self, name_below};
use crate::storage::is_etag;
use crate::{Layout, Result, Storage};
use arrow::array::Array;
use feedstock_plan::DataHashes;
use std::hash::Hasher;
use twox_hash::XxHash64;

/// Raised when the identity of the same data would change.
const VERSION: u64 = 3;
const LEGACY_VERSION: u64 = 2;

/// Returns the hashes of a data set that was just catalogued.
pub(crate) async fn hashes(
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

/// Returns the hashes of several data sets, one after another.
pub(crate) fn joined(parts: &[DataHashes]) -> DataHashes {
    let seed = parts.len() as u64;
    DataHashes {
        identity: identity_of_parts(&parts.iter().map(|part| part.identity).collect::<Vec<_>>()),
        blocks: sequence(VERSION + (seed << 8), parts.iter().map(|part| part.blocks)),
        legacy: sequence(seed, parts.iter().map(|part| part.legacy)),
    }
}

/// Returns the identity of several data sets, one after another.
pub(crate) fn identity_of_parts(parts: &[u64]) -> u64 {
    sequence(VERSION + ((parts.len() as u64) << 8), parts.iter().copied())
}

/// Hashes the hashes of several data sets, in their order.
pub(crate) fn sequence(seed: u64, hashes: impl Iterator<Item = u64>) -> u64 {
    let mut joined = XxHash64::with_seed(seed);
    hashes.for_each(|hash| joined.write_u64(hash));
    joined.finish()
}

/// Hashes what the data set is, without its location and its cut into blocks.
pub(crate) async fn identity(
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
            samples.hash_values(&mut hash, DURATION)?; // read from a table, or from audio headers
            if layout == Layout::Coco {
                samples.hash_class_names(&mut hash); // of categories, which the values number
            }
        }
        Content::Units { units, .. } => {
            for unit in units.all(storage).await? {
                hash.write_u64(format::of(layout).unit_digest(&unit)?);
            }
        }
        Content::Union(_) | Content::Derived(_) => {} // made of identities: `joined`, or has its base's
    }
    Ok(hash.finish())
}

/// Hashes how the samples were cut into blocks.
pub(crate) fn blocks(blocks: &BlockTable, block_bytes: u64) -> Result<u64> {
    let mut hash = XxHash64::with_seed(VERSION);
    hash.write_u64(block_bytes);
    write_blocks(&mut hash, blocks)?;
    Ok(hash.finish())
}

/// Computes the hash of releases before 0.2.
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
