//! Images that the device decodes, tested with a device that finishes late and out of order.

use super::options::DeviceOptions;
use super::tests::{MAIN, assert_clean, expected, finished, next, open, pictures, plain, run};
use crate::{Batch, BatchSize, ErrorKind, OnError, Pipeline, RankIterator};
use feedstock_dataset::{Rank, Shuffle};
use feedstock_device::Device;
use feedstock_device::driver::Simulated;
use feedstock_device::tensor::{DeviceTensor, StreamHandle};
use feedstock_ops::{color_jitter, decode_image, random_resized_crop, resize};
use feedstock_synth::{ImagenetOptions, Layout};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The side of a row, large enough that an image is not far larger.
const SIDE: usize = 40;
const ROW_BYTES: usize = SIDE * SIDE * 3;

/// As [`pictures`], with larger rows.
fn larger() -> (tempfile::TempDir, Pipeline) {
    let (dir, _) = pictures();
    let pipeline = open(dir.path())
        .map("image", [decode_image(), random_resized_crop(40)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(8))
        .epochs(2)
        .threads(2);
    (dir, pipeline)
}

/// Returns all tensors of a batch, read on a stream of the caller.
fn tensors(batch: &Batch) -> HashMap<String, Vec<u8>> {
    batch.use_on(StreamHandle(MAIN)).unwrap();
    let bytes = |t: &DeviceTensor| (t.name().to_owned(), t.to_host(StreamHandle(MAIN)).unwrap());
    batch.device_tensors().iter().map(bytes).collect()
}

fn most_apart(one: &[u8], other: &[u8]) -> u8 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max().unwrap()
}

#[test]
fn pictures_decoded_on_the_device_are_the_cpus_to_a_level_and_nothing_races() {
    let (_dir, pipeline) = larger();
    let expected = expected(&pipeline, &DeviceOptions::cuda(0));
    for (seed, share) in (0..24).zip([1.0, 0.5, 0.1].into_iter().cycle()) {
        let driver = Simulated::new(seed);
        let options = DeviceOptions::cuda(0).nvjpeg(share);
        let mut batches = run(&pipeline, options, driver.clone()).unwrap();
        for expected in &expected {
            let batch = next(&mut batches);
            let got = tensors(&batch);
            assert_eq!(got.len(), expected.len(), "no column of lengths");
            assert!(batch.column("image_length").is_none());
            assert_eq!(batch.device_tensor("image").unwrap().shape(), [8, SIDE, SIDE, 3]);
            for (name, bytes) in expected {
                let apart = if name == "image" { 1 } else { 0 };
                assert!(most_apart(&got[name], bytes) <= apart, "{name}, share {share}");
            }
        }
        let decoded = driver.decoded();
        match share {
            1.0 => assert_eq!(decoded, 96),
            0.5 => assert!((30..66).contains(&decoded), "{decoded}"),
            _ => assert!((1..25).contains(&decoded), "{decoded}"),
        }
        drop(batches);
        assert_clean(&driver);
    }
}

#[test]
fn finishing_follows_the_decoder() {
    let (_dir, pipeline) = larger();
    let options = DeviceOptions::cuda(0).finish("image", finished());
    let expected = expected(&pipeline, &options);
    let driver = Simulated::new(5);
    let mut batches = run(&pipeline, options.nvjpeg(0.5), driver.clone()).unwrap();
    for expected in &expected {
        let got = tensors(&next(&mut batches));
        let value = |two: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        let apart = |(one, other): (&[u8], &[u8])| (value(one) - value(other)).abs();
        let pairs = got["image"].chunks_exact(2).zip(expected["image"].chunks_exact(2));
        // One level is at most 0.0175 after normalising, and a bfloat16 has 8 bits.
        assert!(pairs.map(apart).fold(0.0, f32::max) < 0.04);
        assert_eq!(got["mix_weight"], expected["mix_weight"]);
    }
    drop(batches);
    assert_clean(&driver);
}

#[test]
fn a_run_that_is_dropped_while_pictures_are_decoded_leaves_nothing() {
    let (_dir, pipeline) = larger();
    for seed in 0..24 {
        let driver = Simulated::new(seed);
        let mut batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(0.7), driver.clone()).unwrap();
        drop(next(&mut batches));
        match seed % 4 {
            0 => driver.fail_copies_from(20),
            1 => driver.refuse("decode", 1),
            2 => driver.refuse("launch", 1),
            _ => {}
        }
        if seed % 4 < 3 {
            while batches.next().is_some_and(|batch| batch.is_ok()) {}
        }
        drop(batches);
        assert_clean(&driver);
    }
}

#[test]
fn a_repair_that_fails_halfway_keeps_what_it_sent() {
    let (_dir, pipeline) = larger();
    for (seed, first) in (0..16).zip((5..).step_by(3)) {
        let driver = Simulated::new(seed);
        driver.refuse_every_picture(1);
        driver.fail_copies_from(first);
        let mut batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(1.0), driver.clone()).unwrap();
        let error = batches.by_ref().map(|batch| batch.map(drop)).find_map(Result::err).unwrap();
        assert!(error.to_string().contains("the copy was refused"), "{error}");
        drop(batches);
        assert_clean(&driver);
    }
}

#[test]
fn a_resumed_run_of_another_batch_size_has_the_same_pictures() {
    let (_dir, pipeline) = larger();
    let options = DeviceOptions::cuda(0).nvjpeg(0.5);
    let by_sample = |batches: &mut RankIterator, steps: usize| -> HashMap<u64, Vec<u8>> {
        let of = |batch: Batch| {
            let images = tensors(&batch).remove("image").unwrap();
            let rows = images.chunks_exact(ROW_BYTES).map(<[u8]>::to_vec);
            batch.sample_ids().iter().map(|id| id.0).zip(rows).collect::<Vec<_>>()
        };
        (0..steps).flat_map(|_| of(next(batches))).collect()
    };
    let whole = by_sample(&mut run(&pipeline, options.clone(), Simulated::new(1)).unwrap(), 6);
    assert_eq!(whole.len(), 48);
    let cursor = plain(&pipeline)[1].clone();
    let other = pipeline.clone().batch(BatchSize::global(4)).device(options);
    let builder = other.rank(Rank::new(0, 1)).resume(cursor);
    let prepared = builder.prepare().unwrap();
    let opened = prepared.device.as_ref().unwrap().open_on(Device::of(Simulated::new(2))).unwrap();
    let rest = by_sample(&mut builder.run(prepared, Some(opened)).unwrap(), 8);
    assert_eq!(rest.len(), 32);
    assert!(rest.iter().all(|(id, image)| whole[id] == *image));
}

#[test]
fn what_the_decoder_refuses_the_cpu_decodes() {
    let (_dir, pipeline) = larger();
    let expected = expected(&pipeline, &DeviceOptions::cuda(0));
    let driver = Simulated::new(3);
    driver.refuse_every_picture(1);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(1.0), driver.clone()).unwrap();
    for expected in &expected {
        let batch = next(&mut batches);
        assert!(tensors(&batch) == *expected, "the CPU's bytes");
        assert!(batch.valid().iter().all(|valid| *valid));
    }
    assert_eq!(driver.decoded(), 96);
    drop(batches);
    assert_clean(&driver);
}

/// Images in files, one of which ends before its last lines.
fn one_lacks_lines(on_error: OnError) -> (tempfile::TempDir, PathBuf, Pipeline) {
    let dir = tempfile::tempdir().unwrap();
    let options = ImagenetOptions {
        samples: 24,
        seed: 5,
        layout: Layout::Folder,
        width: 96,
        height: 80,
        ..ImagenetOptions::default()
    };
    options.write(dir.path(), &mut |_| {}).unwrap();
    let file = files(dir.path()).into_iter().nth(7).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() * 6 / 10);
    std::fs::write(&file, &bytes).unwrap();
    let pipeline = open(dir.path())
        .map("image", [decode_image(), resize([40, 40])])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(8))
        .on_error(on_error)
        .epochs(1)
        .threads(2);
    (dir, file, pipeline)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("jpeg")) => {
                found.push(path);
            }
            false => {}
        }
    }
    found.sort();
    found
}

#[test]
fn what_both_refuse_is_a_bad_sample() {
    let (_dir, file, pipeline) = one_lacks_lines(OnError::Raise);
    let driver = Simulated::new(1);
    let batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(1.0), driver.clone()).unwrap();
    let error = batches.map(|batch| batch.map(drop)).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.to_string().contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
    assert_clean(&driver);
}

#[test]
fn a_bad_sample_that_may_be_skipped_gives_its_row_to_a_good_one() {
    let (_dir, _, pipeline) = one_lacks_lines(OnError::Skip { max_fraction: 0.1 });
    let driver = Simulated::new(1);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(1.0), driver.clone()).unwrap();
    let mut bad = 0;
    for _ in 0..3 {
        let batch = next(&mut batches);
        let got = tensors(&batch);
        let (pixels, labels) =
            (|row: usize| &got["image"][row * ROW_BYTES..(row + 1) * ROW_BYTES], &got["label"]);
        for (row, valid) in batch.valid().iter().enumerate() {
            assert_eq!(got["valid"][row], u8::from(*valid));
            if !valid {
                bad += 1;
                let near = if row == 0 { 1 } else { row - 1 };
                assert!(pixels(row) == pixels(near), "the nearest good row's");
                assert_eq!(labels[row * 8..(row + 1) * 8], labels[near * 8..(near + 1) * 8]);
            }
        }
    }
    assert!(batches.next().is_none());
    assert_eq!((bad, batches.skip_report().count), (1, 1));
    assert!(batches.ledger().check().is_ok());
    drop(batches);
    assert_clean(&driver);
}

#[test]
fn what_cannot_be_is_told_before_anything_runs() {
    let (dir, pipeline) = larger();
    let start = |pipeline: &Pipeline, share: f64, driver: Arc<Simulated>| {
        run(pipeline, DeviceOptions::cuda(0).nvjpeg(share), driver).map(drop).unwrap_err()
    };
    let error = start(&pipeline, 1.5, Simulated::new(1));
    assert!(error.to_string().contains("must be 0.0 to 1.0"), "{error}");
    let jittered = open(dir.path())
        .map("image", [decode_image(), random_resized_crop(40), color_jitter(0.1, 0.1, 0.1, 0.0)])
        .batch(BatchSize::global(8));
    let error = start(&jittered, 0.5, Simulated::new(1));
    assert!(error.kind() == ErrorKind::BadConfig && error.to_string().contains("finish_pictures"), "{error}");
    let without = Simulated::new(1);
    without.refuse("load_decoder", 1);
    assert!(start(&pipeline, 0.5, without.clone()).to_string().contains("load_decoder was refused"));
    assert_clean(&without);
}

#[test]
fn two_views_decoded_on_the_device_are_those_of_the_cpu() {
    let (_dir, pipeline) = larger();
    let pipeline = pipeline.map_as("image", "second", [decode_image(), random_resized_crop(40)]);
    let expected = expected(&pipeline, &DeviceOptions::cuda(0));
    let driver = Simulated::new(3);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0).nvjpeg(1.0), driver.clone()).unwrap();
    for expected in &expected {
        let got = tensors(&next(&mut batches));
        for name in ["image", "second"] {
            assert!(most_apart(&got[name], &expected[name]) <= 1, "{name}");
        }
        assert_ne!(expected["image"], expected["second"]);
    }
    drop(batches);
    assert_clean(&driver);
}
