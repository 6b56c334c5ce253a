//! The samples of a file of annotations: its images, sorted by file name, each with its annotations.

use super::json::{Annotation, Category, File, Image};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};

/// Greatest id of a category that is an index into class names: LVIS has 1,203, Objects365 365.
const MAX_CLASS: usize = 1 << 16;

/// The images of a file, checked.
#[derive(Debug)]
pub(super) struct Images {
    /// Sorted by file name.
    pub(super) images: Vec<Image>,
    pub(super) annotations: Vec<Annotation>,
    /// For each annotation, the index of its image.
    image_of: Vec<u32>,
    /// Names by id of a category; empty where there is no category. `None` if the file names none, or its ids are not
    /// indices.
    pub(super) class_names: Option<Vec<String>>,
}

impl Images {
    /// Checks the ids of a file: each is there once, and annotations are of images and categories that exist. `about` returns
    /// an error about the file.
    pub(super) fn of(file: File, about: &dyn Fn(String) -> Error) -> Result<Self> {
        let File { mut images, annotations, categories } = file;
        if images.is_empty() {
            return Err(about("it has no images: the data set is empty".to_owned()));
        }
        images.sort_by(|a, b| (name_of(a), a.id).cmp(&(name_of(b), b.id)));
        if let Some(pair) = images.windows(2).find(|pair| name_of(&pair[0]) == name_of(&pair[1])) {
            let (one, other, name) = (&pair[0], &pair[1], &pair[0].file_name);
            return Err(about(format!(
                "the images {} and {} have the same file_name `{name}`",
                one.id, other.id
            )));
        }
        let mut by_id: HashMap<i64, u32> = HashMap::with_capacity(images.len());
        for (image, index) in images.iter().zip(0u32..) {
            if let Some(other) = by_id.insert(image.id, index) {
                let other = &images[other as usize].file_name;
                let own = &image.file_name;
                return Err(about(format!(
                    "the image id {} is there twice: `{other}` and `{own}`",
                    image.id
                )));
            }
        }
        let classes = ids_of(&categories, about)?;
        let mut ids = HashSet::with_capacity(annotations.len());
        let mut image_of = Vec::with_capacity(annotations.len());
        for (number, annotation) in annotations.iter().enumerate() {
            let id = annotation.id.ok_or_else(|| without_id(annotation, number, about))?;
            if !ids.insert(id) {
                return Err(about(format!("the annotation id {id} is there twice")));
            }
            let Some(image) = by_id.get(&annotation.image_id) else {
                let image = annotation.image_id;
                return Err(about(format!(
                    "the annotation {id} is of the image {image}, which is not in its images"
                )));
            };
            if let Some(category) =
                annotation.category_id.filter(|id| !classes.is_empty() && !classes.contains(id))
            {
                return Err(about(format!(
                    "the annotation {id} of the image {} has the category {category}, which is not in its categories",
                    annotation.image_id
                )));
            }
            image_of.push(*image);
        }
        Ok(Self { images, annotations, image_of, class_names: class_names(categories) })
    }

    /// Removes the images for which `keep` is false, with their annotations.
    pub(super) fn retain(&mut self, keep: &[bool]) {
        let mut next = 0;
        let renumbered: Vec<Option<u32>> = keep
            .iter()
            .map(|keep| {
                let own = keep.then_some(next);
                next += u32::from(*keep);
                own
            })
            .collect();
        let mut kept = keep.iter();
        self.images.retain(|_| kept.next() == Some(&true));
        let image_of = std::mem::take(&mut self.image_of);
        let mut images = image_of.iter().map(|image| renumbered[*image as usize]);
        self.annotations.retain(|_| images.next().flatten().is_some());
        self.image_of = image_of.iter().filter_map(|image| renumbered[*image as usize]).collect();
    }

    /// Returns the indices of the annotations of each image, in the sequence of the file.
    pub(super) fn annotations_of_images(&self) -> Vec<Vec<usize>> {
        let mut of_images = vec![Vec::new(); self.images.len()];
        for (annotation, image) in self.image_of.iter().enumerate() {
            of_images[*image as usize].push(annotation);
        }
        of_images
    }
}

/// Returns the name of an image's file below the data set's folder.
pub(super) fn name_of(image: &Image) -> &str {
    image.file_name.trim_start_matches("./")
}

fn without_id(annotation: &Annotation, number: usize, about: &dyn Fn(String) -> Error) -> Error {
    match &annotation.segments_info {
        Some(_) => about("it has panoptic segmentations, which are not read".to_owned()),
        None => about(format!(
            "the annotation at index {number}, of the image {}, has no id",
            annotation.image_id
        )),
    }
}

fn ids_of(categories: &[Category], about: &dyn Fn(String) -> Error) -> Result<HashSet<i64>> {
    let mut ids = HashSet::new();
    match categories.iter().find(|category| !ids.insert(category.id)) {
        Some(twice) => Err(about(format!("the category id {} is there twice", twice.id))),
        None => Ok(ids),
    }
}

fn class_names(categories: Vec<Category>) -> Option<Vec<String>> {
    let indices = categories.iter().map(|category| usize::try_from(category.id).ok());
    let most = indices.collect::<Option<Vec<_>>>()?.into_iter().max().filter(|most| *most <= MAX_CLASS)?;
    let mut names = vec![String::new(); most + 1];
    for category in categories {
        let index = usize::try_from(category.id).ok()?;
        names[index] = category.name;
    }
    Some(names)
}
