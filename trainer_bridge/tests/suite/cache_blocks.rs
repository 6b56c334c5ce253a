//! The disk cache below the ranks: cached blocks are not requested again, the cap holds, and a full disk costs reads, never
//! data.

use crate::common::pictures::files;
use crate::common::s3::{S3, storage};
use crate::common::{Delivered, block_on, open, pipeline, run_epochs, synth};
use feedstock_dataset::{
    CatalogOptions, CatalogStore, Cursor, DiskCacheOptions, DiskCacheStats, OpenOptions, Rank, Tail,
};
use feedstock_trainer_bridge::{Dataset, Pipeline};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SAMPLES: u64 = 203;
/// Set to the folder of the data set in the child that runs with a limit on file sizes.
const DATA_OF_CHILD: &str = "FEEDSTOCK_TEST_DATA";

/// Returns a pipeline over everything. Each epoch is a new run, so nothing stays in memory between epochs.
fn bounded(dataset: &Dataset, epochs: u64) -> Pipeline {
    pipeline(dataset.clone(), 24).tail(Tail::Pad).epochs(epochs).deadline(Duration::from_secs(15))
}

/// Returns the samples that one epoch delivers, and the cursor after it.
fn epoch(pipeline: &Pipeline, from: Option<Cursor>, mut each: impl FnMut()) -> (Delivered, Cursor) {
    let rank = pipeline.rank(Rank::new(0, 1));
    let mut ranks = from.into_iter().fold(rank, |rank, cursor| rank.resume(cursor)).start().unwrap();
    let mut delivered = Delivered::default();
    for batch in &mut ranks {
        delivered.add(&batch.unwrap());
        each();
    }
    ranks.ledger().check().unwrap();
    (delivered, ranks.state())
}

fn cache(dataset: &Dataset) -> DiskCacheStats {
    dataset.as_ref().disk_cache().unwrap().stats()
}

#[test]
fn an_epoch_from_a_full_cache_asks_storage_for_nothing() {
    let (local, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synth(local.path(), SAMPLES);
    let mut quiet = run_epochs(&bounded(&open(local.path()), 2), 1, 2);
    let s3 = S3::holding(local.path());
    let with_cache = || {
        let disk_cache = Some(DiskCacheOptions::new(folder.path(), 64 << 20));
        s3.try_open(OpenOptions { disk_cache, ..s3.options(storage()) }).unwrap()
    };
    let dataset = with_cache();
    s3.proxy.forget();
    let (mut delivered, cursor) = epoch(&bounded(&dataset, 1), None, || {});
    let (cold, misses) = (s3.requests().0, cache(&dataset).misses);
    assert!(cold >= 10 && misses >= 10, "the first epoch read {cold} times, {misses} misses");

    s3.proxy.forget();
    let (second, _) = epoch(&bounded(&dataset, 2), Some(cursor), || {});
    assert_eq!(s3.requests().0, 0, "{:?}", s3.proxy.log());
    assert_eq!(cache(&dataset).misses, misses);
    delivered.0.extend(second.0);
    assert_eq!(delivered, quiet);

    // Opened again, as by a later process: the catalog is read again, the blocks are not. The folder is free once the last
    // run's task has ended; dropping its ranks only requests that.
    drop(dataset);
    let began = Instant::now();
    let reopened = loop {
        let dataset = with_cache();
        if !cache(&dataset).off {
            break dataset;
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "the dropped data set still holds its cache folder"
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    s3.proxy.forget();
    let (again, _) = epoch(&bounded(&reopened, 1), None, || {});
    assert_eq!(s3.requests().0, 0, "{:?}", s3.proxy.log());
    quiet.0.retain(|(epoch, _), _| *epoch == 0);
    assert_eq!(again, quiet);
}

/// Returns the bytes that the files of the cache take on disk, as the cap counts them: all but locks, without holes.
fn on_disk(folder: &Path) -> u64 {
    let is_lock = |file: &PathBuf| file.file_name().is_some_and(|name| name == "lock");
    let kept = files(folder).into_iter().filter(|file| !is_lock(file));
    kept.filter_map(|file| std::fs::metadata(file).ok()).map(|meta| meta.blocks() * 512).sum()
}

#[test]
fn a_cap_smaller_than_the_data_is_kept_and_costs_reads_only() {
    let (local, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synth(local.path(), SAMPLES);
    let quiet = run_epochs(&bounded(&open(local.path()), 3), 1, 3);
    let total: u64 = files(local.path()).iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    let cap = total / 3;
    let s3 = S3::holding(local.path());
    let disk_cache = Some(DiskCacheOptions::new(folder.path(), cap));
    let dataset = s3.try_open(OpenOptions { disk_cache, ..s3.options(storage()) }).unwrap();
    let mut requests = Vec::new();
    let (mut delivered, mut cursor) = (Delivered::default(), None);
    for epochs in 1..=3 {
        s3.proxy.forget();
        let (of_epoch, after) = epoch(&bounded(&dataset, epochs), cursor, || {
            let (used, held) = (on_disk(folder.path()), cache(&dataset).used_bytes);
            assert!(used <= cap && held <= cap, "{used} bytes on disk, {held} counted, more than {cap}");
        });
        delivered.0.extend(of_epoch.0);
        cursor = Some(after);
        requests.push(s3.requests().0);
    }
    assert_eq!(delivered, quiet);
    let stats = cache(&dataset);
    assert!(!stats.off && stats.used_bytes > cap / 2, "{stats:?}");
    assert!(requests[1] < requests[0] && requests[2] < requests[0], "nothing was saved: {requests:?}");
    assert!(requests[1] > 0, "a third is too small for everything");
}

/// The kernel rejects the cache's writes midway, as a full disk does, because of a limit on file sizes. The limit is set in a
/// child process, since it applies to all files of a process.
#[test]
fn a_disk_that_takes_no_more_turns_the_cache_off_and_data_still_flows() {
    if let Some(data) = std::env::var_os(DATA_OF_CHILD) {
        return as_child(Path::new(&data));
    }
    let local = tempfile::tempdir().unwrap();
    synth(local.path(), SAMPLES);
    let name = "cache_blocks::a_disk_that_takes_no_more_turns_the_cache_off_and_data_still_flows";
    // 16 blocks of 512 bytes are 8 KiB: less than any block of the data set
    let script = r#"trap "" XFSZ; ulimit -f 16; exec "$0" --exact "$1" --nocapture"#;
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(DATA_OF_CHILD, local.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed") && text.contains("the cache is off"), "{text}");
}

fn as_child(data: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let full = std::fs::write(folder.path().join("probe"), vec![0; 20 << 10]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::FileTooLarge, "the limit applies");
    std::fs::remove_file(folder.path().join("probe")).unwrap();
    let quiet = run_epochs(&bounded(&open(data), 1), 1, 1);
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let disk_cache = Some(DiskCacheOptions::new(folder.path(), 64 << 20));
    let options = OpenOptions { catalog, block_bytes: 32 << 10, disk_cache, ..OpenOptions::default() };
    let dataset = block_on(Dataset::open_with(data.to_str().unwrap(), options)).unwrap();
    let delivered = run_epochs(&bounded(&dataset, 1), 2, 1);
    assert_eq!(delivered, quiet);
    delivered.assert_once_each();
    let stats = cache(&dataset);
    assert!(stats.off && stats.used_bytes == 0, "{stats:?}");
    assert_eq!(on_disk(folder.path()), 0, "no partial file is left");
    println!("the cache is off");
}
