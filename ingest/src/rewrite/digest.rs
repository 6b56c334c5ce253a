//! A digest of rows: payload bytes and metadata values, in order, whatever files and types they come from.

use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::record_batch::RecordBatch;
use arrow::row::{RowConverter, SortField};
use std::hash::Hasher;
use twox_hash::XxHash64;

/// XxHash64 over rows: two runs of rows with the same digest are the same but for a chance of 2⁻⁶⁴.
///
/// Text hashes alike as Utf8, LargeUtf8 or Utf8View. Metadata of types without a row form (maps, unions) are left out.
pub(super) struct RowDigest {
    columns: Vec<String>,
    hash: XxHash64,
    pub(super) rows: u64,
    pub(super) payload_bytes: u64,
}

impl RowDigest {
    /// A digest of these columns, in this order.
    pub(super) fn new(columns: &[String]) -> Self {
        Self { columns: columns.to_vec(), hash: XxHash64::with_seed(0), rows: 0, payload_bytes: 0 }
    }

    /// Adds the rows of `batch`. The cut into batches does not matter.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut payloads = Vec::new();
        let (mut fields, mut metadata) = (Vec::new(), Vec::<ArrayRef>::new());
        for name in &self.columns {
            let array = batch.column_by_name(name).ok_or_else(|| {
                Error::new(ErrorKind::Gone, format!("column {name} is not in the shards that were read back"))
            })?;
            let field = SortField::new(array.data_type().clone());
            match array.as_binary_view_opt() {
                Some(views) => payloads.push(views),
                None if RowConverter::supports_fields(std::slice::from_ref(&field)) => {
                    fields.push(field);
                    metadata.push(array.clone());
                }
                None => {}
            }
        }
        let bug = |e| Error::new(ErrorKind::Bug, format!("cannot digest metadata columns: {e}"));
        let rows = match fields.is_empty() {
            true => None,
            false => Some(RowConverter::new(fields).and_then(|c| c.convert_columns(&metadata)).map_err(bug)?),
        };
        for row in 0..batch.num_rows() {
            for views in &payloads {
                let payload = views.is_valid(row).then(|| views.value(row));
                self.payload_bytes += payload.map_or(0, <[u8]>::len) as u64;
                self.write(payload);
            }
            if let Some(rows) = &rows {
                self.write(Some(rows.row(row).as_ref()));
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Lengths go in too, so that bytes cannot move from one value to the next unnoticed.
    fn write(&mut self, value: Option<&[u8]>) {
        self.hash.write_u64(value.map_or(u64::MAX, |bytes| bytes.len() as u64));
        self.hash.write(value.unwrap_or_default());
    }

    /// The digest so far, as 16 hexadecimal digits.
    pub(super) fn text(&self) -> String {
        format!("{:016x}", self.hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BinaryViewArray, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use std::sync::Arc;

    fn batch(payload: &[Option<&[u8]>], label: &[i64], name: &[&str], views: bool) -> RecordBatch {
        let name: ArrayRef = match views {
            true => Arc::new(StringViewArray::from_iter_values(name)),
            false => Arc::new(StringArray::from_iter_values(name)),
        };
        let schema = Schema::new(vec![
            Field::new("image", DataType::BinaryView, true),
            Field::new("label", DataType::Int64, true),
            Field::new("name", name.data_type().clone(), true),
        ]);
        let image = BinaryViewArray::from_iter(payload.iter().copied());
        let label = Int64Array::from(label.to_vec());
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(image), Arc::new(label), name]).unwrap()
    }

    fn digest(batches: &[RecordBatch]) -> String {
        let columns = ["image", "label", "name"].map(str::to_owned);
        let mut digest = RowDigest::new(&columns);
        batches.iter().for_each(|batch| digest.add(batch).unwrap());
        digest.text()
    }

    #[test]
    fn sees_values_and_order_but_neither_batches_nor_text_types() {
        let payload: [Option<&[u8]>; 3] = [Some(b"ab"), Some(b"c"), None];
        let whole = batch(&payload, &[1, 2, 3], &["x", "y", "z"], false);
        let same = digest(std::slice::from_ref(&whole));
        assert_eq!(digest(&[whole.slice(0, 1), whole.slice(1, 2)]), same);
        assert_eq!(digest(&[batch(&payload, &[1, 2, 3], &["x", "y", "z"], true)]), same);
        let others = [
            batch(&[Some(b"a"), Some(b"bc"), None], &[1, 2, 3], &["x", "y", "z"], false),
            batch(&[Some(b"ab"), Some(b"c"), Some(b"")], &[1, 2, 3], &["x", "y", "z"], false),
            batch(&payload, &[1, 3, 2], &["x", "y", "z"], false),
            batch(&payload, &[1, 2, 3], &["x", "y", ""], false),
            whole.slice(0, 2),
        ];
        for other in others {
            assert_ne!(digest(&[other]), same);
        }
    }
}
