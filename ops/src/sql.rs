//! The ops as DataFusion scalar functions, so that images can be queried in SQL:
//!
//! ```sql
//! SELECT image_format(image['bytes']), count(*) FROM catalog WHERE image_width(image['bytes']) > 64 GROUP BY 1
//! ```
//! | function | result |
//! |---|---|
//! | `image_width(bytes)`, `image_height(bytes)` | Int64: the stored size, from the header alone |
//! | `image_format(bytes)` | Utf8: `jpeg`, `png`, `webp` |
//! | `decode_image(bytes)` | Struct {height: Int64, width: Int64, pixels: Binary}: RGB, height × width × 3 |
//!
//! They take Binary, LargeBinary or BinaryView; null gives null. Bytes that are no image fail the query; the `try_`
//! form of each function (`try_image_width` …) gives null instead.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, Int64Builder, NullBufferBuilder, StringArray,
    StructArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{DataFusionError, Result as SqlResult, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

use crate::image::{DecodeImage, ImageFormat, decode_rgb, read_header};
use feedstock_base::Result;

/// The image functions, to be registered with a `SessionContext`.
///
/// ```
/// let functions = feedstock_ops::sql_functions();
/// let names: Vec<&str> = functions.iter().map(|function| function.name()).collect();
/// assert_eq!(names[..4], ["image_width", "try_image_width", "image_height", "try_image_height"]);
/// ```
pub fn sql_functions() -> Vec<Arc<ScalarUDF>> {
    [What::Width, What::Height, What::Format, What::Decode]
        .into_iter()
        .flat_map(|what| [false, true].map(|tolerant| PictureFunction::new(what, tolerant)))
        .map(|function| Arc::new(ScalarUDF::new_from_impl(function)))
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Width,
    Height,
    Format,
    Decode,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PictureFunction {
    what: What,
    /// Null instead of an error.
    tolerant: bool,
    signature: Signature,
}

impl PictureFunction {
    fn new(what: What, tolerant: bool) -> Self {
        let types = [DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
        let exact = types.map(|data_type| TypeSignature::Exact(vec![data_type]));
        Self { what, tolerant, signature: Signature::one_of(exact.into(), Volatility::Immutable) }
    }

    /// `of` for each image; nulls stay, and become more where errors are tolerated.
    fn each<T>(&self, pictures: &ArrayRef, of: impl Fn(&[u8]) -> Result<T>) -> SqlResult<Vec<Option<T>>> {
        let one = |(row, bytes): (usize, Option<&[u8]>)| match bytes.map(&of).transpose() {
            Ok(value) => Ok(value),
            Err(_) if self.tolerant => Ok(None),
            Err(error) => Err(DataFusionError::External(Box::new(
                error.context(format!("{}, row {row} of the batch", self.name())),
            ))),
        };
        match pictures.data_type() {
            DataType::Binary => pictures.as_binary::<i32>().iter().enumerate().map(one).collect(),
            DataType::LargeBinary => pictures.as_binary::<i64>().iter().enumerate().map(one).collect(),
            DataType::BinaryView => pictures.as_binary_view().iter().enumerate().map(one).collect(),
            other => exec_err!("{} takes binary, not {other}", self.name()),
        }
    }

    fn run(&self, pictures: &ArrayRef) -> SqlResult<ArrayRef> {
        Ok(match self.what {
            What::Width => Arc::new(Int64Array::from(
                self.each(pictures, |bytes| Ok(i64::from(read_header(bytes)?.width)))?,
            )),
            What::Height => Arc::new(Int64Array::from(
                self.each(pictures, |bytes| Ok(i64::from(read_header(bytes)?.height)))?,
            )),
            What::Format => Arc::new(StringArray::from(self.each(pictures, |bytes| {
                Ok(match read_header(bytes)?.format {
                    ImageFormat::Jpeg => "jpeg",
                    ImageFormat::Png => "png",
                    ImageFormat::WebP => "webp",
                })
            })?)),
            What::Decode => {
                let op = DecodeImage::new();
                let decoded = self.each(pictures, |bytes| decode_rgb(bytes, &op))?;
                let (mut heights, mut widths) = (Int64Builder::new(), Int64Builder::new());
                let (mut pixels, mut nulls) = (BinaryBuilder::new(), NullBufferBuilder::new(decoded.len()));
                for picture in decoded {
                    nulls.append(picture.is_some());
                    let (size, rgb) = picture.unzip();
                    heights.append_option(size.map(|size| i64::from(size.height)));
                    widths.append_option(size.map(|size| i64::from(size.width)));
                    pixels.append_option(rgb);
                }
                let columns: Vec<ArrayRef> =
                    vec![Arc::new(heights.finish()), Arc::new(widths.finish()), Arc::new(pixels.finish())];
                Arc::new(StructArray::try_new(picture_fields(), columns, nulls.finish())?)
            }
        })
    }
}

fn picture_fields() -> Fields {
    Fields::from(vec![
        Field::new("height", DataType::Int64, true),
        Field::new("width", DataType::Int64, true),
        Field::new("pixels", DataType::Binary, true),
    ])
}

impl ScalarUDFImpl for PictureFunction {
    fn name(&self) -> &str {
        match (self.what, self.tolerant) {
            (What::Width, false) => "image_width",
            (What::Width, true) => "try_image_width",
            (What::Height, false) => "image_height",
            (What::Height, true) => "try_image_height",
            (What::Format, false) => "image_format",
            (What::Format, true) => "try_image_format",
            (What::Decode, false) => "decode_image",
            (What::Decode, true) => "try_decode_image",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> SqlResult<DataType> {
        Ok(match self.what {
            What::Width | What::Height => DataType::Int64,
            What::Format => DataType::Utf8,
            What::Decode => DataType::Struct(picture_fields()),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> SqlResult<ColumnarValue> {
        let [pictures] = args.args.as_slice() else {
            return exec_err!("{} takes one argument", self.name());
        };
        match pictures {
            ColumnarValue::Array(pictures) => Ok(ColumnarValue::Array(self.run(pictures)?)),
            ColumnarValue::Scalar(picture) => {
                let result = self.run(&picture.to_array()?)?;
                Ok(ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&result, 0)?))
            }
        }
    }
}
