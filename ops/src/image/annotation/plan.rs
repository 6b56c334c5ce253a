//! A compiled chain of boxes or keypoints: an implementation of the crate's `Plan` trait.

use std::sync::Arc;

use super::Annotation;
use crate::image::compile::{ImageOp, annotation_stages};
use crate::image::stages::Stages;
use crate::number_list::NumberList;
use crate::plan::{Named, Plan, Row};
use crate::ragged::RaggedRow;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// Compiles the ops after an image's decoder for what follows the image.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(annotation: &Annotation, ops: &[Named<'_, dyn ImageOp>]) -> Result<Arc<dyn Plan>> {
    annotation.check().map_err(|error| error.context(annotation.name()))?;
    let numbers = match annotation {
        Annotation::Boxes(_) => 4,
        Annotation::Keypoints(_) => 3,
    };
    Ok(Arc::new(AnnotationPlan {
        annotation: annotation.clone(),
        stages: Arc::new(annotation_stages(ops)?),
        output: TensorSpec::new(DType::F32, [0, numbers], Layout::Tf).ragged(0),
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
        }
        Ok(())
    }

    fn kept(&self, numbers: NumberList<'_>, image: [u32; 2], seed: SampleSeed) -> Result<Vec<usize>> {
        let Annotation::Boxes(boxes) = &self.annotation else {
            return Err(Error::bug("keypoints are all kept"));
        };
        let motions = self.stages.motions(image.into(), seed)?;
        let kept = boxes.follow(numbers, image.into(), &motions)?;
        Ok(kept.into_iter().map(|(index, _)| index).collect())
    }

    fn along(&self, dtype: DType) -> Result<Arc<dyn Plan>> {
        if matches!(self.annotation, Annotation::Keypoints(_)) {
            return Err(Error::config("columns can be along boxes, and not along keypoints"));
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
