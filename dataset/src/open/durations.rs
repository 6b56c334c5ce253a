//! Reads durations from the headers of audio clips, for data sets that do not state them.
//!
//! ```text
//! folder, tars, manifests:  16 KiB at each clip's start ─▶ probe ─▶ column `duration` of the sample table
//! Parquet, Arrow IPC:       the payload column, whole   ─▶ probe ─▶ column `duration` next to the files' columns
//! ```
//! A data set may state only some of its durations: `clip_durations.tsv` of one language, or of a part of the samples. If its
//! samples are located and its column `duration` is float64, only the missing durations are read.
//!
//! An [`AudioProbe`], written by the owner of the codecs, interprets the headers; without one nothing is read. If it returns no
//! duration, it gets the first 256 KiB and then 8 MiB: for long tags in front, and for small containers that have their
//! length at the end. After that the duration is null, and a note counts these samples.
//!
//! Cost, once, when the catalog is built:
//! - Files take one request each, 64 at a time: 1 million at 20 ms take 5 minutes.
//! - Near members of tars are read with one request.
//! - Columnar files hold audio in compressed pages, which cannot be read in part, so their whole audio column is read: 80 GB of
//!   English at 1 Gbit/s take 11 minutes. Every machine that keeps its own catalogs does so. Progress and the log state it,
//!   [`Durations::Never`] avoids it, and all machines can read a catalog stored next to the data
//!   ([`crate::CatalogStore::Beside`]).
//! - Ogg has its length only at its end, so Ogg files are read whole, up to 8 MiB each.
//!
//! The catalog stores the probe's version; if an older version read the durations, the next open reads them again. Memory:
//! up to 192 MiB while reading, then 8 bytes a sample.

use super::options::OpenOptions;
use super::probe::{AudioProbe, Probe};
use crate::catalog::columns::bug;
use crate::catalog::{
    Added, Catalog, Content, DURATION, Places, Probed, SampleChunk, SampleTable, UnsupportedAudio,
    UnsupportedTally,
};
use crate::format::Cataloguing;
use crate::{Block, BlockId, BlockReader, Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::array::{Array, AsArray, Float64Array, Float64Builder};
use arrow::datatypes::{DataType, Field, Float64Type, Schema};
use arrow::record_batch::RecordBatch;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Whether the durations of a stored catalog are those that the probe of `options` would read.
pub(crate) fn are_current(catalog: &Catalog, options: &OpenOptions) -> bool {
    let Some(probe) = options.audio_probe.as_ref().filter(|_| options.probes()) else { return true };
    match catalog.probed {
        Probed::Nothing => true,
        // A newer release may share the catalog: two releases must not keep replacing each other's.
        Probed::By(version) => version >= probe.version,
        Probed::Unknown => match &catalog.content {
            Content::Located(_) => catalog.audio.is_empty() || !has_seconds(catalog),
            // All of the audio would be read again, for AAC of one encoder that such shards hardly ever have.
            Content::Units { .. } => true,
            Content::Union(_) | Content::Derived(_) => true,
        },
    }
}

fn has_seconds(catalog: &Catalog) -> bool {
    catalog.schema.field_with_name(DURATION).is_ok_and(|field| field.data_type() == &DataType::Float64)
}

/// Read first, at the start of an audio clip: an MP3's first frames with their tags, a FLAC's or WAV's header.
pub(super) const HEAD_BYTES: u64 = 16 << 10;
/// Read next, in turn, while the duration is unknown. The first covers a cover image in front, or all of an Ogg of half a
/// minute; the second several images, or all of an Ogg of a quarter of an hour.
const LONGER_HEADS_BYTES: [u64; 2] = [256 << 10, 8 << 20];
/// Maximum number of longer reads in memory at once: 8 × 8 MiB.
const LONG_READS: usize = 8;
/// Maximum number of runs of heads in memory at once; storage limits its own requests further.
pub(super) const HEAD_READS: usize = 64;
/// Maximum number of heads in one tar that are requested together, and the maximum distance between them, since near ranges
/// are read with the bytes in between: 64 audio clips of 32 KiB. All runs in memory hold at most 64 × 2 MiB.
const RUN_CLIPS: usize = 64;
const RUN_BYTES: u64 = 2 << 20;
/// The progress stage if more than a few KiB of each audio clip are read.
const READING_ALL: &str = "reading all audio for its durations";
/// Maximum number of blocks of columnar files in memory at once: 4 × 4 MiB.
pub(super) const BLOCK_READS: usize = 4;

/// Returns the catalog with a column `duration`, if audio lacks durations and headers may be read. If all headers were read for it,
/// also returns the codecs that they name and that are not decoded.
pub(crate) async fn with_durations(
    mut catalog: Catalog,
    options: &OpenOptions,
    with: &Cataloguing<'_>,
) -> Result<(Catalog, Option<Vec<UnsupportedAudio>>)> {
    let Some(probe) = options.audio_probe.as_ref().filter(|_| options.probes() && !catalog.audio.is_empty())
    else {
        return Ok((catalog, None));
    };
    let own = catalog.schema.index_of(DURATION).ok();
    let known = match (own, &catalog.content) {
        (None, _) => None,
        (Some(column), Content::Located(table)) => match incomplete(table, column)? {
            Some(known) => Some(known),
            None => return Ok((catalog, None)),
        },
        (Some(_), Content::Units { .. } | Content::Union(_) | Content::Derived(_)) => {
            return Ok((catalog, None));
        }
    };
    let (seconds, unsupported) = match &catalog.content {
        Content::Located(table) => of_located(&catalog, table, known.as_ref(), probe, with).await?,
        Content::Units { .. } => {
            let columns = catalog.audio_indices()?;
            let whole = Arc::new(catalog);
            let found = of_units(&whole, columns, probe, with).await?;
            catalog = Catalog::only_owner(whole)?;
            found
        }
        Content::Union(_) | Content::Derived(_) => return Ok((catalog, None)), // what they are made of has theirs
    };
    catalog.probed = Probed::By(probe.version);
    // With several columns of audio, a run may decode another audio clip of the sample than the one that was read.
    let codecs = match (&known, &catalog.audio[..]) {
        (None, [column]) => Some(unsupported.finish(column, None)),
        _ => None,
    };
    if seconds.null_count() > 0 {
        catalog.notes.push(format!(
            "{} of {} samples have a null duration: they have no audio clip, or its header does not state the duration",
            seconds.null_count(),
            seconds.len()
        ));
    }
    match (own, &mut catalog.content) {
        (Some(column), Content::Located(table)) => *table = replaced(table, column, &seconds)?,
        _ => add(&mut catalog, seconds)?,
    }
    Ok((catalog, codecs))
}

/// Returns the data set's own durations, one a sample, if they are seconds and some are null. Numbers other than float64 stay
/// unchanged.
fn incomplete(table: &SampleTable, column: usize) -> Result<Option<Float64Array>> {
    let own = |samples: &SampleChunk| {
        let column = samples.metadata.columns().get(column)?;
        (column.data_type() == &DataType::Float64).then(|| column.clone())
    };
    let Some(runs) = table.chunks().map(|(_, samples)| own(samples)).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    if runs.iter().all(|run| run.null_count() == 0) {
        return Ok(None);
    }
    let runs: Vec<&dyn Array> = runs.iter().map(AsRef::as_ref).collect();
    let whole = arrow::compute::concat(&runs).map_err(bug)?;
    Ok(Some(whole.as_primitive::<Float64Type>().clone()))
}

/// Replaces the values of a column.
fn replaced(table: &SampleTable, column: usize, values: &Float64Array) -> Result<SampleTable> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for (_, samples) in table.chunks() {
        let rows = samples.metadata.num_rows();
        let mut columns = samples.metadata.columns().to_vec();
        columns[column] = Arc::new(values.slice(start, rows));
        start += rows;
        let metadata = RecordBatch::try_new(samples.metadata.schema(), columns).map_err(bug)?;
        chunks.push(SampleChunk { metadata, places: samples.places.clone() });
    }
    let replaced = SampleTable::new(chunks, table.key())?;
    replaced.with_lists(table.lists().to_vec()).map_err(|why| Error::new(ErrorKind::Bug, why))
}

/// Adds the column after the other metadata columns.
fn add(catalog: &mut Catalog, seconds: Float64Array) -> Result<()> {
    let at = catalog.schema.fields().len() - catalog.payload.len();
    let schema = Schema::new(vec![Field::new(DURATION, DataType::Float64, true)]);
    let rows = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(seconds.clone())]);
    let column = Added::new(rows.map_err(bug)?, at);
    catalog.schema = column.within(&catalog.schema);
    match &mut catalog.content {
        Content::Located(table) => *table = table.with_column(DURATION, &seconds)?,
        Content::Units { added, .. } => *added = Some(column),
        Content::Union(_) | Content::Derived(_) => {
            return Err(Error::new(ErrorKind::Bug, "only a stored catalog gets durations"));
        }
    }
    Ok(())
}

/// Consecutive audio clips of one object.
struct Run {
    object: usize,
    /// The run of the sample table, and the rows in it.
    chunk: usize,
    rows: Range<usize>,
    /// The span of bytes that covers all heads to be read; `None` if no head is read.
    span: Option<Range<u64>>,
}

/// Returns the byte range of a sample's audio clip; `None` if it has none.
fn clip(places: &Places, payloads: &[usize], row: usize) -> Option<Range<u64>> {
    payloads.iter().find_map(|&payload| places.range(payload, row))
}

/// Cuts the samples where the object changes, and where heads would be too far apart for one read. The function `clip` returns
/// the range to be read for a row of a run of samples.
fn runs(
    chunks: &[&SampleChunk],
    payloads: &[usize],
    clip: impl Fn(usize, usize) -> Option<Range<u64>>,
) -> Vec<Run> {
    // Several columns of audio are members of one tar, or each sample has all of them.
    let first = payloads.first().copied().unwrap_or_default();
    let mut runs: Vec<Run> = Vec::new();
    for (chunk, samples) in chunks.iter().enumerate() {
        for row in 0..samples.metadata.num_rows() {
            let object = samples.places.object_of(first, row);
            let head = clip(chunk, row).map(|clip| clip.start..clip.end.min(clip.start + HEAD_BYTES));
            if let Some(run) = runs.last_mut().filter(|run| row > 0 && run.object == object) {
                let span = match (&run.span, &head) {
                    (Some(span), Some(head)) => Some(span.start.min(head.start)..span.end.max(head.end)),
                    (span, head) => span.clone().or_else(|| head.clone()),
                };
                let is_near = span.as_ref().is_none_or(|span| span.end - span.start <= RUN_BYTES);
                if is_near && run.rows.len() < RUN_CLIPS {
                    (run.span, run.rows.end) = (span, row + 1);
                    continue;
                }
            }
            runs.push(Run { object, chunk, rows: row..row + 1, span: head });
        }
    }
    runs
}

async fn of_located(
    catalog: &Catalog,
    table: &SampleTable,
    known: Option<&Float64Array>,
    probe: &AudioProbe,
    with: &Cataloguing<'_>,
) -> Result<(Float64Array, UnsupportedTally)> {
    let payloads: Vec<usize> =
        (0..catalog.payload.len()).filter(|&p| catalog.audio.contains(&catalog.payload[p])).collect();
    let long_reads = Semaphore::new(LONG_READS);
    let mut chunks: Vec<&SampleChunk> = Vec::new();
    let mut firsts: Vec<usize> = Vec::new();
    let mut samples = 0;
    for (_, chunk) in table.chunks() {
        chunks.push(chunk);
        firsts.push(samples);
        samples += chunk.metadata.num_rows();
    }
    let is_known = |sample: usize| known.is_some_and(|known| known.is_valid(sample));
    let unknown = |chunk: usize, row: usize| {
        if is_known(firsts[chunk] + row) { None } else { clip(&chunks[chunk].places, &payloads, row) }
    };
    let mut found = stream::iter(runs(&chunks, &payloads, unknown))
        .map(|run| {
            let clips = run.rows.map(|row| unknown(run.chunk, row)).collect();
            probe_clips(catalog.objects.get(run.object), clips, probe, with.storage, &long_reads)
        })
        .buffered(HEAD_READS);
    let (mut seconds, mut unsupported) = (Float64Builder::new(), UnsupportedTally::default());
    let mut done = 0;
    while let Some(run) = found.try_next().await? {
        for header in run {
            let own = known.filter(|known| known.is_valid(done)).map(|known| known.value(done));
            seconds.append_option(own.or(header.seconds));
            unsupported.add(done as u64, header.unsupported);
            done += 1;
        }
        with.options.report("reading the headers of audio clips", done as u64, Some(table.len()));
    }
    drop(found);
    Ok((seconds.finish(), unsupported))
}

/// Reads the headers of audio clips of one object; nothing is known of one that is missing.
async fn probe_clips(
    object: ObjectRef,
    clips: Vec<Option<Range<u64>>>,
    probe: &AudioProbe,
    storage: &Storage,
    long_reads: &Semaphore,
) -> Result<Vec<Probe>> {
    let head = |clip: &Range<u64>, most: u64| clip.start..clip.end.min(clip.start + most);
    let mut found = vec![Probe::default(); clips.len()];
    let there: Vec<(usize, &Range<u64>)> = clips
        .iter()
        .enumerate()
        .filter_map(|(i, clip)| Some((i, clip.as_ref().filter(|clip| clip.start < clip.end)?)))
        .collect();
    if there.is_empty() {
        return Ok(found);
    }
    let ranges: Vec<Range<u64>> = there.iter().map(|(_, clip)| head(clip, HEAD_BYTES)).collect();
    let heads = storage.read_ranges(&object, &ranges).await?;
    for ((i, clip), head) in there.iter().zip(&heads) {
        found[*i] = probe.read(head, clip.end - clip.start);
    }
    drop(heads);
    let mut read = HEAD_BYTES;
    for most in LONGER_HEADS_BYTES {
        for (i, clip) in &there {
            let bytes = clip.end - clip.start;
            if found[*i].is_enough() || bytes <= read {
                continue;
            }
            let _permit = long_reads.acquire().await.map_err(|_| {
                Error::new(ErrorKind::Bug, "the limit of long reads was closed while it was in use")
            })?;
            let head = storage.read(&object, head(clip, most)).await?;
            found[*i] = probe.read(&head, bytes);
        }
        read = most;
    }
    Ok(found)
}

async fn of_units(
    catalog: &Arc<Catalog>,
    columns: Vec<usize>,
    probe: &AudioProbe,
    with: &Cataloguing<'_>,
) -> Result<(Float64Array, UnsupportedTally)> {
    let bytes: u64 = (0..block_count(catalog)).map(|block| catalog.block(BlockId(block)).bytes).sum();
    tracing::info!(
        uri = crate::storage::shown(catalog.uri()),
        "the data set states no durations: reading all {:.1} GB of audio once for them; \
         Durations::Never avoids that",
        bytes as f64 / 1e9
    );
    with.options.report(READING_ALL, 0, Some(catalog.samples()));
    let mut read = audio_blocks(catalog, columns, 1, with);
    let (mut seconds, mut unsupported) = (Float64Builder::new(), UnsupportedTally::default());
    let mut done = 0;
    while let Some(Block { rows, .. }) = read.try_next().await? {
        for row in 0..rows.num_rows() {
            let payloads = rows.columns().iter().map(|c| c.as_binary_view());
            let clip = payloads.filter(|p| p.is_valid(row)).map(|p| p.value(row)).next();
            let header = clip.map(|clip| probe.read(clip, clip.len() as u64)).unwrap_or_default();
            seconds.append_option(header.seconds);
            unsupported.add(done, header.unsupported);
            done += 1;
        }
        with.options.report(READING_ALL, done, Some(catalog.samples()));
    }
    drop(read);
    Ok((seconds.finish(), unsupported))
}

/// Reads every `step`-th block of these columns of audio.
pub(super) fn audio_blocks<'a>(
    catalog: &Arc<Catalog>,
    columns: Vec<usize>,
    step: usize,
    with: &Cataloguing<'a>,
) -> impl Stream<Item = Result<Block>> + use<'a> {
    let reader = BlockReader::new(catalog.clone(), with.storage.clone(), None, columns);
    let fetch = move |block| {
        let reader = reader.clone();
        async move { reader.fetch(BlockId(block), u64::MAX).await }
    };
    stream::iter((0..block_count(catalog)).step_by(step)).map(fetch).buffered(BLOCK_READS)
}

#[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
pub(super) fn block_count(catalog: &Catalog) -> u32 {
    catalog.blocks() as u32
}
