//! Maps of columns of lists of images, and what they may not be at the same time.

use super::spec::MapSpec;
use crate::images::is_list_of_images;
use crate::{Error, Result};
use arrow::datatypes::Schema;
use feedstock_ops::Chain;

/// Returns whether `column` has lists of images.
pub(super) fn has_lists(column: &str, schema: &Schema) -> bool {
    schema.field_with_name(column).is_ok_and(|field| is_list_of_images(field.data_type()))
}

/// Checks that maps of lists of images are nothing else, and that only they have a limit on images.
///
/// # Errors
/// `BadConfig`, naming the map.
pub(super) fn check(maps: &[MapSpec], schema: &Schema) -> Result<()> {
    for map in maps {
        let MapSpec { column, output, .. } = map;
        if !has_lists(column, schema) {
            if map.max_images.is_some() {
                return Err(Error::config(format!(
                    "max_images is for columns of lists of images, and '{column}', which is mapped to '{output}', has none; leave \
                     it out"
                )));
            }
            continue;
        }
        if map.view.is_some() {
            return Err(Error::config(format!(
                "the view '{output}' is of '{column}', which has lists of images; views are of one image, so map the list once for \
                 each crop"
            )));
        }
        if map.joint.is_some() || map.annotation.is_some() || map.along.is_some() {
            return Err(Error::config(format!(
                "'{column}' has lists of images, and a joint map takes one image of each sample; map '{column}' alone"
            )));
        }
    }
    Ok(())
}

/// Returns the chain of a map: of lists of images if its column has them, otherwise `chain`.
///
/// # Errors
/// `BadConfig`, naming the column, for a chain of anything else than images.
pub(super) fn chain_of(map: &MapSpec, schema: &Schema, chain: Chain) -> Result<Chain> {
    if !has_lists(&map.column, schema) {
        return Ok(chain);
    }
    let lists = chain.of_lists(map.max_images.unwrap_or(Chain::MAX_IMAGES));
    lists.map_err(|error| error.context(format!("'{}', which has lists of encoded bytes", map.column)))
}

/// The error for lists of images of which functions on workers would get one row each.
pub(super) fn with_functions(output: &str) -> Error {
    Error::config(format!(
        "map_rows: '{output}' has lists of images, which functions of rows do not get; use map_python, which gets whole batches"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::ViewSpec;
    use arrow::datatypes::{DataType, Field};
    use std::sync::Arc;

    const OPS: &str = "decode_image,resize:8x8";

    fn schema() -> Schema {
        let item = Arc::new(Field::new("item", DataType::Binary, true));
        let images = Field::new("images", DataType::List(item), true);
        Schema::new(vec![images, Field::new("image", DataType::BinaryView, true)])
    }

    fn map(column: &str) -> MapSpec {
        MapSpec::new(column, "x", OPS.parse().unwrap())
    }

    fn compiled(map: &MapSpec) -> Result<Chain> {
        chain_of(map, &schema(), map.ops.compile()?)
    }

    #[test]
    fn the_type_of_the_column_makes_a_chain_of_lists() {
        let list = compiled(&map("images")).unwrap();
        assert_eq!((list.reads_lists(), &list.output().shape[..]), (true, &[0, 8, 8, 3][..]));
        let one = compiled(&map("image")).unwrap();
        assert_eq!((one.reads_lists(), &one.output().shape[..]), (false, &[8, 8, 3][..]));
        check(&[map("images"), map("image"), MapSpec { max_images: Some(3), ..map("images") }], &schema())
            .unwrap();
    }

    #[test]
    fn what_lists_cannot_be_is_named() {
        let refusal = |map: MapSpec| check(&[map], &schema()).unwrap_err().message().to_owned();
        let view = Some(ViewSpec { of: "v".into(), count: None });
        assert!(
            refusal(MapSpec { view, ..map("images") })
                .starts_with("the view 'x' is of 'images', which has lists of images")
        );
        assert!(
            refusal(MapSpec { joint: Some("j".into()), ..map("images") })
                .starts_with("'images' has lists of images, and a joint map takes one image")
        );
        assert!(
            refusal(MapSpec { max_images: Some(3), ..map("image") })
                .starts_with("max_images is for columns of lists of images, and 'image'")
        );
        let none = MapSpec { max_images: Some(0), ..map("images") };
        let message = "'images', which has lists of encoded bytes: max_images must be at least 1; got 0";
        assert_eq!(compiled(&none).unwrap_err().message(), message);
        let audio = MapSpec { ops: "decode_audio,resample:16000".parse().unwrap(), ..map("images") };
        assert!(compiled(&audio).unwrap_err().message().contains("only images can be in lists"));
    }
}
