//! Data sets of indexes, which no machine stores.

use crate::format_common::*;
use crate::storage_support;
use arrow::array::AsArray;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow_ipc::reader::FileReader;
use feedstock_dataset::{CatalogStore, Dataset, ErrorKind, Layout, SampleId, Shuffle};
use std::io::Cursor;

const URI: &str = "indexes://70001/items-5e.arrow";

#[tokio::test]
async fn samples_are_the_indexes() {
    let dataset = Dataset::open_with(URI, options(CatalogStore::Nowhere)).await.unwrap();
    assert_eq!((dataset.len(), dataset.catalog().layout()), (70_001, Layout::ArrowIpc));
    let rows = all_rows(&dataset).await;
    let found = rows.iter().flat_map(|batch| batch.column(0).as_primitive::<Int32Type>().values().to_vec());
    assert!(found.eq(0..70_001));
    let reader = dataset.block_reader();
    for sample in [0, 1, 65_535, 65_536, 70_000] {
        let one = reader.fetch_sample(SampleId(sample), 0).await.unwrap();
        assert_eq!(one.rows.column(0).as_primitive::<Int32Type>().value(0) as u64, sample);
    }
    let some = dataset.filter("index >= 69000").await.unwrap();
    assert_eq!(some.len(), 1_001);
}

#[tokio::test]
async fn identity_and_order_are_those_of_the_same_file_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let storage = storage_support::storage(storage_support::options());
    let object = storage.head(URI).await.unwrap();
    let bytes = storage.read(&object, 0..object.size).await.unwrap();
    let at = folder.path().join("items-5e.arrow");
    std::fs::write(&at, bytes).unwrap();
    let (computed, stored) =
        (Dataset::open_with(URI, options(CatalogStore::Nowhere)).await.unwrap(), open(&at).await.unwrap());
    let plan = |dataset: &Dataset| dataset.plan(&Shuffle::seeded(7)).unwrap().fingerprint().clone();
    assert_eq!(plan(&computed), plan(&stored));
    assert_eq!(computed.catalog().access(), stored.catalog().access());
    let renamed = Dataset::open_with("indexes://70001/items-5f.arrow", options(CatalogStore::Nowhere)).await;
    assert_ne!(plan(&computed), plan(&renamed.unwrap()), "the name is part of the identity");
}

#[tokio::test]
async fn catalogs_of_indexes_are_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    for store in [CatalogStore::Cache(folder.path().into()), CatalogStore::Beside] {
        let dataset = Dataset::open_with(URI, options(store)).await.unwrap();
        assert!(!dataset.is_catalog_kept());
        assert!(dataset.stored_catalogs()[0].is_none(), "nothing to send to workers");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_not_a_file_of_indexes_is_an_error() {
    for (uri, message) in [
        ("indexes://0/x.arrow", "a file of indexes has 1 to 68719476736 of them, not 0"),
        ("indexes://many/x.arrow", "a file of indexes has 1 to 68719476736 of them, not many"),
        ("indexes:///x.arrow", "the bucket is missing"),
        ("indexes://9", "nothing is there"),
        ("indexes://9/x.parquet", "nothing is there"),
        ("indexes://9/a/x.arrow", "nothing is there"),
    ] {
        let error = Dataset::open_with(uri, options(CatalogStore::Nowhere)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadConfig | ErrorKind::Gone), "{error:?}");
        assert!(error.message().contains(message), "{uri}: {error}");
    }
}

#[tokio::test]
async fn files_of_indexes_are_read_and_never_written() {
    let storage = storage_support::storage(storage_support::options());
    let object = storage.head("indexes://5000000000/x.arrow").await.unwrap();
    assert_eq!(storage.list(&object.uri).await.unwrap(), std::slice::from_ref(&object));
    assert!(storage.list("indexes://5000000000/").await.unwrap().is_empty());
    let end = storage.read(&object, object.size - 10..object.size).await.unwrap();
    assert!(end.ends_with(b"ARROW1"));
    for error in [
        storage.write(&object.uri, "x".into()).await.unwrap_err(),
        storage.create(&object.uri, "x".into()).await.unwrap_err(),
        storage.delete(&object.uri).await.unwrap_err(),
    ] {
        assert!(error.message().contains("files of indexes are computed"), "{error}");
    }
    let small = storage.head("indexes://3/x.arrow").await.unwrap();
    let bytes = storage.read(&small, 0..small.size).await.unwrap();
    let mut batches = FileReader::try_new(Cursor::new(bytes), None).unwrap();
    assert_eq!(batches.next().unwrap().unwrap().column(0).as_primitive::<Int32Type>().values(), &[0, 1, 2]);
    let dataset =
        Dataset::open_with("indexes://3000000000/x.arrow", options(CatalogStore::Nowhere)).await.unwrap();
    let last = dataset.block_reader().fetch_sample(SampleId(2_999_999_999), 0).await.unwrap();
    assert_eq!(last.rows.column(0).as_primitive::<Int64Type>().values(), &[2_999_999_999]);
}
