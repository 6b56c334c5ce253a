//! Pieces that reach over the end of a block: one request, the same bytes, and errors that name the samples.

use crate::format_common::*;
use crate::ipc_parts::{extents, opened, stored};
use crate::storage_support::{S3, with_config};
use crate::{ipc_parts, parquet_parts};
use arrow::array::{Array, AsArray};
use feedstock_dataset::{
    CatalogStore, Dataset, DiskCacheOptions, ErrorKind, Extent, OpenOptions, Position, Shuffle, TarHeaders,
};
use feedstock_testkit::{Fault, Rule, S3Server};
use std::collections::BTreeSet;

/// Images of 20 to 30 kB, in blocks of about 10.
const BYTES: usize = 20_000;
const BLOCK_BYTES: u64 = 256 << 10;
/// Samples of a tar, and of a piece.
const TAR: u64 = 100;
const PIECE: u64 = 7;

/// Stores tars of [`TAR`] samples with the indexes of Energon, from sample `first` on.
fn put_tars(s3: &S3, folder: &str, tars: u64, first: u64) {
    for tar in 0..tars {
        let samples = first + tar * TAR..first + (tar + 1) * TAR;
        let members: Vec<_> = samples.map(|i| (format!("{i:05}.jpg"), picture(i, BYTES))).collect();
        let mut offsets = vec![0u64];
        offsets.extend(members.iter().scan(0, |at, (_, bytes)| {
            *at += 512 + (bytes.len() as u64).next_multiple_of(512);
            Some(*at)
        }));
        let index: Vec<u8> = offsets.into_iter().flat_map(u64::to_le_bytes).collect();
        s3.put(&format!("{folder}/{tar}.tar"), &tar_of(&members).into());
        s3.put(&format!("{folder}/{tar}.tar.idx"), &index.into());
    }
}

fn options_of(s3: &S3) -> OpenOptions {
    let storage = crate::storage_support::options();
    let storage = with_config(storage, S3Server::config_at(&s3.proxy.endpoint()));
    OpenOptions { storage, block_bytes: BLOCK_BYTES, ..options(CatalogStore::Nowhere) }
}

async fn open_tars(s3: &S3, folder: &str) -> Dataset {
    Dataset::open_with(&format!("s3://bucket/{folder}/"), options_of(s3)).await.unwrap()
}

fn pieces() -> Shuffle {
    Shuffle::seeded(1).piece(PIECE as u32)
}

/// What reading all pieces of an epoch took.
#[derive(Debug, PartialEq)]
struct Taken {
    extents: u64,
    requests: u64,
    bytes: u64,
}

/// Fetches each piece once, in the order of the plan, and compares the rows with the images.
async fn read_epoch(dataset: &Dataset) -> Taken {
    let plan = dataset.plan(&pieces()).unwrap();
    let (mut order, reader) = (plan.epoch(0), dataset.block_reader());
    let mut fetched: BTreeSet<Extent> = BTreeSet::new();
    let before = dataset.storage().stats();
    for position in (0..plan.len()).map(Position) {
        let planned = order.sample_at(position);
        let extent = plan.extent_of(planned.block, planned.sample);
        assert!(extent.row_of(planned.sample).is_some());
        if fetched.insert(extent) {
            let part = reader.fetch_extent(extent, position.0).await.unwrap();
            assert_eq!((part.id, part.first_sample), (extent.block, extent.first.0));
            let right: Vec<_> = extent.range().map(|i| Some(picture(i, BYTES))).collect();
            assert_eq!(payloads(&[part.rows], "image"), right, "{extent:?}");
        }
    }
    assert_eq!(
        fetched.iter().map(|extent| u64::from(extent.samples)).sum::<u64>(),
        dataset.catalog().samples()
    );
    let after = dataset.storage().stats();
    let (requests, bytes) = (after.requests - before.requests, after.read_bytes - before.read_bytes);
    Taken { extents: fetched.len() as u64, requests, bytes }
}

/// Returns the requests and bytes that are forecast for an epoch.
fn forecast(dataset: &Dataset) -> Taken {
    let plan = dataset.plan(&pieces()).unwrap();
    let mut order = plan.epoch(0);
    let samples = (0..plan.len()).map(|position| order.sample_at(Position(position)));
    let extents: BTreeSet<_> = samples.map(|at| plan.extent_of(at.block, at.sample)).collect();
    let reads = extents.iter().map(|extent| dataset.extent_reads(*extent));
    let (requests, bytes) = reads.fold((0, 0), |(r, b), of| (r + u64::from(of.requests), b + of.bytes));
    Taken { extents: extents.len() as u64, requests, bytes }
}

/// Returns the number of pieces of `samples`, in objects of `object` samples whose ends cut pieces.
fn pieces_of(samples: u64, object: u64) -> u64 {
    let cuts = (1..samples / object).filter(|end| !(end * object).is_multiple_of(PIECE)).count();
    samples.div_ceil(PIECE) + cuts as u64
}

#[tokio::test]
async fn a_piece_of_a_tar_takes_one_request_wherever_blocks_end() {
    let s3 = S3::start();
    put_tars(&s3, "data", 3, 0);
    put_tars(&s3, "more", 2, 300);
    let walked = open_tars(&s3, "data").await;
    let at_read = OpenOptions { tar_headers: TarHeaders::Read, ..options_of(&s3) };
    let at_read = Dataset::open_with("s3://bucket/data/", at_read).await.unwrap();
    let both = vec![open_tars(&s3, "data").await.named("data"), open_tars(&s3, "more").await.named("more")];
    let both = Dataset::concat(both).unwrap();
    let images: u64 = (0..300).map(|i| picture(i, BYTES).len() as u64).sum();
    for (what, dataset, samples) in
        [("walked", walked, 300), ("headers at read", at_read, 300), ("concatenated", both, 500)]
    {
        let expected = pieces_of(samples, TAR);
        let cut = extents(&dataset, PIECE).len() as u64;
        assert!(cut > expected + 10, "{what}: blocks would cut {cut} parts of {expected}");
        s3.proxy.forget();
        let taken = read_epoch(&dataset).await;
        assert_eq!((taken.extents, s3.proxy.log().len() as u64), (expected, expected), "{what}");
        let forecast = forecast(&dataset);
        assert_eq!((forecast.extents, forecast.requests), (expected, expected), "{what}");
        match what {
            "walked" => {
                assert_eq!(taken, forecast);
                assert!(taken.bytes < images * 105 / 100, "{} of {images} bytes", taken.bytes);
            }
            "headers at read" => {
                let ratio = taken.bytes as f64 / forecast.bytes as f64;
                assert!((0.99..1.01).contains(&ratio), "{taken:?} {forecast:?}");
            }
            _ => {} // each part has its own counts of bytes
        }
    }
}

/// A few more requests read the offsets, labels and names of each batch or row group.
#[tokio::test]
async fn a_piece_of_a_columnar_file_takes_one_request_wherever_blocks_end() {
    let ipc = stored("a.arrow", ipc_parts::stream(0..400, 200, BYTES));
    let parquet = stored("a.parquet", parquet_parts::file(0..400, BYTES, parquet_parts::pages_of(1)));
    for (what, store, others) in [("IPC", ipc, 6), ("Parquet", parquet, 2)] {
        let dataset = opened(&store).await.columns(&["image", "label"]).unwrap();
        let expected = pieces_of(400, 200);
        let cut = extents(&dataset, PIECE).len() as u64;
        assert!(cut > expected + 4, "{what}: blocks would cut {cut} parts of {expected}");
        let taken = read_epoch(&dataset).await;
        assert_eq!(taken.extents, expected, "{what}");
        assert!(taken.requests <= expected + others, "{what}: {taken:?}");
        let forecast = forecast(&dataset);
        assert_eq!((forecast.extents, forecast.requests), (expected, expected), "{what}");
        let ratio = taken.bytes as f64 / forecast.bytes as f64;
        assert!((0.95..1.01).contains(&ratio), "{what}: {taken:?} {forecast:?}");
    }
}

#[tokio::test]
async fn a_disk_cache_has_one_entry_a_piece() {
    let (s3, folder) = (S3::start(), tempfile::tempdir().unwrap());
    put_tars(&s3, "data", 3, 0);
    let disk_cache = Some(DiskCacheOptions::new(folder.path(), 64 << 20));
    let open = OpenOptions { disk_cache, ..options_of(&s3) };
    let dataset = Dataset::open_with("s3://bucket/data/", open).await.unwrap();
    let first = read_epoch(&dataset).await;
    assert_eq!((first.extents, first.requests), (45, 45));
    let second = read_epoch(&dataset).await;
    assert_eq!(second, Taken { extents: 45, requests: 0, bytes: 0 });
    let stats = dataset.disk_cache().unwrap().stats();
    assert_eq!((stats.entries, stats.misses, stats.hits), (45, 45, 45));
}

/// Returns the first piece that is in two blocks of a tar, and its data set without requests so far.
async fn over_an_end(s3: &S3) -> (Dataset, Extent) {
    put_tars(s3, "data", 2, 0);
    let dataset = open_tars(s3, "data").await;
    let (plan, catalog) = (dataset.plan(&pieces()).unwrap(), dataset.catalog());
    let mut order = plan.epoch(0);
    let samples = (0..plan.len()).map(|position| order.sample_at(Position(position)));
    let extents: BTreeSet<_> = samples.map(|at| plan.extent_of(at.block, at.sample)).collect();
    let over =
        extents.into_iter().find(|extent| extent.range().end > catalog.block_samples(extent.block).end);
    s3.proxy.forget();
    (dataset, over.unwrap())
}

#[tokio::test]
async fn a_cut_answer_is_continued_and_counted_once() {
    let s3 = S3::start();
    let (dataset, extent) = over_an_end(&s3).await;
    s3.proxy.inject(Rule::times(1, Fault::ResetMidBody(50_000)));
    let before = dataset.storage().stats();
    let part = dataset.block_reader().fetch_extent(extent, 0).await.unwrap();
    let held: usize = part.rows["image"].as_binary_view().to_data().buffers().iter().map(|b| b.len()).sum();
    assert!(held as u64 <= dataset.catalog().extent_memory_bytes(extent) + 7 * 512 * 2);
    let right: Vec<_> = extent.range().map(|i| Some(picture(i, BYTES))).collect();
    assert_eq!(payloads(&[part.rows], "image"), right);
    let after = dataset.storage().stats();
    assert_eq!((after.requests - before.requests, after.retries - before.retries), (2, 1));
    assert_eq!(after.read_bytes - before.read_bytes, dataset.extent_reads(extent).bytes);
}

/// Both parts are of one version, and an error names the tar and all samples that it concerns.
#[tokio::test]
async fn a_changed_tar_and_a_denied_request_are_errors_of_the_whole_piece() {
    let s3 = S3::start();
    let (dataset, extent) = over_an_end(&s3).await;
    let name = format!("0.tar member {:05} and the 6 samples after it", extent.first.0);
    s3.proxy.inject(Rule::times(1, Fault::Status(403)));
    let denied = dataset.block_reader().fetch_extent(extent, 0).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(denied.to_string().contains(&name), "{denied}");
    s3.proxy.heal();
    s3.proxy.forget();

    let members: Vec<_> = (0..TAR).map(|i| (format!("{i:05}.jpg"), picture(i + 1, BYTES))).collect();
    s3.put("data/0.tar", &tar_of(&members).into());
    let gone = dataset.block_reader().fetch_extent(extent, 0).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Gone);
    assert!(gone.to_string().contains(&name), "{gone}");
    let reads = s3.proxy.log().into_iter().filter(|exchange| exchange.method == "GET");
    let guards: Vec<_> = reads.map(|exchange| exchange.if_match.is_some()).collect();
    assert_eq!(guards, [true], "one request, for one version");
}
