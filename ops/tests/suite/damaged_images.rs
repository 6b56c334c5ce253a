//! Compares the results for damaged JPEGs and PNGs with Pillow's, which `tests/golden/make_damage_references.py` recorded.

use crate::support::golden;
use feedstock_ops::image::{DecodeImage, decode_rgb, decode_rgb_warned};
use feedstock_ops::{Chain, SampleSeed, Scratch, Warning};
use serde_json::Value;

fn cases() -> Vec<Value> {
    serde_json::from_slice(&golden("damage.json")).unwrap()
}

fn damaged(case: &Value) -> Vec<u8> {
    let mut bytes = golden(&format!("decode/{}", case["file"].as_str().unwrap()));
    for edit in case["edits"].as_array().unwrap() {
        let [at, removed] = [&edit[0], &edit[1]].map(|value| value.as_u64().unwrap() as usize);
        let hex = edit[2].as_str().unwrap();
        let put = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        let removed_end = (at + removed).min(bytes.len());
        bytes.splice(at..removed_end, put);
    }
    bytes
}

/// Returns the cases that Pillow decodes.
fn decoded_by_pillow() -> Vec<Value> {
    let cases: Vec<_> = cases().into_iter().filter(|case| !case["pillow"].is_null()).collect();
    assert!(cases.len() > 200, "only {} cases", cases.len());
    cases
}

#[test]
fn what_pillow_decodes_decodes_to_the_same_pixels() {
    for case in decoded_by_pillow() {
        let (size, rgb) = decode_rgb(&damaged(&case), &DecodeImage::new())
            .unwrap_or_else(|error| panic!("refused: {error}: {case}"));
        assert_eq!(case["pillow"]["size"], serde_json::json!([size.width, size.height]), "{case}");
        assert_eq!(case["pillow"]["crc32"], crc32fast::hash(&rgb), "other pixels: {case}");
    }
}

#[test]
fn damage_that_the_decoder_sees_is_a_warning() {
    let (mut warned, mut silent) = (0, 0);
    for case in decoded_by_pillow() {
        let (_, rgb, warnings) = decode_rgb_warned(&damaged(&case), &DecodeImage::new()).unwrap();
        let whole =
            decode_rgb(&golden(&format!("decode/{}", case["file"].as_str().unwrap())), &DecodeImage::new());
        if warnings.contains(Warning::DamagedData) {
            warned += 1;
        } else if whole.unwrap().1 != rgb {
            // Another valid image: entropy-coded data have no checksum.
            silent += 1;
        }
    }
    assert!(warned > 150 && silent < warned / 2, "{warned} warnings, {silent} other images");
}

#[test]
fn a_crop_of_a_damaged_image_is_that_of_the_whole_image() {
    let crop = Chain::parse("decode_image,center_crop:32").unwrap();
    let mut scratch = Scratch::new();
    let mut warned = 0;
    for case in decoded_by_pillow() {
        let bytes = damaged(&case);
        let (size, rgb) = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
        let (width, height) = (size.width as usize, size.height as usize);
        let mut out = vec![0; crop.output().bytes()];
        crop.apply(&bytes, SampleSeed::new(0, 0, 0), &mut scratch, &mut out)
            .unwrap_or_else(|error| panic!("refused: {error}: {case}"));
        warned += u32::from(scratch.take_warnings().contains(Warning::DamagedData));
        if width < 32 || height < 32 {
            continue;
        }
        // torchvision rounds half to even.
        let half = |rest: usize| (rest as f64 / 2.0).round_ties_even() as usize;
        let (left, top) = (half(width - 32), half(height - 32));
        for y in 0..32 {
            let from = ((top + y) * width + left) * 3;
            assert!(out[y * 96..(y + 1) * 96] == rgb[from..from + 96], "row {y} differs: {case}");
        }
    }
    assert!(warned > 100, "only {warned} warnings");
}

#[test]
fn a_warning_belongs_to_its_sample() {
    let chain = Chain::parse("decode_image,center_crop:32").unwrap();
    let mut scratch = Scratch::new();
    let mut warnings = |bytes: &[u8]| {
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(bytes, SampleSeed::new(0, 0, 0), &mut scratch, &mut out).unwrap();
        scratch.take_warnings().iter().map(|warning| warning.as_str()).collect::<Vec<_>>()
    };
    let good = golden("decode/rgb.png");
    let without_its_end = &good[..good.len() - 12];
    assert!(warnings(&good).is_empty());
    assert_eq!(warnings(without_its_end), ["damaged_data"]);
    assert!(warnings(&good).is_empty());
}
