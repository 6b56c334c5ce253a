//! Filters and queries over the catalog, on both kinds of layout.

use crate::format_common::*;
use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use feedstock_dataset::{CatalogStore, Dataset, ErrorKind, SampleId};
use std::path::Path;
use std::sync::Arc;

/// `payload_bytes(image)` returns the length of the encoded bytes.
fn payload_bytes() -> Arc<ScalarUDF> {
    let length = |args: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(args)?;
        let image = arrays[0].as_binary_view();
        let lengths: Int64Array = image.iter().map(|v| v.map(|v| v.len() as i64)).collect();
        Ok(ColumnarValue::Array(Arc::new(lengths) as ArrayRef))
    };
    let types = (vec![DataType::BinaryView], DataType::Int64);
    Arc::new(create_udf("payload_bytes", types.0, types.1, Volatility::Immutable, Arc::new(length)))
}

async fn open_with_function(at: &Path) -> Dataset {
    let mut options = options(CatalogStore::Nowhere);
    options.functions = vec![payload_bytes()];
    Dataset::open_with(path(at), options).await.unwrap()
}

fn kept(dataset: &Dataset) -> Vec<u64> {
    let selection = dataset.selection().unwrap();
    (0..dataset.catalog().samples()).filter(|&i| selection.contains(SampleId(i))).collect()
}

#[tokio::test]
async fn a_filter_keeps_exactly_the_rows_it_says() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let all = open(folder.path()).await.unwrap();
    let some = all.clone().filter("label < 3 and width >= 120").await.unwrap();
    let expected: Vec<u64> = (120..450).filter(|i| i % 10 < 3).collect();
    assert_eq!(kept(&some), expected);
    assert_eq!(some.len(), expected.len() as u64);
    let fewer = some.filter("image_path like '4%'").await.unwrap();
    let expected: Vec<u64> = expected.into_iter().filter(|i| i.to_string().starts_with('4')).collect();
    assert_eq!(kept(&fewer), expected);
    assert_eq!(fewer.filter_sql().unwrap(), "(label < 3 and width >= 120) AND (image_path like '4%')");
    let ids = all.filter("sample_id between 17 and 19").await.unwrap();
    assert_eq!(kept(&ids), [17, 18, 19]);
}

#[tokio::test]
async fn row_groups_that_cannot_match_are_never_read() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let dataset = open(folder.path()).await.unwrap();
    let requests = |d: &Dataset| d.storage().stats().requests;
    let start = requests(&dataset);
    let one = dataset.clone().filter("width = 333").await.unwrap();
    let narrow = requests(&dataset) - start;
    assert_eq!(kept(&one), [333]);
    let start = requests(&dataset);
    dataset.clone().filter("width + 0 = 333").await.unwrap();
    let wide = requests(&dataset) - start;
    assert_eq!((narrow, wide), (1, 9), "requests with and without pruning");
}

#[tokio::test]
async fn functions_over_payloads_read_only_blocks_that_may_match() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let dataset = open_with_function(folder.path()).await;
    let some = dataset.clone().filter("payload_bytes(image) > 4000 and label = 7").await.unwrap();
    let expected: Vec<u64> = (0..450).filter(|&i| i % 10 == 7 && picture(i, 3_000).len() > 4_000).collect();
    assert!(!expected.is_empty());
    assert_eq!(kept(&some), expected);
    let start = dataset.storage().stats().requests;
    let rows =
        dataset.sql("select payload_bytes(image) as n from catalog where width * 2 = 20").await.unwrap();
    assert_eq!(rows.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
    let requests = dataset.storage().stats().requests - start;
    let blocks = dataset.catalog().blocks() as u64;
    assert!(requests < blocks + 4, "{requests} requests for {blocks} blocks: payloads were read in vain");
}

#[tokio::test]
async fn counts_per_label_and_folders_answer_too() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let dataset = open_with_function(root.path()).await;
    let counts =
        dataset.sql("select class, count(*) as n from catalog group by class order by class").await.unwrap();
    let batch = arrow::compute::concat_batches(&counts[0].schema(), &counts).unwrap();
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &[30, 30, 30]);
    let total = dataset.sql("select count(*) from catalog").await.unwrap();
    assert_eq!(total[0].column(0).as_primitive::<Int64Type>().value(0), 90);
    let b = dataset.clone().filter("class = 'b'").await.unwrap();
    assert_eq!(kept(&b), (30..60).collect::<Vec<_>>());
    let ids = dataset
        .sql("select sample_id from catalog where payload_bytes(image) >= 0 order by 1")
        .await
        .unwrap();
    let ids: Vec<u64> =
        ids.iter().flat_map(|b| b.column(0).as_primitive::<UInt64Type>().values().to_vec()).collect();
    assert_eq!(ids, (0..90).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_typo_names_the_column_and_lists_the_others() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path());
    let dataset = open(folder.path()).await.unwrap();
    let error = dataset.clone().filter("lable < 3").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    for part in ["lable", "label, width", "image_path", "sample_id"] {
        assert!(error.message().contains(part), "{part} is missing in: {error}");
    }
    let error = dataset.clone().filter("label <").await.unwrap_err();
    assert!(error.message().contains("label <"), "{error}");
    let error = dataset.clone().filter("label + 1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    let error = dataset.filter("label > 1000").await.unwrap_err();
    assert!(
        error.message().contains("label > 1000") && error.message().contains("none of the 450"),
        "{error}"
    );
}

#[tokio::test]
async fn chance_and_the_clock_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), 0);
    for filter in ["random() < 0.5", "label < 2 and now() > '2020-01-01'"] {
        let dataset = Dataset::open_with(path(folder.path()), options(CatalogStore::Nowhere)).await.unwrap();
        let error = dataset.filter(filter).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.to_string().contains("other values at other times"), "{error}");
    }
}

#[tokio::test]
async fn mistakes_in_filters_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("1.jpg"), picture(1, 500)).unwrap();
    std::fs::write(folder.path().join("list.csv"), "path,Score\n1.jpg,3\n").unwrap();
    let dataset = open(&folder.path().join("list.csv")).await.unwrap();
    for (filter, reason) in [
        ("scores > 2", "there is no column `scores`; the columns are: path, Score, image, "),
        (
            "Score > 2",
            "there is no column `score` (names without quotation marks are read in lower case; write \"Score\"); ",
        ),
        ("\"Score\" >", "it is not an SQL expression: "),
        ("nofunction(path) > 2", "nofunction"),
    ] {
        let error = dataset.clone().filter(filter).await.unwrap_err();
        assert!(error.message().contains(reason), "{filter}: {error}\nmust contain: {reason}");
        for word in ["DataFusion", "Schema error", "ParserError", "Error during planning", "normalization"] {
            assert!(!error.message().contains(word), "{filter}: {error}\nsays: {word}");
        }
    }
    assert_eq!(dataset.filter("\"Score\" > 2").await.unwrap().len(), 1);
}
