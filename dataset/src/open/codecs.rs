//! Names the codecs that are not decoded, in the audio columns whose headers were not all read for durations.
//!
//! | data | what is read of each audio column, once, when the catalog is built |
//! |---|---|
//! | folder, tars, manifests | the first 16 KiB of at most [`SAMPLED_CLIPS`] audio clips, evenly spread, a request each: 0.4 s at 20 ms |
//! | Parquet, Arrow IPC | at most [`SAMPLED_BLOCKS`] blocks, evenly spread: 32 MiB |
//!
//! What cannot be read is left out: a run reports it.

use super::durations::{HEAD_BYTES, HEAD_READS, audio_blocks, block_count};
use super::options::OpenOptions;
use super::probe::AudioProbe;
use crate::Result;
use crate::catalog::{Catalog, Content, SampleTable, UnsupportedAudio, UnsupportedTally};
use crate::format::Cataloguing;
use arrow::array::{Array, AsArray};
use futures::{StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;

const SAMPLED_CLIPS: usize = 1000;
const SAMPLED_BLOCKS: u32 = 8;

/// Returns the catalog with the codecs that are not decoded, and a note on each. `known` are those of all audio clips, if all
/// headers were read.
pub(super) async fn with_codecs(
    mut catalog: Catalog,
    known: Option<Vec<UnsupportedAudio>>,
    options: &OpenOptions,
    with: &Cataloguing<'_>,
) -> Result<Catalog> {
    let probe =
        options.audio_probe.as_ref().filter(|probe| probe.names_codecs() && !catalog.audio.is_empty());
    let found = match (known, probe, &catalog.content) {
        (Some(known), ..) => known,
        (None, None, _) => Vec::new(),
        (None, Some(probe), Content::Located(table)) => of_clips(&catalog, table, probe, with).await,
        (None, Some(probe), Content::Units { .. }) => {
            let columns = catalog.audio_indices()?;
            let whole = Arc::new(catalog);
            let found = of_blocks(&whole, columns, probe, with).await;
            catalog = Catalog::only_owner(whole)?;
            found
        }
        (None, Some(_), Content::Union(_) | Content::Derived(_)) => Vec::new(), // what they are made of has theirs
    };
    let notes: Vec<String> = found.iter().map(|codec| codec.describe(&catalog)).collect();
    catalog.notes.extend(notes);
    catalog.unsupported = found;
    Ok(catalog)
}

async fn of_clips(
    catalog: &Catalog,
    table: &SampleTable,
    probe: &AudioProbe,
    with: &Cataloguing<'_>,
) -> Vec<UnsupportedAudio> {
    let mut found = Vec::new();
    for (payload, column) in catalog.payload.iter().enumerate() {
        if !catalog.audio.contains(column) {
            continue;
        }
        let clips = || clips_of(table, payload);
        let all = clips().count();
        let step = all.div_ceil(SAMPLED_CLIPS).max(1);
        let mut read = stream::iter(clips().step_by(step))
            .map(|(sample, object, clip)| async move {
                let head = clip.start..clip.end.min(clip.start + HEAD_BYTES);
                let head = with.storage.read(&catalog.objects.get(object), head).await;
                head.map(|head| (sample, probe.unsupported_in(&head)))
            })
            .buffered(HEAD_READS);
        let (mut tally, mut sampled) = (UnsupportedTally::default(), 0);
        while let Some(head) = read.next().await {
            match head {
                Ok((sample, codec)) => {
                    sampled += 1;
                    tally.add(sample, codec);
                }
                Err(error) => tracing::debug!(%error, "the header of an audio clip could not be read"),
            }
        }
        found.extend(tally.finish(column, (sampled < all as u64).then_some(sampled)));
    }
    found
}

/// Returns sample, object and bytes of each audio clip of a payload column.
fn clips_of(table: &SampleTable, payload: usize) -> impl Iterator<Item = (u64, usize, Range<u64>)> {
    table.chunks().flat_map(move |(first, samples)| {
        (0..samples.metadata.num_rows()).filter_map(move |row| {
            let clip = samples.places.range(payload, row).filter(|clip| clip.start < clip.end)?;
            Some((first + row as u64, samples.places.object_of(payload, row), clip))
        })
    })
}

async fn of_blocks(
    catalog: &Arc<Catalog>,
    columns: Vec<usize>,
    probe: &AudioProbe,
    with: &Cataloguing<'_>,
) -> Vec<UnsupportedAudio> {
    let blocks = block_count(catalog);
    let step = blocks.div_ceil(SAMPLED_BLOCKS).max(1) as usize;
    let mut read = audio_blocks(catalog, columns, step, with);
    let mut tallies: Vec<(UnsupportedTally, u64)> =
        catalog.audio.iter().map(|_| (UnsupportedTally::default(), 0)).collect();
    let mut done = 0;
    while let Some(block) = read.next().await {
        let block = match block {
            Ok(block) => block,
            Err(error) => {
                tracing::debug!(%error, "a block of audio clips could not be read");
                continue;
            }
        };
        done += 1;
        for ((tally, sampled), clips) in tallies.iter_mut().zip(block.rows.columns()) {
            let clips = clips.as_binary_view();
            for row in (0..clips.len()).filter(|row| clips.is_valid(*row)) {
                *sampled += 1;
                tally.add(block.sample(row).0, probe.unsupported_in(clips.value(row)));
            }
        }
    }
    let tallies = catalog.audio.iter().zip(tallies);
    let finish = |(column, (tally, sampled)): (&String, (UnsupportedTally, u64))| {
        tally.finish(column, (done < blocks).then_some(sampled))
    };
    tallies.flat_map(finish).collect()
}
