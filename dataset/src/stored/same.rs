//! Finds samples of one catalog in another: of the same data before and after it changed.
//!
//! Two samples are the same if they are stored at the same place in files of the same name and size. In columnar files, the
//! footers or messages must be equal, too. File names are relative to the data set's folder, so a copy elsewhere fits. The
//! row of a table (a TSV, a manifest) that lists a sample may differ.

use crate::catalog::{BlockTable, Catalog, Content, SampleTable, UnitStore};
use crate::format::{self, name_below};
use crate::{Layout, Result, SampleId, Storage};
use std::collections::HashMap;
use std::hash::Hasher;
use twox_hash::XxHash64;

/// Maps samples of an older version of a data set to a newer one: runs of samples that both have in one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SameSamples(Vec<Run>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    old: u64,
    new: u64,
    samples: u64,
}

impl SameSamples {
    /// Returns the map of a data set that did not change.
    pub(crate) fn all(samples: u64) -> Self {
        Self(vec![Run { old: 0, new: 0, samples }])
    }

    /// Returns what `sample` of the older version is in the newer one; `None` if its file was removed or replaced.
    pub fn newer(&self, sample: SampleId) -> Option<SampleId> {
        let after = self.0.partition_point(|run| run.old <= sample.0);
        let run = self.0.get(after.checked_sub(1)?)?;
        let at = sample.0 - run.old;
        (at < run.samples).then(|| SampleId(run.new + at))
    }

    /// Appends the map of a part, before which the older and the newer version have `old` and `new` samples.
    pub(crate) fn push(&mut self, part: Self, (old, new): (u64, u64)) {
        self.0.extend(part.0.into_iter().map(|run| Run { old: run.old + old, new: run.new + new, ..run }));
    }

    fn of_pairs(mut pairs: Vec<(u64, u64)>) -> Self {
        pairs.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for (old, new) in pairs {
            match runs.last_mut() {
                Some(run) if run.old + run.samples == old && run.new + run.samples == new => run.samples += 1,
                _ => runs.push(Run { old, new, samples: 1 }),
            }
        }
        Self(runs)
    }
}

/// Finds the samples of `old` in `new`, two stored catalogs of one layout. Takes 32 bytes a sample while it runs if the
/// catalog stores a place for each sample.
pub(crate) async fn same_samples(old: &Catalog, new: &Catalog, storage: &Storage) -> Result<SameSamples> {
    let files = SameFiles::of(old, new);
    match (&old.content, &new.content) {
        (Content::Located(before), Content::Located(now)) => Ok(located(before, now, &files)),
        (Content::Units { units: before, .. }, Content::Units { units: now, .. }) => {
            let before = shards(old.layout, &old.blocks, before, storage).await?;
            let now = shards(new.layout, &new.blocks, now, storage).await?;
            Ok(columnar(&before, &now, &files))
        }
        _ => Ok(SameSamples::default()), // another layout is other data
    }
}

/// The index in the newer catalog of each object of the older one that is still there.
struct SameFiles(Vec<Option<u32>>);

impl SameFiles {
    fn of(old: &Catalog, new: &Catalog) -> Self {
        let name = |catalog: &Catalog, object: usize| {
            name_below(&format!("{}/", catalog.uri.trim_end_matches('/')), &catalog.objects.get(object).uri)
        };
        let now: HashMap<String, u32> =
            (0u32..).zip(0..new.objects.len()).map(|(id, object)| (name(new, object), id)).collect();
        let is_same = |object: usize, id: &u32| new.objects.size(*id as usize) == old.objects.size(object);
        Self(
            (0..old.objects.len())
                .map(|object| now.get(&name(old, object)).copied().filter(|id| is_same(object, id)))
                .collect(),
        )
    }

    fn get(&self, object: usize) -> Option<u32> {
        self.0.get(object).copied().flatten()
    }
}

/// Pairs samples with equal places; among several at the same place, the first with the first.
fn located(before: &SampleTable, now: &SampleTable, files: &SameFiles) -> SameSamples {
    let mut before = hashes_of_places(before, |object| files.get(object));
    let mut now = hashes_of_places(now, |object| u32::try_from(object).ok());
    before.sort_unstable();
    now.sort_unstable();
    let (mut pairs, mut at) = (Vec::new(), 0);
    for (hash, old) in before {
        at += now[at..].iter().take_while(|(other, _)| *other < hash).count();
        if let Some((_, new)) = now.get(at).filter(|(other, _)| *other == hash) {
            pairs.push((old, *new));
            at += 1;
        }
    }
    SameSamples::of_pairs(pairs)
}

/// Returns a hash of the place of every sample whose object `file` knows, and the sample.
fn hashes_of_places(table: &SampleTable, file: impl Fn(usize) -> Option<u32>) -> Vec<(u64, u64)> {
    let mut hashes = Vec::new();
    for (start, chunk) in table.chunks() {
        for (sample, row) in (start..).zip(0..chunk.metadata.num_rows()) {
            let mut files = chunk.places.objects(row).map(&file);
            let Some(first) = files.next().flatten() else { continue };
            let Some(others) = files.collect::<Option<Vec<u32>>>() else { continue };
            let mut hash = XxHash64::with_seed(first.into());
            chunk.places.hash_ranges(row, &mut hash);
            others.into_iter().for_each(|other| hash.write_u32(other));
            hashes.push((hash.finish(), sample));
        }
    }
    hashes
}

/// What one columnar file holds.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shard {
    first: u64,
    samples: u64,
    digest: u64,
}

/// Returns the shards of a catalog by object.
async fn shards(
    layout: Layout,
    blocks: &BlockTable,
    units: &UnitStore,
    storage: &Storage,
) -> Result<HashMap<u32, Shard>> {
    let units = units.all(storage).await?;
    let mut shards: HashMap<u32, Shard> = HashMap::new();
    let mut before = None;
    for block in blocks.ids() {
        let (row, samples) = (blocks.row(block), blocks.samples_of(block));
        let shard = shards.entry(row.shard).or_insert(Shard { first: samples.start, samples: 0, digest: 0 });
        shard.samples += samples.end - samples.start;
        if before != Some(row.unit) {
            before = Some(row.unit);
            let mut hash = XxHash64::with_seed(shard.digest);
            hash.write_u64(format::of(layout).unit_digest(&units[row.unit as usize])?);
            shard.digest = hash.finish();
        }
    }
    Ok(shards)
}

fn columnar(before: &HashMap<u32, Shard>, now: &HashMap<u32, Shard>, files: &SameFiles) -> SameSamples {
    let mut runs: Vec<Run> = before
        .iter()
        .filter_map(|(object, old)| {
            let new = now.get(&files.get(*object as usize)?)?;
            let is_same = (old.samples, old.digest) == (new.samples, new.digest);
            is_same.then_some(Run { old: old.first, new: new.first, samples: old.samples })
        })
        .collect();
    runs.sort_unstable_by_key(|run| run.old);
    SameSamples(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_answer_for_the_samples_in_them_alone() {
        let same = SameSamples::of_pairs(vec![(4, 9), (5, 10), (7, 2), (1, 0)]);
        assert_eq!(same.0.len(), 3);
        let newer = |sample| same.newer(SampleId(sample)).map(|sample| sample.0);
        let all: Vec<Option<u64>> = (0..9).map(newer).collect();
        assert_eq!(all, [None, Some(0), None, None, Some(9), Some(10), None, Some(2), None]);
    }
}
