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
    /// Returns true for a chain of boxes, keypoints or a matrix, or of a column along boxes: it does not read encoded bytes.
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
            self.annotates() && self.output().is_ragged() && self.output().shape.len() == 2,
            "the chain is not one of boxes or keypoints"
        );
        let seed = self.seed(seed);
        caught(|| self.plan.annotate(numbers, image, seed, out))
    }

    /// Writes the matrix of what the chain of `image`, `[height, width]`, does to its pixels for the same `seed`, for a chain of
    /// [`Annotation::Transform`](crate::image::Annotation::Transform).
    ///
    /// ```
    /// use feedstock_ops::image::Annotation;
    /// use feedstock_ops::{ChainSpec, SampleSeed};
    ///
    /// let ops = "resize:20x30,horizontal_flip:1,pad:5,center_crop:20x30";
    /// let chain = ChainSpec::parse(ops)?.compile_annotation(&Annotation::Transform)?;
    /// let mut row = [0; 36];
    /// chain.transform([40, 60], SampleSeed::new(7, 0, 0), &mut row)?; // half the size, mirrored
    /// let matrix: Vec<f32> = row.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
    /// assert_eq!(matrix, [-0.5, 0.0, 30.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadSample` for an image that an op cannot work on.
    ///
    /// # Panics
    /// Where the chain is not one of a matrix, or `out` does not have 36 bytes: that is a defect of the caller.
    pub fn transform(&self, image: [u32; 2], seed: SampleSeed, out: &mut [u8]) -> Result<()> {
        assert!(self.annotates() && !self.output().is_ragged(), "the chain is not one of a matrix");
        assert_eq!(out.len(), self.output().bytes(), "the row must be exactly as long as the chain's output");
        let seed = self.seed(seed);
        caught(|| self.plan.transform(image, seed, out))
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

    /// Returns `seed` with the crop that the boxes of one sample draw for `random_iou_crop`; unchanged without that op. Give it to all
    /// chains of the joint map: the image, its masks, these and other boxes, and keypoints.
    ///
    /// ```
    /// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
    /// use feedstock_ops::{Chain, ChainSpec, NumberList, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let image = Chain::parse("decode_image,random_iou_crop,resize:8x8")?;
    /// let annotation = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
    /// let boxes = ChainSpec::parse("random_iou_crop,resize:8x8")?.compile_annotation(&annotation)?;
    /// let (png, mut row) = (encode(20, 10, &[9; 600]), vec![0; image.output().bytes()]);
    /// let sample = SampleSeed::new(7, 0, 0);
    /// let error = image.apply(&png, sample, &mut Scratch::new(), &mut row).unwrap_err();
    /// assert!(error.message().starts_with("random_iou_crop crops by the boxes of a joint map"));
    ///
    /// let given = NumberList { values: &[2.0, 2.0, 12.0, 8.0], each: Some(4) };
    /// let drawn = boxes.draw_crop(given, [10, 20], sample)?;
    /// image.apply(&png, drawn, &mut Scratch::new(), &mut row)?;
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`annotate`](Self::annotate); `Bug` for a chain without boxes.
    pub fn draw_crop(&self, boxes: NumberList<'_>, image: [u32; 2], seed: SampleSeed) -> Result<SampleSeed> {
        let crop = caught(|| self.plan.box_crop(boxes, image, self.seed(seed)))?;
        Ok(crop.map_or(seed, |crop| seed.with_box_crop(crop)))
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
    use crate::image::{Annotation, BoxFormat, Boxes};
    use crate::{BoxCrop, ChainSpec};

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

    #[test]
    fn boxes_draw_their_crop_where_the_chain_has_it() {
        let annotation = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
        let compile = |ops: &str| ChainSpec::parse(ops).unwrap().compile_annotation(&annotation);
        let draw = |ops: &str, values: &[f64], sample| {
            let seed = SampleSeed::new(7, 0, sample);
            let given = NumberList { values, each: Some(4) };
            compile(ops).unwrap().draw_crop(given, [60, 110], seed).unwrap().box_crop()
        };
        let (box_at_left, mirrored) = ([4.0, 10.0, 50.0, 50.0], [60.0, 10.0, 106.0, 50.0]);
        let mut parts = 0;
        for sample in 0..50 {
            // A mask, which has no boxes, counts the ops as the image does: the crop is op 2 in both chains.
            let flipped = draw("horizontal_flip:1,random_iou_crop,resize:8x8", &box_at_left, sample);
            let plain = draw("horizontal_flip:0,random_iou_crop,resize:8x8", &mirrored, sample);
            assert_eq!(flipped, plain);
            parts += u32::from(matches!(plain, Some(BoxCrop::Part { .. })));
            // Padding moves the box, and the image is larger.
            let padded = draw(
                "pad:100,random_iou_crop:min_scale=0.1:sampler_options=0.1/0.1,resize:8x8",
                &box_at_left,
                sample,
            );
            let Some(BoxCrop::Part { x, y, width, height }) = padded else { panic!("{padded:?}") };
            assert!(x < 127 && 127 < x + width && y < 130 && 130 < y + height, "{padded:?}");
        }
        assert!(parts > 30, "{parts}");
        assert_eq!(draw("random_iou_crop,resize:8x8", &[], 0), Some(BoxCrop::Whole));
        assert_eq!(draw("resize:8x8", &box_at_left, 0), None);

        let twice = compile("random_iou_crop,random_iou_crop,resize:8x8").unwrap_err();
        assert_eq!(twice.message(), "op 2 (random_iou_crop): comes once in a chain");
        let group = r#"[{"op": "random_apply", "ops": [{"op": "random_iou_crop"}]}, {"op": "resize", "size": [8, 8]}]"#;
        let group = ChainSpec::from_json(group).unwrap().compile_annotation(&annotation).unwrap_err();
        assert!(group.message().contains("(random_iou_crop): changes the image's size"), "{group}");
    }

    #[test]
    fn boxes_whose_centre_is_outside_of_the_drawn_crop_are_dropped() {
        let annotation = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
        let chain = ChainSpec::parse("random_iou_crop,pad_to:60x110").unwrap();
        let chain = chain.compile_annotation(&annotation).unwrap();
        let values = [0.0, 0.0, 30.0, 20.0, 0.0, 0.0, 19.0, 20.0, 10.0, 0.0, 40.0, 40.0];
        let given = NumberList { values: &values, each: Some(4) };
        let seed = |crop| SampleSeed::new(7, 0, 0).with_box_crop(crop);
        let part = seed(BoxCrop::Part { x: 10, y: 0, width: 50, height: 40 });
        assert_eq!(chain.kept(given, [60, 110], part).unwrap(), [0, 2]); // centres at x = 15, 9.5 and 25
        assert_eq!(chain.kept(given, [60, 110], seed(BoxCrop::Whole)).unwrap(), [0, 1, 2]);
        let mut row = RaggedRow::new();
        chain.annotate(given, [60, 110], part, &mut row).unwrap();
        let expected = [0.0_f32, 0.0, 20.0, 20.0, 0.0, 0.0, 30.0, 40.0].map(f32::to_ne_bytes);
        assert_eq!(row.bytes(), expected.as_flattened());
        let beyond = seed(BoxCrop::Part { x: 61, y: 0, width: 50, height: 40 });
        assert_eq!(chain.kept(given, [60, 110], beyond).unwrap_err().kind(), crate::ErrorKind::Bug);
        let undrawn = chain.kept(given, [60, 110], SampleSeed::new(7, 0, 0)).unwrap_err();
        assert!(undrawn.message().starts_with("random_iou_crop crops by the boxes of a joint map"));
    }
}
