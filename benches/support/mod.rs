//! Shared code of the whole-pipeline benches: sample data, the job, and resource usage of the process.

#![allow(dead_code, reason = "each bench uses a part")]
use feedstock::catalog::{CatalogOptions, CatalogStore};
use feedstock::ops::ChainSpec;
use feedstock::{
    BatchSize, Dataset, OpenOptions, Pipeline, Shuffle, decode_image, horizontal_flip, random_resized_crop,
};
use feedstock_synth::ImagenetOptions;
use std::path::{Path, PathBuf};

/// Rows per batch, as in the project's figures.
pub const BATCH: u64 = 64;

/// Samples that are shuffled together: about 110 MB, a quarter of the data, so that every epoch reads it again.
pub const WINDOW: u64 = 1024;

/// Holds the window and blocks at its edges, but not the data set.
pub const BUDGET_BYTES: u64 = 256 << 20;

/// CPU threads: the figures are stated for a machine of two cores.
pub const THREADS: usize = 2;

/// Makes 4,000 images of about 110 KB, 400×350, in Parquet, once, in the temporary folder.
pub fn sample_data() -> PathBuf {
    let dir = std::env::temp_dir().join("feedstock-bench-imagenet-4000");
    if !dir.join("complete").exists() {
        println!("making 4,000 images in {}", dir.display());
        let options = ImagenetOptions { samples: 4000, overwrite: true, ..ImagenetOptions::default() };
        options.write(&dir, &mut |_| ()).unwrap();
        std::fs::write(dir.join("complete"), "").unwrap();
    }
    dir.join("data")
}

/// Opens the data set with a catalog stored in `catalogs`.
pub fn open(uri: &str, catalogs: &Path, config: &[(String, String)]) -> Dataset {
    let mut options = OpenOptions {
        catalog: CatalogOptions {
            store: CatalogStore::Cache(catalogs.to_owned()),
            ..CatalogOptions::default()
        },
        ..OpenOptions::default()
    };
    for (key, value) in config {
        options.storage = options.storage.with(key, value.clone());
    }
    futures::executor::block_on(Dataset::open_with(uri, options)).unwrap()
}

/// Returns the ops: decode, random_resized_crop 224, flip; u8.
pub fn chain() -> ChainSpec {
    ChainSpec::from([decode_image(), random_resized_crop(224), horizontal_flip(0.5)])
}

/// Returns the job of the figures.
pub fn pipeline(dataset: Dataset) -> Pipeline {
    dataset
        .map("image", chain())
        .shuffle(Shuffle::seeded(7).window(WINDOW))
        .batch(BatchSize::per_rank(BATCH))
        .threads(THREADS)
        .budget_bytes(BUDGET_BYTES)
}

/// Returns user and system time of this process, in seconds.
pub fn cpu_s() -> f64 {
    // SAFETY: all zeros is a valid rusage, and getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Returns user and system time of another process, in seconds.
pub fn cpu_s_of(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the name, which may contain spaces: user and system time are the 12th and 13th field, in ticks.
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    // SAFETY: sysconf takes a number and returns one.
    ticks / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

/// Returns a field of `/proc/self/status` in bytes: `VmRSS`, `VmHWM`.
pub fn memory_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the median.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
