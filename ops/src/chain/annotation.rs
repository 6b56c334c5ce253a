//! Chains of boxes and keypoints: what follows an image through the ops after its decoder.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Chain, panicked};
use crate::number_list::NumberList;
use crate::ragged::RaggedRow;
use crate::seed::SampleSeed;
use crate::spec::DType;
use feedstock_base::Result;

#[cfg(feature = "image")]
impl super::ChainSpec {
    /// Compiles these ops for boxes or keypoints that follow an image. The ops are those of the image without its decoder, so an
    /// op draws as in the image's chain, in which it is one place further back.
    ///
    /// ```
    /// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
    /// use feedstock_ops::{ChainSpec, NumberList, RaggedRow, SampleSeed};
    ///
    /// let boxes = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
    /// let chain = ChainSpec::parse("center_crop:20,horizontal_flip:1")?.compile_annotation(&boxes)?;
    /// let image = [40, 60]; // height, width: the crop begins at x = 20 and y = 10
    /// let given = NumberList { values: &[0.0, 0.0, 8.0, 8.0, 22.0, 15.0, 30.0, 50.0], each: Some(4) };
    /// let mut row = RaggedRow::new();
    /// chain.annotate(given, image, SampleSeed::new(7, 0, 0), &mut row)?;
    /// let expected = [10.0_f32, 5.0, 18.0, 20.0].map(f32::to_ne_bytes); // the first box is outside
    /// assert_eq!((row.length(), row.bytes()), (1, expected.as_flattened()));
    ///
    /// let error = ChainSpec::parse("resize:20x20,rand_augment")?.compile_annotation(&boxes).unwrap_err();
    /// assert!(error.message().starts_with("op 2 (rand_augment): moves pixels of the image"));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig`, naming the op and the reason: also for ops that move pixels in a way that boxes cannot follow.
    pub fn compile_annotation(&self, annotation: &crate::image::Annotation) -> Result<Chain> {
        let plan = crate::op::compile_annotation(&self.0, annotation)?;
        Ok(Chain { plan, salt: crate::seed::Salt::default() })
    }
}

impl Chain {
    /// Returns true for a chain of boxes or keypoints, or of a column along boxes: it reads numbers and not encoded bytes.
    pub fn annotates(&self) -> bool {
        self.plan.annotates()
    }

    /// Moves the boxes or keypoints of one sample as the chain of `image`, `[height, width]`, moves its pixels for the same `seed`.
    ///
    /// # Errors
    /// `BadSample` for numbers that are not boxes or points (another count, NaN, infinity, too large for f32), and for an
    /// image that an op cannot work on.
    ///
    /// # Panics
    /// Where the chain does not annotate, or is of a column along boxes: that is a defect of the caller.
    pub fn annotate(
        &self,
        numbers: NumberList<'_>,
        image: [u32; 2],
        seed: SampleSeed,
        out: &mut RaggedRow,
    ) -> Result<()> {
        assert!(
            self.annotates() && self.output().shape.len() == 2,
            "the chain is not one of boxes or keypoints"
        );
        let seed = self.seed(seed);
        caught(|| self.plan.annotate(numbers, image, seed, out))
    }

    /// Returns the indices of the boxes that [`annotate`](Self::annotate) keeps, in order.
    ///
    /// ```
    /// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
    /// use feedstock_ops::{ChainSpec, DType, NumberList, SampleSeed};
    ///
    /// let boxes = Annotation::Boxes(Boxes::new(BoxFormat::Xywh));
    /// let labels = ChainSpec::parse("center_crop:20")?.compile_annotation(&boxes)?.along(DType::I64)?;
    /// let given = NumberList { values: &[0.0, 0.0, 8.0, 8.0, 22.0, 15.0, 8.0, 35.0], each: None };
    /// assert_eq!(labels.kept(given, [40, 60], SampleSeed::new(7, 0, 0))?, [1]);
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`annotate`](Self::annotate); `Bug` for a chain without boxes.
    pub fn kept(&self, boxes: NumberList<'_>, image: [u32; 2], seed: SampleSeed) -> Result<Vec<usize>> {
        let seed = self.seed(seed);
        caught(|| self.plan.kept(boxes, image, seed))
    }

    /// Returns the chain of a column that has one value of type `dtype` for each box: its output is the values of the boxes that are
    /// kept, and [`kept`](Self::kept) returns which these are.
    ///
    /// # Errors
    /// `BadConfig` if this is not a chain of boxes.
    pub fn along(&self, dtype: DType) -> Result<Self> {
        Ok(Self { plan: self.plan.along(dtype)?, salt: self.salt })
    }
}

/// Turns a panic into a bad sample.
fn caught<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

#[cfg(all(test, feature = "image"))]
mod tests {
    use super::*;
    use crate::ChainSpec;
    use crate::image::{Annotation, BoxFormat, Boxes};

    fn boxes(ops: &str, corners: [f64; 4]) -> Vec<f32> {
        let annotation = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
        let chain = ChainSpec::parse(ops).unwrap().compile_annotation(&annotation).unwrap();
        let mut row = RaggedRow::new();
        let given = NumberList { values: &corners, each: None };
        chain.annotate(given, [60, 110], SampleSeed::new(7, 0, 0), &mut row).unwrap();
        row.bytes().as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    #[test]
    fn an_op_that_was_not_drawn_cuts_nothing_off() {
        let outside = [90.0, 10.0, 120.0, 30.0];
        // As torchvision, whose `RandomZoomOut` with p = 0 and padding to the right leave the box.
        assert_eq!(boxes("random_zoom_out:0,pad_to:200", outside), [90.0, 10.0, 120.0, 30.0]);
        assert_eq!(boxes("random_crop:60x110,pad_to:200", outside), [90.0, 10.0, 120.0, 30.0]);
        assert_eq!(boxes("random_crop:60x110,pad:0/0/0/5", outside), [90.0, 10.0, 110.0, 30.0]);
    }

    #[test]
    fn crops_and_pads_that_change_no_size_cut_boxes_off() {
        // The results of torchvision's `CenterCrop((60, 110))`, `Pad(0)` and `RandomZoomOut` of 1 × the size, each with `Pad(10)`.
        for op in ["center_crop:60x110", "pad:0", "pad_to:60x110", "random_zoom_out:1:side_range=1/1"] {
            assert_eq!(
                boxes(&format!("{op},pad:10,resize:80x130"), [-5.0, 10.0, 20.0, 30.0]),
                [10.0, 20.0, 30.0, 40.0],
                "{op}"
            );
        }
        assert_eq!(boxes("random_crop:60x110,pad:10", [-5.0, 10.0, 20.0, 30.0]), [5.0, 20.0, 30.0, 40.0]);
    }

    #[test]
    fn a_colour_of_padding_does_not_concern_boxes() {
        assert_eq!(boxes("pad:3:fill=1/2/3,resize:66x116", [5.0, 5.0, 9.0, 9.0]), [8.0, 8.0, 12.0, 12.0]);
    }
}
