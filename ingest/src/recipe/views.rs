//! Views: which maps are of one decoded image, and what they may not be at the same time.

use super::spec::MapSpec;
use crate::run::views::MapViews;
use crate::{Error, Result};
use arrow::datatypes::Schema;
use feedstock_ops::image::{View, Views};
use std::sync::Arc;

/// Compiles the views among `maps`. Returns, for each map, the views of which it is one.
///
/// # Errors
/// `BadConfig` for views that differ in column or decoder, that are also something else (keyed, in a joint map), or have the
/// name of a column of `schema`, and for a chain that does not compile.
pub(super) fn compile(maps: &[MapSpec], schema: &Schema) -> Result<Vec<Option<Arc<MapViews>>>> {
    let mut compiled: Vec<Option<Arc<MapViews>>> = vec![None; maps.len()];
    for (index, map) in maps.iter().enumerate() {
        let Some(view) = &map.view else { continue };
        check(map, schema)?;
        if compiled[index].is_some() {
            continue;
        }
        let is_of = |other: &MapSpec| other.view.as_ref().is_some_and(|other| other.of == view.of);
        let members: Vec<usize> = (index..maps.len()).filter(|other| is_of(&maps[*other])).collect();
        let views = Arc::new(views_of(maps, members)?);
        for member in &views.maps {
            compiled[*member] = Some(views.clone());
        }
    }
    Ok(compiled)
}

fn views_of(maps: &[MapSpec], members: Vec<usize>) -> Result<MapViews> {
    let first = &maps[members[0]];
    let Some(decode) = first.ops.0.first() else {
        return Err(Error::config(format!(
            "the view '{}' has no ops; start with decode_image",
            first.output
        )));
    };
    let mut views = Vec::with_capacity(members.len());
    for member in &members {
        let map = &maps[*member];
        if map.column != first.column || map.ops.0.first() != Some(decode) {
            return Err(Error::config(format!(
                "the views '{}' and '{}' must be of one column, with the same decode_image",
                first.output, map.output
            )));
        }
        let mut view = View::new(&map.output, map.ops.0[1..].to_vec());
        view.count = map.view.as_ref().and_then(|view| view.count);
        views.push(view);
    }
    check_names(maps, &members)?;
    Ok(MapViews { views: Views::compile(decode, &views)?, maps: members })
}

/// # Errors
/// `BadConfig` for two of the maps that have one output.
fn check_names(maps: &[MapSpec], members: &[usize]) -> Result<()> {
    for (place, member) in members.iter().enumerate() {
        for other in &members[..place] {
            if maps[*other].output == maps[*member].output {
                check_outputs([&maps[*other], &maps[*member]])?;
            }
        }
    }
    Ok(())
}

/// # Errors
/// `BadConfig` for a view that is also something else, or has the name of a column.
fn check(map: &MapSpec, schema: &Schema) -> Result<()> {
    let MapSpec { column, output, .. } = map;
    if map.joint.is_some() || map.annotation.is_some() || map.along.is_some() {
        return Err(Error::config(format!(
            "the view '{output}' of '{column}' is in a joint map; masks, boxes and keypoints do not follow views, so map the image \
             alone"
        )));
    }
    if map.key.is_some() {
        return Err(Error::config(format!(
            "the view '{output}' of '{column}' has a key; views draw by their names, so leave the key out"
        )));
    }
    if schema.field_with_name(output).is_ok() {
        return Err(Error::config(format!(
            "the view '{output}' of '{column}' has the name of the column '{output}' of the data set; give the view another name, or \
             leave that column out with Dataset::columns"
        )));
    }
    Ok(())
}

/// Refuses two maps of one output if one of them is a view.
///
/// # Errors
/// `BadConfig`, naming both.
pub(super) fn check_outputs(maps: [&MapSpec; 2]) -> Result<()> {
    if maps.iter().all(|map| map.view.is_none()) {
        return Ok(());
    }
    let described = maps.map(|map| match map.view {
        Some(_) => format!("the view '{}' of '{}'", map.output, map.column),
        None => format!("the map of '{}' to '{}'", map.column, map.output),
    });
    let [first, second] = described;
    Err(Error::config(format!("{first} and {second} have one name; give the view another one")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::ViewSpec;
    use arrow::datatypes::{DataType, Field};

    fn view(output: &str, ops: &str, of: &str, count: Option<u32>) -> MapSpec {
        let view = Some(ViewSpec { of: of.to_owned(), count });
        MapSpec { view, ..MapSpec::new("image", output, ops.parse().unwrap()) }
    }

    fn schema() -> Schema {
        Schema::new(["image", "label"].map(|name| Field::new(name, DataType::BinaryView, false)).to_vec())
    }

    const CROP: &str = "decode_image,random_resized_crop:32";

    #[test]
    fn views_of_one_name_are_decoded_together_wherever_they_are() {
        let plain = MapSpec::new("image", "plain", CROP.parse().unwrap());
        let maps = [
            view("a", CROP, "x", None),
            plain,
            view("b", CROP, "y", None),
            view("c", "decode_image,resize:8x8,to_f32", "x", Some(3)),
        ];
        let compiled = compile(&maps, &schema()).unwrap();
        let of: Vec<_> =
            compiled.iter().map(|views| views.as_ref().map(|views| views.maps.clone())).collect();
        assert_eq!(of, [Some(vec![0, 3]), None, Some(vec![2]), Some(vec![0, 3])]);
        let views = compiled[3].as_ref().unwrap();
        assert!(views.begins(0) && !views.begins(3));
        assert_eq!(views.chain(3).unwrap().output().shape, [3, 8, 8, 3]);
        assert!(views.chain(1).unwrap_err().message().contains("map 1 is not one of the views"));
    }

    #[test]
    fn what_views_cannot_be_is_named() {
        let refusal = |maps: &[MapSpec]| match compile(maps, &schema()) {
            Ok(_) => panic!("it compiles"),
            Err(error) => error.message().to_owned(),
        };
        let a = view("a", CROP, "x", None);
        let other_column = MapSpec { column: "label".into(), ..view("b", CROP, "x", None) };
        let one_column = "the views 'a' and 'b' must be of one column, with the same decode_image";
        assert_eq!(refusal(&[a.clone(), other_column]), one_column);
        let gray = view("b", "decode_image:mode=gray,resize:8x8", "x", None);
        assert_eq!(refusal(&[a.clone(), gray]), one_column);
        let one_name =
            "the view 'a' of 'image' and the view 'a' of 'image' have one name; give the view another one";
        assert_eq!(refusal(&[a.clone(), a.clone()]), one_name);
        assert!(
            refusal(&[view("label", CROP, "x", None)])
                .starts_with("the view 'label' of 'image' has the name of the column 'label'")
        );
        let joint = MapSpec { joint: Some("j".into()), ..a.clone() };
        assert!(refusal(&[joint]).starts_with("the view 'a' of 'image' is in a joint map"));
        let keyed = MapSpec { key: Some("k".into()), ..a.clone() };
        assert!(refusal(&[keyed]).starts_with("the view 'a' of 'image' has a key"));
        assert_eq!(
            refusal(&[view("a", CROP, "x", Some(0))]),
            "view 'a': the number of images must be 1 … 1024; got 0"
        );
        let audio = "views are of an image; start with decode_image, not with decode_audio";
        assert!(refusal(&[view("a", "decode_audio", "x", None)]).ends_with(audio));
        assert!(
            refusal(&[view("a", "decode_image", "x", None)])
                .starts_with("view 'a': the chain has no fixed output size")
        );
        let plain = MapSpec::new("label", "a", CROP.parse().unwrap());
        assert_eq!(
            check_outputs([&plain, &a]).unwrap_err().message(),
            "the map of 'label' to 'a' and the view 'a' of 'image' have one name; give the view another one"
        );
        check_outputs([&plain, &plain]).unwrap();
    }
}
