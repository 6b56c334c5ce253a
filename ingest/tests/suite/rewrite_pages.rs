//! Rewriting into Parquet pages of a few samples, which a shuffle permutes.

use crate::rewrite_common::{
    SAMPLES, columns_of, open, parquet_with_nulls, rows, shard_files, small, synth, text,
};
use feedstock_dataset::{Access, Shuffle, ShuffleKind};
use feedstock_ingest::{ErrorKind, RewriteFormat, RewriteOptions, rewrite};
use feedstock_synth::Layout;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use std::num::NonZeroU32;
use std::path::Path;

fn paged(samples: u32) -> RewriteOptions {
    RewriteOptions { page_samples: NonZeroU32::new(samples), group_bytes: 64 << 10, ..small() }
}

fn metadata_of(file: &[u8]) -> ParquetMetaData {
    let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
    reader.parse_and_finish(&bytes::Bytes::copy_from_slice(file)).unwrap()
}

/// Returns the first row of each page of a column of a row group.
fn page_starts(metadata: &ParquetMetaData, group: usize, column: &str) -> Vec<i64> {
    let columns = metadata.row_group(group).columns();
    let leaf = columns.iter().position(|leaf| leaf.column_path().string() == column).unwrap();
    let pages = metadata.offset_index().unwrap()[group][leaf].page_locations();
    pages.iter().map(|page| page.first_row_index).collect()
}

/// Checks every page of the shards in `dir`, and returns their rows.
fn check_pages(dir: &Path, samples: i64) -> i64 {
    let files = shard_files(dir);
    let (mut total, last_file) = (0, files.len() - 1);
    for (at, file) in files.values().enumerate() {
        let metadata = metadata_of(file);
        let last_group = metadata.num_row_groups() - 1;
        for (group, of) in metadata.row_groups().iter().enumerate() {
            let rows = of.num_rows();
            let expected: Vec<i64> = (0..rows).step_by(samples as usize).collect();
            assert_eq!(page_starts(&metadata, group, "image.bytes"), expected);
            assert_eq!(page_starts(&metadata, group, "label"), [0], "labels are in one page");
            assert!(rows % samples == 0 || (at, group) == (last_file, last_group), "a page is cut");
            total += rows;
        }
    }
    total
}

#[test]
fn the_offset_index_has_n_rows_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    synth(&from, Layout::Folder);
    let source = open(&from);
    let columns = columns_of(&source);
    let expected = rows(&source, &columns);
    for samples in [1, 2, 3] {
        let to = dir.path().join(samples.to_string());
        let report = rewrite(&source, text(&to), &paged(samples)).unwrap();
        assert!(report.verified && report.shards > 2);
        assert_eq!(check_pages(&to, samples.into()) as u64, SAMPLES);
        let written = open(&to);
        assert!(rows(&written, &columns) == expected, "pages of {samples} have other rows");
        let plan = written.plan(&Shuffle::seeded(7)).unwrap();
        let order = (plan.fingerprint().shuffle, plan.fingerprint().piece);
        let (access, piece) = match samples {
            1 => (Access::Samples, (ShuffleKind::Full, None)),
            _ => (Access::Pages { samples, is_local: true }, (ShuffleKind::Window, Some(samples.into()))),
        };
        assert_eq!((written.catalog().access(), order), (access, piece));
        assert_eq!(rewrite(&source, text(&to), &paged(samples)).unwrap().resumed_shards, report.shards);
    }
}

#[test]
fn null_payloads_are_in_pages_too() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    parquet_with_nulls(&from);
    let source = open(&from);
    let columns = columns_of(&source);
    rewrite(&source, text(&to), &paged(2)).unwrap();
    for file in shard_files(&to).values() {
        let metadata = metadata_of(file);
        for group in 0..metadata.num_row_groups() {
            let expected: Vec<i64> = (0..metadata.row_group(group).num_rows()).step_by(2).collect();
            let payload = metadata.row_group(group).columns().iter().map(|leaf| leaf.column_path().string());
            let payload = payload.into_iter().find(|leaf| leaf.ends_with(".bytes")).unwrap();
            assert_eq!(page_starts(&metadata, group, &payload), expected);
        }
    }
    assert!(rows(&open(&to), &columns) == rows(&source, &columns));
}

#[test]
fn pages_are_an_option_of_parquet_and_part_of_a_rewrite() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    synth(&from, Layout::Parquet);
    let source = open(&from);
    let refused = |options: RewriteOptions, word: &str| {
        let error = rewrite(&source, text(&to), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(
        RewriteOptions { format: RewriteFormat::Ipc, ..paged(2) },
        "page_samples requires the format Parquet",
    );
    refused(paged(2_000), "page_samples 2000 must be 1 to 1024");
    assert!(!to.exists());
    rewrite(&source, text(&to), &paged(2)).unwrap();
    refused(paged(3), "page_samples");
    refused(RewriteOptions { page_samples: None, ..paged(2) }, "page_samples");
}
