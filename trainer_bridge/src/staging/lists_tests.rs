//! Lists of images on a device, in batches with and without images.

use super::options::DeviceOptions;
use super::tests::{MAIN, assert_clean, consume, expected, next, open, run};
use crate::{BatchSize, Pipeline};
use arrow::array::{ArrayRef, BinaryArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use feedstock_device::driver::Simulated;
use feedstock_device::finish::{Finish, PictureFinish};
use feedstock_ops::{decode_image, resize};
use parquet::arrow::ArrowWriter;
use std::sync::Arc;

fn png(value: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 4, 3);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[value; 36]).unwrap();
    out
}

/// Six batches of four samples; the second and the last have no images in their lists.
fn lists() -> (tempfile::TempDir, Pipeline) {
    let lengths: Vec<usize> =
        (0..24).map(|sample| if sample / 4 % 4 == 1 { 0 } else { sample % 3 }).collect();
    let images = (0..lengths.iter().sum()).map(|image: usize| png(image as u8));
    let item = Arc::new(Field::new("item", DataType::Binary, true));
    let images = Arc::new(BinaryArray::from_iter_values(images));
    let lists: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), images, None));
    let single: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..24).map(png)));
    let rows = RecordBatch::try_from_iter([("images", lists), ("single", single)]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let pipeline = open(dir.path())
        .map("images", [decode_image(), resize([8, 8])])
        .map_as("images", "small", [decode_image(), resize([2, 2])])
        .map("single", [decode_image(), resize([8, 8])])
        .batch(BatchSize::global(4))
        .epochs(2)
        .threads(2);
    (dir, pipeline)
}

#[test]
fn lists_with_and_without_images_arrive() {
    let (_dir, pipeline) = lists();
    let finish = Finish::Picture(PictureFinish::default());
    for options in [DeviceOptions::cuda(0), DeviceOptions::cuda(0).finish("single", finish)] {
        let expected = expected(&pipeline, &options);
        assert_eq!(expected.len(), 12);
        for seed in 0..8 {
            let driver = Simulated::new(seed);
            let mut batches = run(&pipeline, options.clone(), driver.clone()).unwrap();
            for (step, expected) in expected.iter().enumerate() {
                let batch = next(&mut batches);
                let images = batch.device_tensor("images").unwrap();
                let count: usize = images.lengths().unwrap().iter().sum();
                assert_eq!(images.shape(), [count, 8, 8, 3]);
                assert_eq!(count == 0, step % 6 == 1 || step % 6 == 5, "step {step}");
                assert_eq!((expected["images"].len(), expected["small"].len()), (count * 192, count * 12));
                consume(&driver, &batch, expected, MAIN);
            }
            drop(batches);
            assert_clean(&driver);
        }
    }
}
