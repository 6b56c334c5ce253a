//! Decodes the samples of a data set and reports what training would stumble over.
//!
//! ```text
//! positions (all, or evenly spaced runs) ─▶ blocks ─▶ chunks of ≤ 64 rows ─▶ CPU threads: decode ─▶ Report
//! ```
//! Every payload column is decoded whole, with the default limits of `decode_image` and `decode_audio`, and with the limit of a
//! run on the working memory of one sample. Decoding runs on separate threads; a block in memory is at most `FETCHES` times the
//! size of a block.

mod chunks;
mod column;
mod decoding;
mod layout;
mod spread;

pub use column::{ColumnReport, Refusal, Unusual};
pub use layout::{LabelMixing, LayoutReport};
pub use spread::Spread;

use crate::raw::RawOptions;
use crate::run::job::sample_bytes;
use crate::threads::default_threads;
use crate::{Error, ErrorKind, Result};
use chunks::Chunk;
use column::Medium;
use decoding::{Decoding, LargeSamples};
use feedstock_dataset::{Dataset, Shuffle};
use feedstock_ops::DECODER_MEMORY;
use futures::StreamExt;
use layout::Labels;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks under way at once: enough to hide a round trip; 4 × 4 MiB.
const FETCHES: usize = 4;

/// Receives (samples examined, samples to examine); called from several threads.
pub type DoctorProgressFn = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// What [`examine`] reads.
#[derive(Clone)]
pub struct DoctorOptions {
    /// Number of samples to read, in evenly spaced runs of 64; `None` (default) reads all.
    pub samples: Option<u64>,
    /// CPU threads, at least 1; default: [`default_threads`], the rank's share of the machine.
    pub threads: usize,
    /// A sample that takes more working memory is refused, as in a run. Default: [`sample_bytes`] of the defaults of a run, a
    /// `decoder_memory` of 64 MiB and `budget_bytes` of 1 GiB, which are 576 MiB.
    pub sample_bytes: u64,
    /// Refused samples listed by name, per column; default 100. All are counted.
    pub listed: usize,
    /// Columns of masks. Their images are decoded as classes, as `decode_image` does with `mode="indices"`, so images with
    /// colours and without a palette are refused. Default: none, so every image is decoded as RGB.
    pub masks: Vec<String>,
    /// Receives the progress; default none.
    pub progress: Option<DoctorProgressFn>,
    /// Ends the examination early when another thread sets it; default: never set.
    pub stop: Arc<AtomicBool>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self {
            samples: None,
            threads: default_threads(),
            sample_bytes: sample_bytes(DECODER_MEMORY, RawOptions::default().budget_bytes),
            listed: 100,
            masks: Vec::new(),
            progress: None,
            stop: Arc::default(),
        }
    }
}

/// What a data set holds that training would stumble over.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The data set's URI.
    pub uri: String,
    /// Number of selected samples in the data set.
    pub samples: u64,
    /// Number of samples that were read.
    pub examined: u64,
    /// One entry per column of encoded samples.
    pub columns: Vec<ColumnReport>,
    /// Blocks that could not be read, and why.
    pub unreadable: Vec<Unreadable>,
    /// What was left out when the data set was opened: files that are not data, damaged shards.
    pub notes: Vec<String>,
    /// How well the stored layout suits streaming and shuffling.
    pub layout: LayoutReport,
}

/// A block that could not be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// Which block of which object.
    pub block: String,
    /// Number of its samples that were to be examined.
    pub samples: u64,
    /// The error.
    pub reason: String,
}

impl Report {
    /// Returns the number of samples that training would stop at or skip, counted once per column.
    pub fn refused(&self) -> u64 {
        let unreadable: u64 = self.unreadable.iter().map(|block| block.samples).sum();
        self.columns.iter().map(|column| column.refused).sum::<u64>() + unreadable
    }
}

/// Reads and decodes the samples of `dataset` and reports what would be refused or is unusual.
///
/// A sample that cannot be decoded, and a block whose file is damaged, are part of the report, not errors. Blocks the
/// calling thread.
///
/// ```
/// use feedstock_ingest::doctor::{DoctorOptions, examine};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::write(folder.path().join("1.jpg"), feedstock_synth::picture(1, 0).0).unwrap();
/// # std::fs::write(folder.path().join("2.jpg"), "<html>404</html>").unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// # let uri = folder.path().to_str().unwrap();
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 1.jpg, and a page of HTML: 2.jpg
/// let report = examine(&dataset, &DoctorOptions { threads: 1, ..DoctorOptions::default() })?;
/// assert_eq!((report.examined, report.refused()), (2, 1));
/// assert_eq!(report.columns[0].refusals[0].name, "2.jpg");
/// assert_eq!(report.columns[0].width().unwrap().samples, 1);
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
///
/// # Errors
/// `BadConfig` for 0 threads, 0 samples, masks that are not columns of images, or a data set without encoded columns; `Denied`
/// and `Retryable` where the storage fails; `Retryable` after [`DoctorOptions::stop`].
pub fn examine(dataset: &Dataset, options: &DoctorOptions) -> Result<Report> {
    let config = |message: String| Err(Error::new(ErrorKind::BadConfig, message));
    let counts = [("threads", options.threads == 0), ("samples", options.samples == Some(0))];
    if let Some((name, _)) = counts.iter().find(|(_, is_zero)| *is_zero) {
        return config(format!("{name} must be at least 1; got 0"));
    }
    let catalog = dataset.catalog();
    let media: Vec<(String, Medium)> = catalog
        .payload_columns()
        .iter()
        .filter(|column| dataset.block_reader().schema().column_with_name(column).is_some())
        .map(|column| (column.clone(), Medium::of(catalog, column, &options.masks)))
        .collect();
    if media.is_empty() {
        return config(format!("{} has no column of encoded samples to examine", dataset.uri()));
    }
    let is_mask =
        |name: &String| media.iter().any(|(column, medium)| column == name && *medium == Medium::Mask);
    if let Some(other) = options.masks.iter().find(|name| !is_mask(name)) {
        let known = media.iter().map(|(column, _)| format!("'{column}'")).collect::<Vec<_>>().join(", ");
        return config(format!("masks: '{other}' is not a column of images; encoded columns: {known}"));
    }
    let total = options.samples.unwrap_or(u64::MAX).min(dataset.len());
    let (findings, unreadable) = decode(dataset, options, &media, total)?;
    Ok(Report {
        uri: dataset.uri().to_owned(),
        samples: dataset.len(),
        examined: total,
        columns: findings.columns,
        unreadable,
        notes: catalog.notes().to_vec(),
        layout: layout::report(catalog, &findings.labels),
    })
}

/// What one thread found; merged at the end.
struct Findings {
    columns: Vec<ColumnReport>,
    labels: Labels,
}

impl Findings {
    fn new(media: &[(String, Medium)]) -> Self {
        let columns = media.iter().map(|(column, medium)| ColumnReport::new(column, *medium)).collect();
        Self { columns, labels: Labels::default() }
    }

    fn merge(&mut self, other: Self, listed: usize) {
        for (mine, theirs) in self.columns.iter_mut().zip(other.columns) {
            mine.merge(theirs, listed);
        }
        self.labels.merge(other.labels);
    }
}

/// Fetches on this thread, decodes on `options.threads` others.
fn decode(
    dataset: &Dataset,
    options: &DoctorOptions,
    media: &[(String, Medium)],
    total: u64,
) -> Result<(Findings, Vec<Unreadable>)> {
    let (send, receive) = crossbeam_channel::bounded::<Chunk>(options.threads);
    let examined = AtomicU64::new(0);
    let work = |mut decoding: Decoding| {
        let mut findings = Findings::new(media);
        for chunk in receive.clone() {
            chunk.examine(&mut decoding, dataset.catalog(), options.listed, &mut findings.columns);
            findings.labels.add(&chunk);
            let rows = chunk.rows.len() as u64;
            let done = examined.fetch_add(rows, Ordering::Relaxed) + rows;
            if let Some(progress) = &options.progress {
                progress(done, total);
            }
        }
        findings
    };
    let large = LargeSamples::default();
    let decoder = |_| Decoding::new(options.sample_bytes, Arc::clone(&large));
    let decoders = (0..options.threads).map(decoder).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            decoders.into_iter().map(|decoding| scope.spawn(move || work(decoding))).collect();
        let unreadable = futures::executor::block_on(fetch(dataset, total, &options.stop, |chunk| {
            // The threads end only when `send` is dropped.
            let _taken = send.send(chunk);
        }));
        drop(send);
        let mut findings = Findings::new(media);
        for thread in threads {
            let found =
                thread.join().map_err(|_| Error::new(ErrorKind::Bug, "a thread of doctor panicked"))?;
            findings.merge(found, options.listed);
        }
        Ok((findings, unreadable?))
    })
}

/// Fetches the blocks of the samples to examine and hands them out in chunks.
async fn fetch(
    dataset: &Dataset,
    total: u64,
    stop: &AtomicBool,
    take: impl Fn(Chunk),
) -> Result<Vec<Unreadable>> {
    let plan = dataset.plan(&Shuffle::none())?;
    let reader = dataset.block_reader();
    let wanted = chunks::wanted(plan.epoch(0), total);
    let fetches = wanted.map(|(id, samples)| {
        let reader = reader.clone();
        async move { (id, samples, reader.fetch_held(id, u64::MAX).await) }
    });
    let mut blocks = futures::stream::iter(fetches).buffered(FETCHES);
    let mut unreadable = Vec::new();
    while let Some((id, samples, block)) = blocks.next().await {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Retryable, "the examination was stopped before its end"));
        }
        match block {
            Ok(block) => chunks::cut(&Arc::new(block), &samples).for_each(&take),
            Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Retryable) => {
                return Err(error);
            }
            Err(error) => unreadable.push(Unreadable {
                block: dataset.catalog().describe_block(id),
                samples: samples.len() as u64,
                reason: error.to_string(),
            }),
        }
    }
    Ok(unreadable)
}
