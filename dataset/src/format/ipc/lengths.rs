//! Reads the decompressed lengths of a batch's buffers while the data set is catalogued.
//!
//! A compressed buffer begins with its length. So a batch is not read whole, but in ranges of 8 bytes, which storage joins
//! if they are close. Joined ranges are at least 1 MiB apart (128 KiB on disk), so a batch costs a request for each of its
//! large buffers, and at most one for each MiB.

use super::check::{self, LENGTH_BYTES};
use crate::{Error, ObjectRef, Result, Storage};
use arrow_ipc::{CompressionType, RecordBatch};
use std::ops::Range;

/// The buffers of a batch, as its message places them.
#[derive(Default)]
pub(super) struct Buffers {
    codec: Option<CompressionType>,
    /// Offset in the body, and bytes.
    places: Vec<(u64, u64)>,
}

impl Buffers {
    pub(super) fn of(batch: &RecordBatch<'_>) -> Result<Self, String> {
        let places = batch.buffers().unwrap_or_default().iter();
        let places =
            places.map(|buffer| Ok((check::length(buffer.offset())?, check::length(buffer.length())?)));
        let codec = batch.compression().map(|compression| compression.codec());
        Ok(Self { codec, places: places.collect::<Result<_, String>>()? })
    }

    /// Returns the bytes of all buffers once decompressed; `body` is their range in the object.
    ///
    /// # Errors
    /// Storage's, and `BadConfig` for a length that its buffer cannot have.
    pub(super) async fn held_bytes(
        &self,
        body: Range<u64>,
        object: &ObjectRef,
        storage: &Storage,
    ) -> Result<u64> {
        let damaged = |what: String| Error::damage(format!("{}: {what}; the file is damaged", object.uri));
        if self.codec.is_none() {
            return Ok(self.places.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add));
        }
        let prefixed: Vec<(u64, u64)> =
            self.places.iter().copied().filter(|(_, bytes)| *bytes >= LENGTH_BYTES).collect();
        let spans: Option<Vec<Range<u64>>> = prefixed
            .iter()
            .map(|(offset, _)| {
                let start = body.start.checked_add(*offset)?;
                Some(start..start.checked_add(LENGTH_BYTES).filter(|end| *end <= body.end)?)
            })
            .collect();
        let spans = spans.ok_or_else(|| damaged("a buffer is outside its batch".into()))?;
        let read = storage.read_ranges(object, &spans).await?;
        let lengths = read
            .iter()
            .zip(&prefixed)
            .map(|(prefix, (_, bytes))| check::decompressed(self.codec, prefix, *bytes).map_err(damaged));
        let lengths = lengths.collect::<Result<Vec<u64>>>()?;
        let total = lengths.into_iter().fold(0, u64::saturating_add);
        check::check_total(total).map_err(damaged)?;
        Ok(total)
    }
}
