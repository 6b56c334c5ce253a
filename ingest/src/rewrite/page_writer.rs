//! Parquet files whose payload columns have pages of a fixed number of rows, so that a few samples can be read alone.
//!
//! parquet's writer has one limit of rows a page for all columns. Pages of a few labels would be mostly headers, so the other
//! columns are written with the usual properties:
//!
//! ```text
//! row group ─┬─▶ payload leaves: pages of N rows    ─┬─▶ chunks in the schema's order
//!            └─▶ other leaves: pages of about 1 MiB ─┘
//! ```

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::errors::Result;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

/// Bytes of a page at which the writer would end it before its rows are complete: none that it can write.
const PAGE_BYTES: usize = i32::MAX as usize;

/// A file in memory.
pub(super) struct PageWriter {
    schema: SchemaRef,
    file: SerializedFileWriter<Vec<u8>>,
    payload: ArrowRowGroupWriterFactory,
    others: ArrowRowGroupWriterFactory,
    /// For each leaf of the schema, whether it is a payload.
    is_payload: Vec<bool>,
}

impl PageWriter {
    /// Starts a file of which `payload`'s columns have pages of `page_rows` rows.
    pub(super) fn new(
        schema: &SchemaRef,
        properties: WriterPropertiesBuilder,
        payload: &[ColumnPath],
        page_rows: usize,
    ) -> Result<Self> {
        let parts = |properties: WriterProperties| {
            ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?.into_serialized_writer()
        };
        let (file, others) = parts(properties.clone().build())?;
        // The writer looks at a page after each batch of rows.
        let mut exact = properties.set_data_page_row_count_limit(page_rows).set_write_batch_size(page_rows);
        for column in payload {
            exact = exact.set_column_data_page_size_limit(column.clone(), PAGE_BYTES);
        }
        let (_, of_payload) = parts(exact.build())?;
        let leaves = file.schema_descr().columns().iter();
        let is_payload = leaves.map(|leaf| payload.contains(leaf.path())).collect();
        Ok(Self { schema: schema.clone(), file, payload: of_payload, others, is_payload })
    }

    /// Appends a row group.
    pub(super) fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let group = self.file.flushed_row_groups().len();
        let payload = self.payload.create_column_writers(group)?;
        let others = self.others.create_column_writers(group)?;
        let both = self.is_payload.iter().zip(payload.into_iter().zip(others));
        let mut writers: Vec<ArrowColumnWriter> =
            both.map(|(is_payload, (payload, other))| if *is_payload { payload } else { other }).collect();
        let mut rest = writers.iter_mut();
        for (field, column) in self.schema.fields().iter().zip(rows.columns()) {
            for (leaf, writer) in compute_leaves(field, column)?.iter().zip(&mut rest) {
                writer.write(leaf)?;
            }
        }
        let mut group = self.file.next_row_group()?;
        for writer in writers {
            writer.close()?.append_to_row_group(&mut group)?;
        }
        group.close()?;
        Ok(())
    }

    /// Returns the whole file.
    pub(super) fn into_inner(self) -> Result<Vec<u8>> {
        self.file.into_inner()
    }
}
