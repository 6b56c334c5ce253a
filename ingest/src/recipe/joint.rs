//! Joint maps: which image the other maps follow, and along which boxes a column has its values.

use super::spec::MapSpec;
use crate::lists::{is_list_of_numbers, item_dtype};
use crate::{Error, Result};
use arrow::datatypes::{DataType, Schema};
use feedstock_ops::DType;
use feedstock_ops::image::Annotation;

impl MapSpec {
    /// True for a map that decodes encoded bytes or text, and does not follow another one.
    pub(super) fn decodes(&self) -> bool {
        self.annotation.is_none() && self.along.is_none()
    }
}

/// Returns the index of the first image of the joint map of `maps[index]`; `None` for that image and for a map that is alone.
///
/// # Errors
/// `BadConfig` for boxes or keypoints without an image.
pub(super) fn partner(maps: &[MapSpec], index: usize) -> Result<Option<usize>> {
    let map = &maps[index];
    let is_first = |other: &MapSpec| map.joint.is_some() && other.joint == map.joint && other.decodes();
    let first = maps.iter().position(is_first);
    if map.decodes() {
        return Ok(first.filter(|first| *first < index));
    }
    let is_image = |first: &usize| maps[*first].ops.0.first().is_some_and(|op| op.name() == "decode_image");
    match first.filter(is_image) {
        Some(first) => Ok(Some(first)),
        None => Err(Error::config(format!(
            "boxes, keypoints and transforms follow an image; put an image into the joint map of '{}'",
            map.output
        ))),
    }
}

/// Returns the index of the boxes along which `maps[index]` has its values.
///
/// # Errors
/// `BadConfig` if no earlier map of its joint map has these boxes, and for a map that is itself boxes or keypoints.
pub(super) fn boxes_of(maps: &[MapSpec], index: usize) -> Result<Option<usize>> {
    let map = &maps[index];
    let Some(boxes) = &map.along else { return Ok(None) };
    if map.annotation.is_some() {
        return Err(Error::config(format!(
            "'{}' is boxes or keypoints and also along '{boxes}'; a map is one of both",
            map.output
        )));
    }
    let is_it = |other: &MapSpec| {
        other.output == *boxes
            && other.joint == map.joint
            && matches!(other.annotation, Some(Annotation::Boxes(_)))
    };
    match maps[..index].iter().position(is_it) {
        Some(found) => Ok(Some(found)),
        None => Err(Error::config(format!(
            "'{}' is along the boxes '{boxes}', which no earlier map of its joint map has",
            map.output
        ))),
    }
}

/// The op that crops by boxes.
const BOX_CROP: &str = "random_iou_crop";

/// Returns the index of the boxes that draw the crop of `maps[index]`: the first ones of its joint map. `None` without such an op.
///
/// # Errors
/// `BadConfig`, naming the op, if its joint map has no boxes with the same op.
pub(super) fn crop_boxes(maps: &[MapSpec], index: usize) -> Result<Option<usize>> {
    let map = &maps[index];
    let crops = |map: &MapSpec| map.ops.0.iter().any(|op| op.name() == BOX_CROP);
    if !crops(map) {
        return Ok(None);
    }
    let draws = |other: &MapSpec| {
        let is_boxes = matches!(other.annotation, Some(Annotation::Boxes(_)));
        is_boxes && map.joint.is_some() && other.joint == map.joint && crops(other)
    };
    match maps.iter().position(draws) {
        Some(boxes) => Ok(Some(boxes)),
        None => Err(Error::config(format!(
            "{BOX_CROP}, in the map to '{}', crops by boxes; add fs.boxes(…) of a column, and map the image jointly with it",
            map.output
        ))),
    }
}

/// Returns whether an earlier map decodes the column of `maps[index]` too.
pub(super) fn is_further(maps: &[MapSpec], index: usize) -> bool {
    maps[..index].iter().any(|map| map.decodes() && map.column == maps[index].column)
}

/// Checks that a matrix is of a column that its joint map decodes.
///
/// # Errors
/// `BadConfig`, naming its column and that of the image, if it is not.
pub(super) fn check_transformed(maps: &[MapSpec], index: usize, image: Option<usize>) -> Result<()> {
    let map = &maps[index];
    let decodes = |other: &MapSpec| other.decodes() && other.joint == map.joint && other.column == map.column;
    if maps.iter().any(decodes) {
        return Ok(());
    }
    let image = image.map_or("", |image| maps[image].column.as_str());
    Err(Error::config(format!(
        "the transform '{}' is of column '{}', which its joint map does not decode; make it of '{image}'",
        map.output, map.column
    )))
}

/// Checks that a column of boxes or keypoints has lists of numbers.
///
/// # Errors
/// `BadConfig` if it has not, or does not exist.
pub(super) fn check_lists(schema: &Schema, column: &str, annotation: &Annotation) -> Result<()> {
    let what = format!("mapped as {}", annotation.name());
    match is_list_of_numbers(type_of(schema, column, &what)?) {
        true => Ok(()),
        false => Err(refusal(schema, column, &what, "lists of numbers")),
    }
}

/// Returns the tensor type of a column along boxes.
///
/// # Errors
/// `BadConfig` if it does not have lists of numbers or flags, or does not exist.
pub(super) fn dtype_along(schema: &Schema, column: &str) -> Result<DType> {
    let what = "along boxes";
    item_dtype(type_of(schema, column, what)?).ok_or_else(|| {
        refusal(schema, column, what, "flat lists of numbers or flags, with an item for each box")
    })
}

fn type_of<'a>(schema: &'a Schema, column: &str, what: &str) -> Result<&'a DataType> {
    match schema.field_with_name(column) {
        Ok(field) => Ok(field.data_type()),
        Err(_) => {
            let lists = schema.fields().iter().filter(|field| is_list_of_numbers(field.data_type()));
            let lists: Vec<&str> = lists.map(|field| field.name().as_str()).collect();
            Err(Error::config(format!(
                "column '{column}' cannot be {what}: it does not exist; this data set has lists of numbers in: {}",
                lists.join(", ")
            )))
        }
    }
}

fn refusal(schema: &Schema, column: &str, what: &str, needs: &str) -> Error {
    let held = schema.field_with_name(column).map(|field| field.data_type().to_string()).unwrap_or_default();
    Error::config(format!("column '{column}' cannot be {what}: it holds {held}, and must hold {needs}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_ops::image::{BoxFormat, Boxes, Keypoints};

    fn map(output: &str, ops: &str, joint: &str) -> MapSpec {
        let joint = (!joint.is_empty()).then(|| joint.to_owned());
        MapSpec { joint, ..MapSpec::new(output, output, ops.parse().unwrap()) }
    }

    fn boxes(output: &str, joint: &str) -> MapSpec {
        let annotation = Some(Annotation::Boxes(Boxes::new(BoxFormat::Xyxy)));
        MapSpec { annotation, ..map(output, "resize:8x8", joint) }
    }

    fn along(output: &str, boxes: &str, joint: &str) -> MapSpec {
        let (along, ops) = (Some(boxes.to_owned()), feedstock_ops::ChainSpec::default());
        MapSpec { along, ops, ..map(output, "resize:8x8", joint) }
    }

    #[test]
    fn boxes_follow_the_first_image_of_their_joint_map_wherever_it_is() {
        let image = "decode_image,resize:8x8";
        let maps = [
            map("alone", image, ""),
            map("other", image, "b"),
            boxes("boxes", "a"),
            along("labels", "boxes", "a"),
            map("image", image, "a"),
            map("mask", image, "a"),
            MapSpec { annotation: Some(Annotation::Keypoints(Keypoints::new())), ..boxes("points", "a") },
        ];
        let partners: Vec<_> = (0..maps.len()).map(|index| partner(&maps, index).unwrap()).collect();
        assert_eq!(partners, [None, None, Some(4), Some(4), None, Some(4), Some(4)]);
        assert_eq!(boxes_of(&maps, 3).unwrap(), Some(2));
        assert_eq!(boxes_of(&maps, 2).unwrap(), None);
    }

    #[test]
    fn the_first_boxes_of_a_joint_map_draw_its_crop() {
        let (image, ops) = ("decode_image,random_iou_crop,resize:8x8", "random_iou_crop,resize:8x8");
        let crops = |map: MapSpec| MapSpec { ops: ops.parse().unwrap(), ..map };
        let points = || MapSpec {
            annotation: Some(Annotation::Keypoints(Keypoints::new())),
            ..crops(boxes("points", "a"))
        };
        let maps = [
            map("plain", "decode_image,resize:8x8", ""),
            map("image", image, "a"),
            points(),
            crops(boxes("boxes", "a")),
            crops(boxes("ignored", "a")),
        ];
        let found: Vec<_> = (0..maps.len()).map(|index| crop_boxes(&maps, index).unwrap()).collect();
        assert_eq!(found, [None, Some(3), Some(3), Some(3), Some(3)]);

        for lone in [
            vec![map("image", image, "")],
            vec![map("image", image, "a"), points()],
            vec![map("image", image, "a"), crops(boxes("boxes", "b"))],
            vec![map("image", image, "a"), boxes("boxes", "a")],
        ] {
            let error = crop_boxes(&lone, 0).unwrap_err();
            assert_eq!(
                error.message(),
                "random_iou_crop, in the map to 'image', crops by boxes; add fs.boxes(…) of a column, and map the image \
                 jointly with it"
            );
        }
    }

    #[test]
    fn a_transform_is_of_a_decoded_column_and_no_earlier_map_of_it() {
        let image = "decode_image,resize:8x8";
        let of = |column: &str, joint: &str| MapSpec {
            annotation: Some(Annotation::Transform),
            column: column.to_owned(),
            ..map("matrix", "resize:8x8", joint)
        };
        let maps = [of("image", "a"), map("image", image, "a"), map("image", image, "")];
        assert_eq!([1, 2].map(|index| is_further(&maps, index)), [false, true]);
        assert!(check_transformed(&maps, 0, Some(1)).is_ok());
        for lost in [of("label", "a"), of("image", "b")] {
            let maps = [map("image", image, "a"), map("photo", image, "b"), lost];
            let image = partner(&maps, 2).unwrap();
            let error = check_transformed(&maps, 2, image).unwrap_err();
            let (column, image) = (&maps[2].column, &maps[image.unwrap()].column);
            assert_eq!(
                error.message(),
                format!(
                    "the transform 'matrix' is of column '{column}', which its joint map does not decode; make it of '{image}'"
                )
            );
        }
    }

    #[test]
    fn boxes_without_an_image_and_columns_without_boxes_are_refused() {
        let refuse = |maps: &[MapSpec], index| match partner(maps, index).and_then(|_| boxes_of(maps, index))
        {
            Ok(found) => panic!("{found:?}"),
            Err(error) => error.message().to_owned(),
        };
        let audio = map("audio", "decode_audio,resample:16000", "a");
        let image = map("image", "decode_image,resize:8x8", "a");
        let needs =
            "boxes, keypoints and transforms follow an image; put an image into the joint map of 'boxes'";
        assert_eq!(refuse(&[boxes("boxes", "")], 0), needs);
        assert_eq!(refuse(&[audio, boxes("boxes", "a")], 1), needs);
        assert_eq!(refuse(&[image.clone(), boxes("boxes", "b")], 1), needs);
        let lost = refuse(&[image.clone(), along("labels", "boxes", "a"), boxes("boxes", "a")], 1);
        assert_eq!(lost, "'labels' is along the boxes 'boxes', which no earlier map of its joint map has");
        let points =
            MapSpec { annotation: Some(Annotation::Keypoints(Keypoints::new())), ..boxes("points", "a") };
        assert!(
            refuse(&[image.clone(), points, along("labels", "points", "a")], 2)
                .contains("along the boxes 'points'")
        );
        let both = MapSpec { annotation: boxes("both", "a").annotation, ..along("both", "boxes", "a") };
        assert_eq!(
            refuse(&[image, boxes("boxes", "a"), both], 2),
            "'both' is boxes or keypoints and also along 'boxes'; a map is one of both"
        );
    }
}
