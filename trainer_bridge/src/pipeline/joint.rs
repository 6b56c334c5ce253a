//! Joint maps: an image, its masks, and the boxes and keypoints that follow it.

use super::Pipeline;
use feedstock_ingest::MapSpec;
use feedstock_ops::ChainSpec;
use feedstock_ops::image::Annotation;

impl Pipeline {
    /// Makes the tensor `output` of an earlier map a member of the joint map `name`: an image and its masks. A sample whose
    /// members differ in size is bad, since the same crop would show different parts of them. Give all members the same ops
    /// after their decoders, and equal [`key`](Self::key)s unless each is its column's first map.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::image::{DecodeImage, DecodeMode};
    /// use feedstock_ops::{decode_image, random_resized_crop};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let gray = DecodeImage::new().mode(DecodeMode::Gray);
    /// let pipeline = dataset
    ///     .map_as("image", "rgb", [decode_image(), random_resized_crop(32)])
    ///     .map_as("image", "gray", [gray.into(), random_resized_crop(32)]);
    /// let joint = |pipeline: feedstock_trainer_bridge::Pipeline, output| pipeline.key(output, "k").joint(output, "j");
    /// let pipeline = joint(joint(pipeline, "rgb"), "gray").batch(BatchSize::per_rank(4));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// assert_eq!((batch["rgb"].shape(), batch["gray"].shape()), (vec![4, 32, 32, 3], vec![4, 32, 32, 1]));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Panics
    /// If no map has that output.
    #[must_use]
    pub fn joint(mut self, output: &str, name: &str) -> Self {
        self.map_of(output, "joint").joint = Some(name.to_owned());
        self
    }

    /// Maps the boxes or keypoints of a column, or the matrix of the image's geometry ([`Annotation::Transform`], of the image's column),
    /// to the tensor `output`: they follow the first image of the joint map `name`. `ops` are
    /// those of the image without its decoder.
    ///
    /// The column has lists of numbers, one for each sample: flat, or lists of lists. Rows of the result are f32, [boxes, 4] or
    /// [points, 3]; a batch pads them with zeros. Coordinates are those of the decoded image. The first boxes draw the crop of
    /// `random_iou_crop` for all members.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
    /// use feedstock_ops::{ChainSpec, decode_image, horizontal_flip, resize};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # fn png(width: u32, height: u32) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     let pixels = vec![0; width as usize * height as usize * 3];
    /// #     encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    /// #     out
    /// # }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # use arrow::array::{ArrayRef, BinaryArray, ListArray, RecordBatch};
    /// # use arrow::datatypes::{Float64Type, Int64Type};
    /// # let numbers = [4.0, 2.0, 12.0, 10.0, 50.0, 0.0, 60.0, 9.0].map(Some);
    /// # let boxes = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(numbers)]);
    /// # let labels = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([7, 8].map(Some))]);
    /// # let image: ArrayRef = std::sync::Arc::new(BinaryArray::from_vec(vec![&png(40, 20)]));
    /// # let lists: [ArrayRef; 2] = [std::sync::Arc::new(boxes), std::sync::Arc::new(labels)];
    /// # let [boxes, labels] = lists;
    /// # let rows = RecordBatch::try_from_iter([("image", image), ("boxes", boxes), ("label", labels)]).unwrap();
    /// # let file = std::fs::File::create(folder.path().join("1.parquet")).unwrap();
    /// # let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).unwrap();
    /// # writer.write(&rows).unwrap();
    /// # writer.close().unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 20 × 40 pixels, two boxes with labels
    /// let ops = || [resize([40, 80]), horizontal_flip(1.0)];
    /// let image = [&[decode_image()][..], &ops()].concat();
    /// let pipeline = dataset.map("image", image).joint("image", "both");
    /// let boxes = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
    /// let pipeline = pipeline.annotate("boxes", "boxes", boxes, ChainSpec::from(ops()), "both").along("label", "boxes");
    /// let batch = pipeline.batch(BatchSize::per_rank(1)).rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// assert_eq!(batch["boxes"].as_f32().unwrap(), [56.0, 4.0, 72.0, 20.0]); // the second box is outside of the image
    /// assert_eq!((batch["boxes"].lengths().unwrap(), batch["label"].as_i64().unwrap()), (&[1][..], &[7][..]));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn annotate(
        mut self,
        column: &str,
        output: &str,
        annotation: Annotation,
        ops: impl Into<ChainSpec>,
        name: &str,
    ) -> Self {
        self.recipe.maps.push(MapSpec {
            annotation: Some(annotation),
            joint: Some(name.to_owned()),
            ..MapSpec::new(column, output, ops.into())
        });
        self
    }

    /// Maps a column that has one value for each box of the tensor `boxes` of an earlier [`annotate`](Self::annotate): a flat list of
    /// numbers or flags. The values of dropped boxes are dropped. Rows are i64, f32 or u8 (flags), as long as their boxes; a batch
    /// pads them with zeros.
    ///
    /// # Panics
    /// If no map has the output `boxes`.
    #[must_use]
    pub fn along(mut self, column: &str, boxes: &str) -> Self {
        let joint = self.map_of(boxes, "along").joint.clone();
        self.recipe.maps.push(MapSpec {
            joint,
            along: Some(boxes.to_owned()),
            ..MapSpec::new(column, column, ChainSpec::default())
        });
        self
    }
}
