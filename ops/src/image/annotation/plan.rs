//! A compiled chain of boxes or keypoints: an implementation of the crate's `Plan` trait.

use std::sync::Arc;

use super::Annotation;
use super::motion::BeforeCrop;
use super::transform;
use crate::image::compile::{ImageOp, annotation_stages};
use crate::image::geometry::Rect;
use crate::image::stages::Stages;
use crate::number_list::NumberList;
use crate::plan::{Named, Plan, Row};
use crate::ragged::RaggedRow;
use crate::scratch::Scratch;
use crate::seed::{BoxCrop, SampleSeed};
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// Compiles the ops after an image's decoder for what follows the image.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(annotation: &Annotation, ops: &[Named<'_, dyn ImageOp>]) -> Result<Arc<dyn Plan>> {
    annotation.check().map_err(|error| error.context(annotation.name()))?;
    let numbers = |count| TensorSpec::new(DType::F32, [0, count], Layout::Tf).ragged(0);
    let output = match annotation {
        Annotation::Boxes(_) => numbers(4),
        Annotation::Keypoints(_) => numbers(3),
        Annotation::Transform => TensorSpec::new(DType::F32, [3, 3], Layout::Tf),
    };
    Ok(Arc::new(AnnotationPlan {
        annotation: annotation.clone(),
        stages: Arc::new(annotation_stages(ops)?),
        output,
    }))
}

struct AnnotationPlan {
    annotation: Annotation,
    stages: Arc<Stages>,
    output: TensorSpec,
}

impl Plan for AnnotationPlan {
    fn output(&self) -> &TensorSpec {
        &self.output
    }

    fn apply(&self, _: &[u8], _: SampleSeed, _: &mut Scratch, _: Row<'_>) -> Result<Warnings> {
        let name = self.annotation.name();
        Err(Error::config(format!("{name} are mapped together with an image, and not alone")))
    }

    fn annotates(&self) -> bool {
        true
    }

    fn annotate(
        &self,
        numbers: NumberList<'_>,
        image: [u32; 2],
        seed: SampleSeed,
        row: &mut RaggedRow,
    ) -> Result<()> {
        let motions = self.stages.motions(image.into(), seed)?;
        match &self.annotation {
            Annotation::Boxes(boxes) => {
                let kept = boxes.follow(numbers, image.into(), &motions)?;
                write(row, kept.iter().map(|(_, sides)| sides));
            }
            Annotation::Keypoints(keypoints) => {
                write(row, keypoints.follow(numbers, image.into(), &motions)?.iter())
            }
            Annotation::Transform => return Err(Error::bug("a matrix is not made of numbers")),
        }
        Ok(())
    }

    fn kept(&self, numbers: NumberList<'_>, image: [u32; 2], seed: SampleSeed) -> Result<Vec<usize>> {
        let Annotation::Boxes(boxes) = &self.annotation else {
            return Err(Error::bug("only boxes are dropped"));
        };
        let motions = self.stages.motions(image.into(), seed)?;
        let kept = boxes.follow(numbers, image.into(), &motions)?;
        Ok(kept.into_iter().map(|(index, _)| index).collect())
    }

    fn transform(&self, image: [u32; 2], seed: SampleSeed, out: &mut [u8]) -> Result<()> {
        if self.annotation != Annotation::Transform {
            return Err(Error::bug(format!("{} are not a matrix", self.annotation.name())));
        }
        let matrix = transform::of(&self.stages.motions(image.into(), seed)?);
        let places = out.as_chunks_mut::<4>().0.iter_mut();
        #[expect(clippy::cast_possible_truncation, reason = "single precision is meant")]
        places.zip(matrix.as_flattened()).for_each(|(place, value)| *place = (*value as f32).to_ne_bytes());
        Ok(())
    }

    fn box_crop(
        &self,
        numbers: NumberList<'_>,
        image: [u32; 2],
        seed: SampleSeed,
    ) -> Result<Option<BoxCrop>> {
        let Annotation::Boxes(boxes) = &self.annotation else {
            return Err(Error::bug("only boxes draw a crop"));
        };
        let Some(BeforeCrop { op, index, size, motions }) = self.stages.crop_by_boxes(image.into(), seed)?
        else {
            return Ok(None);
        };
        let moved = boxes.moved(numbers, image.into(), &motions)?;
        Ok(Some(match op.draw(size, &moved, &mut seed.op(index)) {
            Some(Rect { x, y, width, height }) => BoxCrop::Part { x, y, width, height },
            None => BoxCrop::Whole,
        }))
    }

    fn along(&self, dtype: DType) -> Result<Arc<dyn Plan>> {
        if !matches!(self.annotation, Annotation::Boxes(_)) {
            let name = self.annotation.name();
            return Err(Error::config(format!("columns can be along boxes, and not along {name}")));
        }
        Ok(Arc::new(Self {
            annotation: self.annotation.clone(),
            stages: self.stages.clone(),
            output: TensorSpec::new(dtype, [0], Layout::T).ragged(0),
        }))
    }
}

/// Writes the numbers of each box or point in single precision.
fn write<'a, const N: usize>(row: &mut RaggedRow, entries: impl ExactSizeIterator<Item = &'a [f64; N]>) {
    let length = entries.len();
    let values = entries.flatten();
    #[expect(clippy::cast_possible_truncation, reason = "single precision is meant")]
    row.f32s(length, length * N).iter_mut().zip(values).for_each(|(out, value)| *out = *value as f32);
}
