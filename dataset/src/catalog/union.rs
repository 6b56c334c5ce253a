//! The parts of a mix or a concatenation, whose catalogs are joined end to end.
//!
//! ```text
//! part 0: objects, blocks, samples │ part 1: …        ids continue; each part is read with its own storage and cache
//! ```

use super::Catalog;
use crate::{BlockId, DiskCache, SampleId, Storage};
use arrow::buffer::BooleanBuffer;
use std::sync::Arc;

/// The column that names the part a sample comes from.
pub(crate) const DATASET: &str = "dataset";

/// An input of a union: one stored data set, never another union.
pub(crate) struct UnionInput {
    /// The part's name in the column [`DATASET`] and in errors.
    pub(crate) name: String,
    pub(crate) stored: StoredPart,
    /// The chosen columns of its catalog.
    pub(crate) columns: Arc<[usize]>,
}

/// The parts of a union catalog.
pub(crate) struct Union {
    parts: Vec<Part>,
}

/// A stored data set as a part: its catalog, and the means to read its blocks.
#[derive(Clone)]
pub(crate) struct StoredPart {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) storage: Storage,
    pub(crate) cache: Option<DiskCache>,
    /// A hash of the content and of the place that it is read from.
    pub(crate) place_hash: u64,
}

/// One part of a union, and the objects, blocks, units and samples before it.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) stored: StoredPart,
    pub(crate) first_object: u32,
    pub(crate) first_block: u32,
    pub(crate) first_unit: u32,
    pub(crate) first_sample: u64,
    /// For each column of the union, the column of the part's catalog.
    pub(crate) columns: Vec<Option<usize>>,
}

impl Union {
    /// Makes a union of `parts`, at least one, in the order of their samples.
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        Self { parts }
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the part that holds a sample.
    pub(crate) fn part_of(&self, sample: u64) -> usize {
        self.parts.partition_point(|part| part.first_sample <= sample) - 1
    }

    /// Returns the parts as inputs of another union that has these `columns` of this one.
    pub(crate) fn inputs(&self, columns: &[usize]) -> impl Iterator<Item = UnionInput> {
        self.parts.iter().map(|part| UnionInput {
            name: part.name.clone(),
            stored: part.stored.clone(),
            columns: columns.iter().filter_map(|&column| part.columns[column]).collect(),
        })
    }

    /// Returns the parts' catalogs, each with the number of blocks before it.
    pub(crate) fn block_offsets(&self) -> impl Iterator<Item = (&Arc<Catalog>, u32)> {
        self.parts.iter().map(|part| (&part.stored.catalog, part.first_block))
    }

    /// Whether some of the samples that `kept` keeps (`None`: all) certainly have no value in `column`.
    pub(crate) fn proves_nulls(&self, column: &str, kept: Option<&BooleanBuffer>) -> bool {
        self.parts.iter().any(|part| {
            let catalog = &part.stored.catalog;
            let kept = kept.map(|kept| kept.slice(index(part.first_sample), index(catalog.samples())));
            if kept.as_ref().is_some_and(|kept| kept.count_set_bits() == 0) || column == DATASET {
                return false;
            }
            let has_column =
                part.columns.iter().flatten().any(|&own| catalog.schema.field(own).name() == column);
            !has_column || catalog.proves_nulls(column, kept.as_ref())
        })
    }

    /// Returns the bytes that a sample holds in memory when it is fetched alone.
    pub(crate) fn sample_memory_bytes(&self, sample: SampleId) -> u64 {
        let part = &self.parts[self.part_of(sample.0)];
        part.stored.catalog.sample_memory_bytes(SampleId(sample.0 - part.first_sample))
    }

    /// Returns an error's name for a sample.
    pub(crate) fn describe_sample(&self, sample: SampleId) -> String {
        let part = &self.parts[self.part_of(sample.0)];
        let local = part.stored.catalog.describe_sample(SampleId(sample.0 - part.first_sample));
        format!("{}: {local}", part.name)
    }

    /// Returns the URI of the object that holds a sample.
    pub(crate) fn sample_uri(&self, sample: SampleId) -> String {
        let part = &self.parts[self.part_of(sample.0)];
        part.stored.catalog.sample_uri(SampleId(sample.0 - part.first_sample))
    }

    /// Returns an error's name for a block that starts with `first_sample`.
    pub(crate) fn describe_block(&self, block: BlockId, first_sample: u64) -> String {
        let part = &self.parts[self.part_of(first_sample)];
        let local = part.stored.catalog.describe_block(BlockId(block.0 - part.first_block));
        format!("{}: {local}", part.name)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the samples' bits are held in memory")]
pub(crate) fn index(n: u64) -> usize {
    n as usize
}
