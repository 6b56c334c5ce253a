//! Images in SQL.
use std::sync::Arc;

use crate::support::{golden, turbo_decode};
use datafusion::arrow::array::{
    ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray, RecordBatch, RecordBatchOptions,
};
use datafusion::arrow::datatypes::{Field, Int64Type, Schema};
use datafusion::prelude::SessionContext;

fn context(pictures: ArrayRef) -> SessionContext {
    let schema = Schema::new(vec![Field::new("image", pictures.data_type().clone(), true)]);
    let batch =
        RecordBatch::try_new_with_options(Arc::new(schema), vec![pictures], &RecordBatchOptions::new())
            .unwrap();
    let context = SessionContext::new();
    for function in feedstock_ops::sql_functions() {
        context.register_udf(function.as_ref().clone());
    }
    context.register_batch("t", batch).unwrap();
    context
}

async fn query(context: &SessionContext, sql: &str) -> Result<RecordBatch, String> {
    let frame = context.sql(sql).await.map_err(|error| error.to_string())?;
    let batches = frame.collect().await.map_err(|error| error.to_string())?;
    Ok(datafusion::arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap())
}

#[test]
fn every_binary_type_is_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let files = ["decode/420.jpg", "scene.png", "decode/lossy.webp"].map(golden);
    let rows: Vec<Option<&[u8]>> = files.iter().map(|file| Some(file.as_slice())).chain([None]).collect();
    let arrays: [ArrayRef; 3] = [
        Arc::new(BinaryArray::from(rows.clone())),
        Arc::new(LargeBinaryArray::from(rows.clone())),
        Arc::new(BinaryViewArray::from(rows)),
    ];
    for pictures in arrays {
        let context = context(pictures);
        let sql = "SELECT image_width(image), image_height(image), image_format(image), \
                   decode_image(image)['pixels'] FROM t";
        let batch = runtime.block_on(query(&context, sql)).unwrap();
        let widths: Vec<_> = batch.column(0).as_primitive::<Int64Type>().iter().collect();
        let heights: Vec<_> = batch.column(1).as_primitive::<Int64Type>().iter().collect();
        let formats: Vec<_> = batch.column(2).as_string::<i32>().iter().collect();
        assert_eq!(widths, [Some(47), Some(96), Some(47), None]);
        assert_eq!(heights, [Some(33), Some(80), Some(33), None]);
        assert_eq!(formats, [Some("jpeg"), Some("png"), Some("webp"), None]);
        assert_eq!(batch.column(3).as_binary::<i32>().value(0), turbo_decode(&files[0], 47, 33));
    }
}

#[test]
fn damage_fails_the_query_or_gives_null() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let rows: Vec<Option<&[u8]>> = vec![Some(b"no image")];
    let context = context(Arc::new(BinaryArray::from(rows)));
    let error = runtime.block_on(query(&context, "SELECT image_width(image) FROM t")).unwrap_err();
    assert!(error.contains("image_width") && error.contains("no JPEG, PNG or WebP"), "{error}");
    let sql = "SELECT try_image_width(image) IS NULL AND try_decode_image(image) IS NULL AS absent FROM t";
    assert!(runtime.block_on(query(&context, sql)).unwrap().column(0).as_boolean().value(0));
}
