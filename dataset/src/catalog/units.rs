//! Descriptions of the units in which columnar files are read: a Parquet row group's footer, an IPC message.
//!
//! A unit's description has a few hundred bytes and is needed only when one of its blocks is fetched. A million of them would
//! take most of a gigabyte. So they stay in one stored object and are read back by range, one at a time, and those that were read
//! lately are held; the index in memory takes 12 bytes a unit. A catalog that was just built and is not stored holds them in memory.

use super::recent::Recent;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use bytes::Bytes;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Limit on what is held of stored descriptions. One that is not held is read for every part of its blocks. That of a Parquet page
/// takes some 14 bytes, so this is enough for 2 million pages.
const HELD_BYTES: u64 = 32 << 20;

/// What holding a description takes in addition to its bytes.
const ENTRY_BYTES: u64 = 160;

/// Which parts of its blocks can be read without the rest of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Parts {
    /// None: samples are compressed together.
    #[default]
    None,
    /// Any samples.
    Samples,
    /// Pages of this number of samples: page i has the samples from its multiple by i on, but for a few units of which the pages
    /// begin elsewhere.
    Pages(NonZeroU32),
}

/// The descriptions of all units.
#[derive(Clone)]
pub(crate) struct UnitStore {
    ends: Arc<[u64]>, // running end of each unit in the store
    checks: Arc<[u32]>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Memory(Bytes),
    Stored(ObjectRef, Recent<Bytes>),
}

impl UnitStore {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn ends(&self) -> &[u64] {
        &self.ends
    }

    pub(crate) fn checks(&self) -> &[u32] {
        &self.checks
    }

    /// Returns all descriptions, concatenated, while they are still in memory.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.source {
            Source::Memory(bytes) => Some(bytes),
            Source::Stored(..) => None,
        }
    }

    pub(crate) fn stored(ends: Arc<[u64]>, checks: Arc<[u32]>, object: ObjectRef) -> Result<Self, String> {
        if ends.len() != checks.len() || !ends.is_sorted() {
            return Err("the index of units is inconsistent".into());
        }
        if ends.last().copied().unwrap_or(0) != object.size {
            return Err(format!("units.bin has {} bytes, which does not match its index", object.size));
        }
        Ok(Self { ends, checks, source: Source::Stored(object, Recent::new(HELD_BYTES)) })
    }

    /// Holds all descriptions in memory; rejects them if one is damaged.
    pub(crate) fn held(self, bytes: Bytes) -> Result<Self, String> {
        let held = Self { source: Source::Memory(bytes), ..self };
        match (0..held.len())
            .find(|&unit| held.slice(unit).is_none_or(|b| crc32fast::hash(&b) != held.checks[unit]))
        {
            Some(unit) => Err(format!("unit {unit} of units.bin is damaged")),
            None => Ok(held),
        }
    }

    /// Returns a unit's description, if it is in memory.
    fn slice(&self, unit: usize) -> Option<Bytes> {
        let range = self.range(unit);
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        self.bytes().filter(|all| end <= all.len()).map(|all| all.slice(start..end))
    }

    fn range(&self, unit: usize) -> std::ops::Range<u64> {
        let start = if unit == 0 { 0 } else { self.ends[unit - 1] };
        start..self.ends[unit]
    }

    /// Reads all descriptions, in order, with one request, and checks them.
    pub(crate) async fn all(&self, storage: &Storage) -> Result<Vec<Bytes>> {
        let held = match &self.source {
            Source::Memory(_) => self.clone(),
            Source::Stored(object, _) => {
                let bytes = storage.read(object, 0..object.size).await?;
                self.clone().held(bytes).map_err(|why| damaged(&object.uri, &why))?
            }
        };
        Ok((0..held.len()).map(|unit| held.slice(unit).unwrap_or_default()).collect())
    }

    /// Reads a unit's description and checks it.
    pub(crate) async fn read(&self, number: u32, storage: &Storage) -> Result<Bytes> {
        let unit = number as usize;
        assert!(unit < self.len(), "unit {unit} of {}", self.len());
        let checked = |bytes: Bytes, place: &str| match crc32fast::hash(&bytes) == self.checks[unit] {
            true => Ok(bytes),
            false => Err(damaged(place, &format!("unit {unit}"))),
        };
        match &self.source {
            Source::Memory(_) => checked(self.slice(unit).unwrap_or_default(), "memory"),
            Source::Stored(object, recent) => {
                let read = async { checked(storage.read(object, self.range(unit)).await?, &object.uri) };
                recent.get(number, read, |bytes| bytes.len() as u64 + ENTRY_BYTES).await
            }
        }
    }
}

fn damaged(place: &str, what: &str) -> Error {
    let message =
        format!("the stored catalog is damaged ({place}, {what}); open the data set with rebuild = true");
    Error::new(ErrorKind::Gone, message)
}

/// Collects descriptions in catalog order.
#[derive(Default)]
pub(crate) struct UnitStoreBuilder {
    ends: Vec<u64>,
    checks: Vec<u32>,
    bytes: Vec<u8>,
}

impl UnitStoreBuilder {
    /// Adds one unit and returns its number.
    pub(crate) fn push(&mut self, description: &[u8]) -> Result<u32> {
        let unit = u32::try_from(self.ends.len())
            .map_err(|_| Error::config("more than 2^32 row groups or record batches in one data set"))?;
        self.bytes.extend_from_slice(description);
        self.ends.push(self.bytes.len() as u64);
        self.checks.push(crc32fast::hash(description));
        Ok(unit)
    }

    pub(crate) fn finish(self) -> UnitStore {
        UnitStore {
            ends: self.ends.into(),
            checks: self.checks.into(),
            source: Source::Memory(Bytes::from(self.bytes)),
        }
    }
}
