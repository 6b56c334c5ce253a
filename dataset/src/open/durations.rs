//! Clips' durations out of their headers, for data sets that do not tell them.
//!
//! ```text
//! folder, tars, manifests:  16 KiB at each clip's start ─▶ probe ─▶ column `duration` of the sample table
//! Parquet, Arrow IPC:       the payload column, whole   ─▶ probe ─▶ column `duration` beside the files
//! ```
//! A data set that tells some of its durations (`clip_durations.tsv` of one language, or of a part of the clips) is asked
//! for the others, where its samples are located and its column `duration` is float64: the others alone are read.
//!
//! What a header says is the business of whoever knows codecs ([`AudioProbe`]); without one nothing is read. A clip of
//! which the probe makes nothing is asked again with 256 KiB and with 8 MiB (long tags in front; containers that tell
//! their length at their end, if they are smaller than that), then its duration is null, and a note counts such clips.
//!
//! Cost, once, when the catalog is built: clips that are files take one request each, 64 at a time (1 million at 20 ms:
//! 5 minutes); clips in tars are read along, near ones in one request. Columnar files keep their clips in compressed
//! pages, which are read whole or not at all: their whole audio column is read (80 GB of English at 1 Gbit/s: 11 minutes),
//! by every machine that keeps catalogs of its own; progress and the log tell so, [`Durations::Never`] declines, and a
//! catalog stored beside the data ([`CatalogStore::Beside`](crate::CatalogStore::Beside)) is read by all. Ogg tells its length at its end alone, so files of it are read whole, up to 8 MiB each.
//! A catalog notes the version of the probe; durations that another version read are read again when it is opened.
//! In memory meanwhile: up to 192 MiB. Kept: 8 bytes a sample.

use super::options::OpenOptions;
use super::probe::AudioProbe;
use crate::catalog::columns::bug;
use crate::catalog::{Added, Catalog, Content, DURATION, Places, Probed, SampleChunk, SampleTable};
use crate::format::Cataloguing;
use crate::{BlockId, BlockReader, Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::array::{Array, AsArray, Float64Array, Float64Builder};
use arrow::datatypes::{DataType, Field, Float64Type, Schema};
use arrow::record_batch::RecordBatch;
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Whether the durations of a stored catalog are those that the probe of `options` reads.
pub(crate) fn are_current(catalog: &Catalog, options: &OpenOptions) -> bool {
    let Some(probe) = options.audio_probe.as_ref().filter(|_| options.probes()) else { return true };
    match catalog.probed {
        Probed::Nothing => true,
        // A newer release may share the catalog: two releases must not replace each other's.
        Probed::By(version) => version >= probe.version,
        Probed::Unknown => match &catalog.content {
            Content::Located(_) => catalog.audio.is_empty() || !has_seconds(catalog),
            // All of the audio would be read again, for AAC of one encoder that such shards hardly have.
            Content::Units { .. } => true,
            Content::Union(_) => true,
        },
    }
}

fn has_seconds(catalog: &Catalog) -> bool {
    catalog.schema.field_with_name(DURATION).is_ok_and(|field| field.data_type() == &DataType::Float64)
}

/// Read at a clip's start: an MP3's first frames with their tags, a FLAC's or WAV's header.
const HEAD_BYTES: u64 = 16 << 10;
/// Read when that told nothing, one after the other: a cover picture in front, or all of an Ogg of half a minute; then
/// several pictures, or all of an Ogg of a quarter of an hour.
const LONGER_HEADS_BYTES: [u64; 2] = [256 << 10, 8 << 20];
/// Of those in hand at once: 8 × 8 MiB.
const LONG_READS: usize = 8;
/// Heads in hand at once; storage bounds its own requests below that.
const HEAD_READS: usize = 64;
/// Heads of clips in one tar that are asked for together, and how far apart they may lie, since near ranges are read
/// with what is between them: 64 clips of 32 KiB. All runs in hand hold 64 × 2 MiB at most.
const RUN_CLIPS: usize = 64;
const RUN_BYTES: u64 = 2 << 20;
/// What progress calls it where it is no matter of a few KiB a clip.
const READING_ALL: &str = "reading all audio, for clips' durations";
/// Blocks of columnar files in hand at once: 4 × 4 MiB.
const BLOCK_READS: usize = 4;

/// The catalog with a column `duration`, where audio has none and headers may be asked.
pub(crate) async fn with_durations(
    mut catalog: Catalog,
    options: &OpenOptions,
    with: &Cataloguing<'_>,
) -> Result<Catalog> {
    catalog.probed = Probed::Nothing;
    let Some(probe) = options.audio_probe.as_ref().filter(|_| options.probes()) else {
        return Ok(catalog);
    };
    if catalog.audio.is_empty() {
        return Ok(catalog);
    }
    let own = catalog.schema.index_of(DURATION).ok();
    let known = match (own, &catalog.content) {
        (None, _) => None,
        (Some(column), Content::Located(table)) => match incomplete(table, column)? {
            Some(known) => Some(known),
            None => return Ok(catalog),
        },
        (Some(_), Content::Units { .. } | Content::Union(_)) => return Ok(catalog),
    };
    let seconds = match &catalog.content {
        Content::Located(table) => of_located(&catalog, table, known.as_ref(), probe, with).await?,
        Content::Units { .. } => {
            let columns = catalog.audio.iter().map(|name| catalog.schema.index_of(name));
            let columns = columns.collect::<Result<Vec<_>, _>>().map_err(bug)?;
            let whole = Arc::new(catalog);
            let seconds = of_units(&whole, columns, probe, with).await?;
            catalog = Arc::try_unwrap(whole)
                .map_err(|_| Error::new(ErrorKind::Bug, "a catalog that was read is still in use"))?;
            seconds
        }
        Content::Union(_) => return Ok(catalog), // its parts have theirs
    };
    catalog.probed = Probed::By(probe.version);
    if seconds.null_count() > 0 {
        catalog.notes.push(format!(
            "{} of {} samples have no clip, or one whose header does not tell its duration: null",
            seconds.null_count(),
            seconds.len()
        ));
    }
    match (own, &mut catalog.content) {
        (Some(column), Content::Located(table)) => *table = replaced(table, column, &seconds)?,
        _ => add(&mut catalog, seconds)?,
    }
    Ok(catalog)
}

/// The data set's own durations, if they are seconds of which some are null; one a sample. Other numbers than float64
/// stay as they are.
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

/// The same samples with other values in a column.
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

/// Adds the column, behind the other metadata.
fn add(catalog: &mut Catalog, seconds: Float64Array) -> Result<()> {
    let at = catalog.schema.fields().len() - catalog.payload.len();
    let schema = Schema::new(vec![Field::new(DURATION, DataType::Float64, true)]);
    let rows = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(seconds.clone())]);
    let column = Added::new(rows.map_err(bug)?, at);
    catalog.schema = column.within(&catalog.schema);
    match &mut catalog.content {
        Content::Located(table) => *table = table.with_column(DURATION, &seconds)?,
        Content::Units { added, .. } => *added = Some(column),
        Content::Union(_) => return Err(Error::new(ErrorKind::Bug, "a mix has its parts' columns")),
    }
    Ok(())
}

/// Consecutive clips of one object.
struct Run {
    object: usize,
    /// Which run of the sample table, and its rows.
    chunk: usize,
    rows: Range<usize>,
    /// The bytes between which the heads lie that are read; `None`: no head is.
    span: Option<Range<u64>>,
}

/// The range of a sample's clip; `None` where it has none.
fn clip(places: &Places, payloads: &[usize], row: usize) -> Option<Range<u64>> {
    payloads.iter().find_map(|&payload| places.range(payload, row))
}

/// Cuts the samples where the object changes, and where heads would lie too far apart for one read. `clip` tells what is
/// read of a row of a run of samples.
fn runs(chunks: &[&SampleChunk], clip: impl Fn(usize, usize) -> Option<Range<u64>>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (chunk, samples) in chunks.iter().enumerate() {
        for row in 0..samples.metadata.num_rows() {
            let object = samples.places.object(row);
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
) -> Result<Float64Array> {
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
    let mut found = stream::iter(runs(&chunks, unknown))
        .map(|run| {
            let clips = run.rows.map(|row| unknown(run.chunk, row)).collect();
            probe_clips(catalog.objects.get(run.object), clips, probe, with.storage, &long_reads)
        })
        .buffered(HEAD_READS);
    let mut seconds = Float64Builder::new();
    let mut done = 0;
    while let Some(run) = found.try_next().await? {
        for told in run {
            let own = known.filter(|known| known.is_valid(done)).map(|known| known.value(done));
            seconds.append_option(own.or(told));
            done += 1;
        }
        with.options.report("reading clips' headers", done as u64, Some(table.len()));
    }
    drop(found);
    Ok(seconds.finish())
}

/// The durations of clips of one object; `None` for a clip that is missing.
async fn probe_clips(
    object: ObjectRef,
    clips: Vec<Option<Range<u64>>>,
    probe: &AudioProbe,
    storage: &Storage,
    long_reads: &Semaphore,
) -> Result<Vec<Option<f64>>> {
    let head = |clip: &Range<u64>, most: u64| clip.start..clip.end.min(clip.start + most);
    let mut seconds = vec![None; clips.len()];
    let there: Vec<(usize, &Range<u64>)> = clips
        .iter()
        .enumerate()
        .filter_map(|(i, clip)| Some((i, clip.as_ref().filter(|clip| clip.start < clip.end)?)))
        .collect();
    if there.is_empty() {
        return Ok(seconds);
    }
    let ranges: Vec<Range<u64>> = there.iter().map(|(_, clip)| head(clip, HEAD_BYTES)).collect();
    let heads = storage.read_ranges(&object, &ranges).await?;
    for ((i, clip), head) in there.iter().zip(&heads) {
        seconds[*i] = probe.seconds(head, clip.end - clip.start);
    }
    drop(heads);
    let mut read = HEAD_BYTES;
    for most in LONGER_HEADS_BYTES {
        for (i, clip) in &there {
            let bytes = clip.end - clip.start;
            if seconds[*i].is_some() || bytes <= read {
                continue;
            }
            let _permit = long_reads.acquire().await.map_err(|_| {
                Error::new(ErrorKind::Bug, "the limit of long reads was closed while it was in use")
            })?;
            let head = storage.read(&object, head(clip, most)).await?;
            seconds[*i] = probe.seconds(&head, bytes);
        }
        read = most;
    }
    Ok(seconds)
}

async fn of_units(
    catalog: &Arc<Catalog>,
    columns: Vec<usize>,
    probe: &AudioProbe,
    with: &Cataloguing<'_>,
) -> Result<Float64Array> {
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
    let blocks = catalog.blocks() as u32;
    let bytes: u64 = (0..blocks).map(|block| catalog.block(BlockId(block)).bytes).sum();
    tracing::info!(
        uri = crate::storage::shown(catalog.uri()),
        "no durations are told: reading all {:.1} GB of audio for those of the clips' headers, once; \
         Durations::Never does without",
        bytes as f64 / 1e9
    );
    with.options.report(READING_ALL, 0, Some(catalog.samples()));
    let reader = BlockReader::new(catalog.clone(), with.storage.clone(), None, columns);
    let mut read = stream::iter(0..blocks)
        .map(|block| {
            let reader = reader.clone();
            async move {
                let rows = reader.fetch(BlockId(block), u64::MAX).await?.rows;
                let of = |row: usize| {
                    let payloads = rows.columns().iter().map(|c| c.as_binary_view());
                    let clip = payloads.filter(|p| p.is_valid(row)).map(|p| p.value(row)).next()?;
                    probe.seconds(clip, clip.len() as u64)
                };
                Ok::<Vec<Option<f64>>, Error>((0..rows.num_rows()).map(of).collect())
            }
        })
        .buffered(BLOCK_READS);
    let mut seconds = Float64Builder::new();
    let mut done = 0;
    while let Some(block) = read.try_next().await? {
        done += block.len() as u64;
        block.into_iter().for_each(|s| seconds.append_option(s));
        with.options.report(READING_ALL, done, Some(catalog.samples()));
    }
    drop(read);
    drop(reader);
    Ok(seconds.finish())
}
