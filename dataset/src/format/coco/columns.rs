//! The columns of COCO's images: numbers and lists of what was annotated.

use super::images::Images;
use super::json::Annotation;
use crate::catalog::columns::{bug, label_field};
use crate::{Error, Result};
use arrow::array::{
    ArrayRef, FixedSizeListBuilder, Float32Builder, Int64Array, Int64Builder, ListArray, ListBuilder,
    StringArray, StringBuilder,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use std::sync::Arc;

/// What the annotations state, and so which columns there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stated {
    boxes: bool,
    areas: bool,
    crowds: bool,
    keypoints: bool,
    captions: bool,
}

impl Stated {
    /// Checks that annotations agree in what they state, and that numbers are those of boxes.
    fn by(annotations: &[Annotation], about: &dyn Fn(String) -> Error) -> Result<Self> {
        let any = |has: fn(&Annotation) -> bool| annotations.iter().any(has);
        let captions = any(|a| a.caption.is_some());
        let boxes = any(|a| a.bbox.is_some()) || !captions;
        let stated = Self {
            boxes,
            areas: boxes && (annotations.is_empty() || any(|a| a.area.is_some())),
            crowds: boxes && (annotations.is_empty() || any(|a| a.iscrowd.is_some())),
            keypoints: any(|a| a.keypoints.is_some()),
            captions,
        };
        for annotation in annotations {
            if let Err(problem) = stated.check(annotation) {
                let (id, image) = (annotation.id.unwrap_or_default(), annotation.image_id);
                return Err(about(format!("the annotation {id} of the image {image}: {problem}")));
            }
        }
        Ok(stated)
    }

    fn check(&self, annotation: &Annotation) -> Result<(), String> {
        let required = [
            (self.boxes, annotation.bbox.is_some(), "bbox"),
            (self.boxes, annotation.category_id.is_some(), "category_id"),
            (self.areas, annotation.area.is_some(), "area"),
            (self.crowds, annotation.iscrowd.is_some(), "iscrowd"),
            (self.captions && !self.boxes, annotation.caption.is_some(), "caption"),
        ];
        if let Some((.., name)) = required.into_iter().find(|(needed, has, _)| *needed && !has) {
            return Err(format!("it has no {name}"));
        }
        if let Some(found) = annotation.bbox {
            let [_, _, width, height] = found.numbers;
            if found.found != 4 {
                return Err(format!("its bbox has {} numbers; 4 are needed", found.found));
            }
            if !found.numbers.iter().all(|number| number.is_finite()) {
                return Err("its bbox has a number beyond the greatest float32".to_owned());
            }
            if width < 0.0 || height < 0.0 {
                return Err(format!("its bbox has a negative width or height: {width} × {height}"));
            }
        }
        if let Some(area) = annotation.area.filter(|area| !area.is_finite() || *area < 0.0) {
            return Err(format!("its area must be a number ≥ 0; got {area}"));
        }
        match &annotation.keypoints {
            Some(numbers) if !numbers.len().is_multiple_of(3) => {
                Err(format!("its keypoints are {} numbers, not 3 a point", numbers.len()))
            }
            Some(numbers) if !numbers.iter().all(|number| number.is_finite()) => {
                Err("its keypoints have a number beyond the greatest float32".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Makes the metadata columns of all images.
pub(super) fn columns(images: &Images, about: &dyn Fn(String) -> Error) -> Result<RecordBatch> {
    let stated = Stated::by(&images.annotations, about)?;
    let mut made = Columns { lists: Lists::of(images, about)?, fields: Vec::new(), columns: Vec::new() };
    let all = || images.images.iter();
    made.push("image_id", false, Arc::new(Int64Array::from_iter_values(all().map(|image| image.id))));
    let names = StringArray::from_iter_values(all().map(|image| &image.file_name));
    made.push("file_name", false, Arc::new(names));
    made.push("width", true, Arc::new(all().map(|image| image.width).collect::<Int64Array>()));
    made.push("height", true, Arc::new(all().map(|image| image.height).collect::<Int64Array>()));
    if stated.boxes {
        let mut boxes = FixedSizeListBuilder::new(Float32Builder::new(), 4);
        for found in made.lists.annotations().filter_map(|annotation| annotation.bbox) {
            boxes.values().append_slice(&found.numbers);
            boxes.append(true);
        }
        made.push_list("boxes", Arc::new(boxes.finish()), None)?;
        let categories = made.lists.annotations().map(|annotation| annotation.category_id);
        let categories = categories.collect::<Int64Array>();
        made.push_list("category_id", Arc::new(categories), images.class_names.as_deref())?;
    }
    if stated.areas {
        let mut areas = Float32Builder::new();
        made.lists.annotations().for_each(|annotation| areas.append_option(annotation.area));
        made.push_list("area", Arc::new(areas.finish()), None)?;
    }
    if stated.crowds {
        let mut crowds = Int64Builder::new();
        let flags = made.lists.annotations().map(|annotation| annotation.iscrowd);
        flags.for_each(|flag| crowds.append_option(flag.map(|flag| i64::from(flag.0))));
        made.push_list("iscrowd", Arc::new(crowds.finish()), None)?;
    }
    if stated.keypoints {
        let mut points = ListBuilder::new(Float32Builder::new());
        for annotation in made.lists.annotations() {
            points.values().append_slice(annotation.keypoints.as_deref().unwrap_or_default());
            points.append(true);
        }
        made.push_list("keypoints", Arc::new(points.finish()), None)?;
    }
    if stated.captions {
        let mut captions = StringBuilder::new();
        made.lists.annotations().for_each(|annotation| captions.append_option(annotation.caption.as_deref()));
        made.push_list("captions", Arc::new(captions.finish()), None)?;
    }
    RecordBatch::try_new(Arc::new(Schema::new(made.fields)), made.columns).map_err(bug)
}

/// The annotations of one image after another.
struct Lists<'a> {
    images: &'a Images,
    sorted: Vec<usize>,
    offsets: OffsetBuffer<i32>,
}

impl<'a> Lists<'a> {
    fn of(images: &'a Images, about: &dyn Fn(String) -> Error) -> Result<Self> {
        let of_images = images.annotations_of_images();
        if i32::try_from(images.annotations.len()).is_err() {
            return Err(about("it has more than 2^31 annotations".to_owned()));
        }
        let offsets = OffsetBuffer::from_lengths(of_images.iter().map(Vec::len));
        Ok(Self { images, sorted: of_images.into_iter().flatten().collect(), offsets })
    }

    fn annotations(&self) -> impl Iterator<Item = &'a Annotation> {
        let images = self.images;
        self.sorted.iter().map(move |index| &images.annotations[*index])
    }
}

/// The columns made so far.
struct Columns<'a> {
    lists: Lists<'a>,
    fields: Vec<FieldRef>,
    columns: Vec<ArrayRef>,
}

impl Columns<'_> {
    fn push(&mut self, name: &str, is_nullable: bool, column: ArrayRef) {
        self.fields.push(Arc::new(Field::new(name, column.data_type().clone(), is_nullable)));
        self.columns.push(column);
    }

    /// Adds a column of lists, whose items are those of the sorted annotations.
    fn push_list(&mut self, name: &str, items: ArrayRef, class_names: Option<&[String]>) -> Result<()> {
        let item = Arc::new(Field::new_list_field(items.data_type().clone(), true));
        let list = ListArray::try_new(item.clone(), self.lists.offsets.clone(), items, None).map_err(bug)?;
        self.fields.push(label_field(&Field::new(name, DataType::List(item), false), class_names)?);
        self.columns.push(Arc::new(list));
        Ok(())
    }
}
