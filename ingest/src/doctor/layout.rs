//! How well the stored layout suits streaming and shuffling.

use super::chunks::Chunk;
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{BlockId, Catalog};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The column whose values show whether the data are sorted.
const LABEL: &str = "label";
/// Objects below this size, in bytes, cost a request for little data: a request's 30 ms move 2.5 MB at 85 MB/s.
const SMALL_OBJECT: u64 = 1 << 20;
/// Fewer small objects than this are not worth rewriting.
const MANY_OBJECTS: usize = 1000;
/// Blocks over this size, in bytes, leave room for too few of them in a budget of 1 GiB.
const LARGE_BLOCK: u64 = 64 << 20;
/// Neighbours with less than this share of the labels of a random draw count as sorted.
const SORTED: f64 = 0.5;
/// Chunks with fewer rows do not show whether a data set is sorted.
const LEAST_ROWS: usize = 8;

/// The stored layout, and advice.
#[derive(Debug, Clone, Serialize)]
pub struct LayoutReport {
    /// The layout's name.
    pub layout: String,
    /// Number of stored objects.
    pub objects: u64,
    /// Mean size of an object, in bytes.
    pub mean_object_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Mean size of a block, in bytes.
    pub mean_block_bytes: u64,
    /// The largest block, in bytes of memory.
    pub largest_block_bytes: u64,
    /// Labels of neighbouring samples; `None` without a column `label`, or where too few samples were read.
    pub labels: Option<LabelMixing>,
    /// What to change, a sentence each; empty where there is nothing.
    pub advice: Vec<String>,
}

/// How many different labels neighbouring samples have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LabelMixing {
    /// Different labels in the samples that were read.
    pub labels: u64,
    /// Mean number of different labels in a run of neighbours.
    pub in_a_run: f64,
    /// The same for runs drawn at random.
    pub at_random: f64,
}

impl LabelMixing {
    /// Returns whether neighbours share labels much more often than random samples do.
    ///
    /// ```
    /// use feedstock_ingest::doctor::LabelMixing;
    ///
    /// let by_class = LabelMixing { labels: 1_000, in_a_run: 1.1, at_random: 62.0 };
    /// let shuffled = LabelMixing { in_a_run: 61.4, ..by_class };
    /// assert!(by_class.is_sorted() && !shuffled.is_sorted());
    /// ```
    pub fn is_sorted(&self) -> bool {
        self.labels > 1 && self.in_a_run < SORTED * self.at_random
    }
}

/// Labels of the samples that were read.
#[derive(Default)]
pub(super) struct Labels {
    counts: BTreeMap<String, u64>,
    /// Runs of neighbours by their length.
    runs: BTreeMap<usize, u64>,
    /// Different labels in a run, added up over the runs.
    distinct: u64,
}

impl Labels {
    pub(super) fn add(&mut self, chunk: &Chunk) {
        let Some(column) = chunk.block.rows.column_by_name(LABEL) else { return };
        let labels = chunk.rows.iter().filter_map(|row| array_value_to_string(column, *row).ok());
        let mut seen = BTreeSet::new();
        let mut rows = 0;
        for label in labels {
            rows += 1;
            *self.counts.entry(label.clone()).or_default() += 1;
            seen.insert(label);
        }
        if rows >= LEAST_ROWS {
            *self.runs.entry(rows).or_default() += 1;
            self.distinct += seen.len() as u64;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (label, count) in other.counts {
            *self.counts.entry(label).or_default() += count;
        }
        for (rows, count) in other.runs {
            *self.runs.entry(rows).or_default() += count;
        }
        self.distinct += other.distinct;
    }

    fn mixing(&self) -> Option<LabelMixing> {
        let runs: u64 = self.runs.values().sum();
        let samples: u64 = self.counts.values().sum();
        if runs < 2 {
            return None;
        }
        // A run of n random samples holds label i with probability 1 − (1 − p_i)ⁿ.
        let expected = |rows: usize| -> f64 {
            let share = |count: &u64| *count as f64 / samples as f64;
            self.counts.values().map(|count| 1.0 - (1.0 - share(count)).powf(rows as f64)).sum()
        };
        let at_random: f64 = self.runs.iter().map(|(rows, count)| expected(*rows) * *count as f64).sum();
        Some(LabelMixing {
            labels: self.counts.len() as u64,
            in_a_run: self.distinct as f64 / runs as f64,
            at_random: at_random / runs as f64,
        })
    }
}

pub(super) fn report(catalog: &Catalog, labels: &Labels) -> LayoutReport {
    let blocks = u32::try_from(catalog.blocks()).unwrap_or(u32::MAX);
    let specs = || (0..blocks).map(|id| catalog.block(BlockId(id)));
    let objects = catalog.objects();
    let mean = |total: u64, count: u64| total / count.max(1);
    let mut report = LayoutReport {
        layout: catalog.layout().name().to_owned(),
        objects: objects.len() as u64,
        mean_object_bytes: mean(objects.total_bytes(), objects.len() as u64),
        blocks: blocks.into(),
        mean_block_bytes: mean(specs().map(|block| block.bytes).sum(), blocks.into()),
        largest_block_bytes: specs().map(|block| block.memory_bytes).max().unwrap_or(0),
        labels: labels.mixing(),
        advice: Vec::new(),
    };
    report.advice = advice(&report);
    report
}

fn advice(report: &LayoutReport) -> Vec<String> {
    let mut advice = Vec::new();
    if report.objects >= MANY_OBJECTS as u64 && report.mean_object_bytes < SMALL_OBJECT {
        advice.push(format!(
            "{} objects of {} kB on average: in object storage each costs a request. `feedstock shard` rewrites them \
             into larger ones.",
            report.objects,
            report.mean_object_bytes / 1000
        ));
    }
    if report.largest_block_bytes > LARGE_BLOCK {
        advice.push(format!(
            "The largest block has {} MB: one sample of it needs all of it in memory. Write smaller row groups, or \
             rewrite the data with `feedstock shard`.",
            report.largest_block_bytes / 1_000_000
        ));
    }
    if let Some(labels) = report.labels.filter(LabelMixing::is_sorted) {
        advice.push(format!(
            "The data are sorted by label: neighbouring samples have {:.1} different labels, a random draw {:.1}. Raise \
             the shuffle window, use a full shuffle, or set smaller blocks (`block_bytes`).",
            labels.in_a_run, labels.at_random
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(runs: &[&[&str]]) -> Option<LabelMixing> {
        let mut labels = Labels::default();
        for run in runs {
            *labels.runs.entry(run.len()).or_default() += 1;
            labels.distinct += run.iter().collect::<BTreeSet<_>>().len() as u64;
            for label in *run {
                *labels.counts.entry((*label).to_owned()).or_default() += 1;
            }
        }
        labels.mixing()
    }

    #[test]
    fn neighbours_of_one_label_are_sorted_and_mixed_ones_are_not() {
        let sorted = labels(&[&["a"; 8], &["b"; 8], &["c"; 8], &["d"; 8]]).unwrap();
        assert!(sorted.is_sorted(), "{sorted:?}");
        assert!(sorted.at_random > 3.4 && sorted.at_random < 4.0, "{sorted:?}");
        let mixed_run: &[&str] = &["a", "b", "c", "d", "a", "b", "c", "d"];
        let mixed = labels(&[mixed_run; 4]).unwrap();
        assert!(!mixed.is_sorted(), "{mixed:?}");
        let one = labels(&[&["a"; 8], &["a"; 8]]).unwrap();
        assert!(!one.is_sorted(), "one label cannot be sorted: {one:?}");
    }
}
