//! Lists of encoded images in blocks: `list<binary>`, and `list<struct<bytes, path>>` as Hugging Face's `Sequence(Image())`.
//!
//! A pipeline reads them for its chains. Previews and measurements, which run chains without a pipeline, read them with
//! [`EncodedImages`].

use crate::Result;
use crate::lists::{item, list_of};
use crate::value::unusable;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use feedstock_ops::ImageList;

/// The children of Hugging Face's struct.
const BYTES: &str = "bytes";
const PATH: &str = "path";

/// Returns whether values of this type are lists of encoded bytes.
///
/// ```
/// use arrow::datatypes::DataType;
/// use feedstock_ingest::images::is_list_of_images;
///
/// let list = |item| DataType::new_list(item, true);
/// assert!(is_list_of_images(&list(DataType::Binary)));
/// assert!(!is_list_of_images(&list(DataType::Float32)));
/// assert!(!is_list_of_images(&DataType::Binary));
/// ```
pub fn is_list_of_images(data_type: &DataType) -> bool {
    match item(data_type) {
        Some(DataType::Struct(children)) => {
            let known = children.iter().all(|child| matches!(child.name().as_str(), BYTES | PATH));
            known && children.find(BYTES).is_some_and(|(_, bytes)| is_binary(bytes.data_type()))
        }
        item => item.is_some_and(is_binary),
    }
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// The images of one row, as [`Chain::apply_list`](feedstock_ops::Chain::apply_list) takes them.
///
/// ```
/// use arrow::array::{ArrayRef, BinaryArray, ListArray, RecordBatch};
/// use arrow::buffer::OffsetBuffer;
/// use arrow::datatypes::{DataType, Field};
/// use feedstock_ingest::images::EncodedImages;
/// use feedstock_ops::ImageList;
/// use std::sync::Arc;
///
/// let images: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&b"first"[..], b"second", b"third"]));
/// let item = Arc::new(Field::new("item", DataType::Binary, true));
/// let lists: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1, 2]), images, None));
/// let rows = RecordBatch::try_from_iter([("images", lists)]).unwrap();
/// let images = EncodedImages::of(&rows, "images", 1)?;
/// assert_eq!((images.count(), images.image(1)?), (2, &b"third"[..]));
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
pub struct EncodedImages {
    /// The list's items, and their bytes: the same array, or a child of it.
    items: ArrayRef,
    bytes: ArrayRef,
}

impl EncodedImages {
    /// Returns the images in one row of a column.
    ///
    /// # Errors
    /// `BadSample` for a list that is null, and for a column that does not exist or has no lists.
    pub fn of(rows: &RecordBatch, column: &str, row: usize) -> Result<Self> {
        let list = rows.column_by_name(column).ok_or_else(|| unusable("the block lacks the column"))?;
        let items = list_of(list, row).map_err(unusable)?;
        let bytes = match items.as_struct_opt() {
            Some(structs) => {
                structs.column_by_name(BYTES).ok_or_else(|| unusable("the list has no bytes"))?
            }
            None => &items,
        };
        Ok(Self { bytes: bytes.clone(), items })
    }

    /// Returns what an image without bytes has instead.
    fn problem(&self, number: usize) -> String {
        let path = self.items.as_struct_opt().and_then(|structs| structs.column_by_name(PATH));
        match path.filter(|path| !self.items.is_null(number) && !path.is_null(number)) {
            None => "it is null".to_owned(),
            Some(path) => {
                let path = array_value_to_string(path, number).unwrap_or_default();
                format!("its bytes are null, and files outside of the data set are not read ('{path}')")
            }
        }
    }
}

impl ImageList for EncodedImages {
    fn count(&self) -> usize {
        self.items.len()
    }

    fn image(&self, number: usize) -> Result<&[u8]> {
        // The bytes of a null struct may be those of another image.
        if self.items.is_null(number) || self.bytes.is_null(number) {
            return Err(unusable(self.problem(number)));
        }
        let bytes = match self.bytes.data_type() {
            DataType::Binary => self.bytes.as_binary::<i32>().value(number),
            DataType::LargeBinary => self.bytes.as_binary::<i64>().value(number),
            DataType::BinaryView => self.bytes.as_binary_view().value(number),
            other => return Err(unusable(format!("the block holds {other}, and not encoded images"))),
        };
        match bytes {
            [] => Err(unusable("it is empty (0 bytes)")),
            bytes => Ok(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use arrow::array::{BinaryArray, BinaryViewArray, LargeBinaryArray, ListArray, StringArray, StructArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{Field, Fields};
    use std::sync::Arc;

    fn lists(lengths: &[usize], items: ArrayRef, nulls: Option<NullBuffer>) -> RecordBatch {
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
        let list: ArrayRef = Arc::new(ListArray::new(field, offsets, items, nulls));
        RecordBatch::try_from_iter_with_nullable([("images", list, true)]).unwrap()
    }

    fn structs(bytes: Vec<Option<&[u8]>>, paths: Vec<Option<&str>>, nulls: Option<NullBuffer>) -> ArrayRef {
        let fields = Fields::from(vec![
            Field::new("bytes", DataType::Binary, true),
            Field::new("path", DataType::Utf8, true),
        ]);
        let children: Vec<ArrayRef> =
            vec![Arc::new(BinaryArray::from_opt_vec(bytes)), Arc::new(StringArray::from(paths))];
        Arc::new(StructArray::new(fields, children, nulls))
    }

    fn read(rows: &RecordBatch, row: usize) -> Vec<Result<Vec<u8>>> {
        let images = EncodedImages::of(rows, "images", row).unwrap();
        (0..images.count()).map(|number| images.image(number).map(<[u8]>::to_vec)).collect()
    }

    fn bytes(rows: &RecordBatch, row: usize) -> Vec<Vec<u8>> {
        read(rows, row).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn images_of_every_type_are_read() {
        let values: Vec<&[u8]> = vec![b"first", b"second, longer than a view", b"third"];
        let types: [ArrayRef; 4] = [
            Arc::new(BinaryArray::from_vec(values.clone())),
            Arc::new(LargeBinaryArray::from_vec(values.clone())),
            Arc::new(BinaryViewArray::from_iter_values(values.clone())),
            structs(values.iter().copied().map(Some).collect(), vec![Some("a.jpg"), None, None], None),
        ];
        for items in types {
            let rows = lists(&[1, 0, 2], items, None);
            assert!(is_list_of_images(rows.column(0).data_type()));
            assert_eq!(bytes(&rows, 0), [values[0]]);
            assert!(bytes(&rows, 1).is_empty());
            assert_eq!(bytes(&rows, 2), [values[1], values[2]]);
            assert_eq!(bytes(&rows.slice(2, 1), 0), [values[1], values[2]], "of a slice");
        }
    }

    #[test]
    fn what_is_wrong_with_an_image_is_named() {
        let nulls = Some(NullBuffer::from(vec![true, true, false, true]));
        let items = structs(
            vec![Some(b"a"), None, Some(b"of another"), Some(b"")],
            vec![None, Some("dir/b.jpg"), None, None],
            nulls,
        );
        let rows = lists(&[4, 0], items, Some(NullBuffer::from(vec![true, false])));
        let problem = |found: &Result<Vec<u8>>| found.as_ref().unwrap_err().message().to_owned();
        let found = read(&rows, 0);
        assert_eq!(found[0].as_ref().unwrap(), b"a");
        let outside =
            "its bytes are null, and files outside of the data set are not read ('dir/b.jpg'); correct";
        assert!(problem(&found[1]).starts_with(outside), "{:?}", found[1]);
        assert_eq!(problem(&found[2]), "it is null; correct the file or set on_error=skip");
        assert!(problem(&found[3]).starts_with("it is empty (0 bytes)"));
        let null = EncodedImages::of(&rows, "images", 1).err().unwrap();
        assert_eq!(null.message(), "the list is null; correct the file or set on_error=skip");
        assert_eq!(null.kind(), ErrorKind::BadSample);
    }

    #[test]
    fn other_lists_are_not_lists_of_images() {
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let with = |name: &str| {
            let bytes = Field::new("bytes", DataType::Binary, true);
            DataType::Struct(Fields::from(vec![bytes, Field::new(name, DataType::Utf8, true)]))
        };
        assert!(is_list_of_images(&list(with("path"))));
        for other in [list(with("sampling_rate")), list(DataType::Utf8), list(list(DataType::Binary))] {
            assert!(!is_list_of_images(&other), "{other}");
        }
        assert!(!is_list_of_images(&DataType::Binary));
    }
}
