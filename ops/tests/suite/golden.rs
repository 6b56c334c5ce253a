//! Compares pixels with those of Pillow and torchvision, which `tests/golden/make_references.py` computed.

use crate::support::{golden, most_and_mean, references};
use feedstock_ops::image::{DecodeImage, decode_rgb};
use feedstock_ops::{Chain, SampleSeed, Scratch};

fn expected(name: &str) -> Vec<u8> {
    decode_rgb(&golden(name), &DecodeImage::new()).unwrap().1
}

#[test]
fn decoding_is_pillows() {
    for case in references()["decode"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let op = DecodeImage::new().exif_orientation(case["exif"].as_bool().unwrap());
        let (size, pixels) = decode_rgb(&golden(&format!("decode/{file}")), &op).unwrap();
        let expected = expected(&format!("decode/{file}.expected.png"));
        assert_eq!(pixels.len(), expected.len(), "{file} {size:?}");
        let (most, mean) = most_and_mean(&pixels, &expected);
        // PNG and lossless WebP are exact. JPEG is, too, since Pillow's codec is also libjpeg-turbo. Lossy WebP is defined
        // to the bit in YUV, but its conversion to RGB may round by a level.
        let allowed = if file.ends_with(".webp") { 1 } else { 0 };
        assert!(most <= allowed, "{file}: differs by up to {most}, {mean:.3} on average");
    }
}

#[test]
fn resizing_and_cropping_are_torchvisions() {
    let scene = golden("scene.png");
    for case in references()["resize"].as_array().unwrap() {
        let chain =
            Chain::parse(case["chain"].as_str().unwrap()).unwrap_or_else(|error| panic!("{case}: {error}"));
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(&scene, SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut out).unwrap();
        let expected = expected(&format!("resize/{}", case["file"].as_str().unwrap()));
        assert_eq!(out.len(), expected.len(), "{case}");
        let (most, mean) = most_and_mean(&out, &expected);
        // Lanczos has the largest weights. Their rounding in two passes adds up to 2 levels in a few places.
        let lanczos = case["chain"].as_str().unwrap().contains("lanczos");
        assert!(
            most <= 1 || (lanczos && most == 2 && mean < 0.01),
            "{case}: differs by up to {most}, {mean:.3} on average"
        );
    }
}

#[test]
fn ops_are_torchvisions() {
    let (scene, outcomes) = (golden("scene.png"), expected("ops.png"));
    let chains: Vec<String> = serde_json::from_value(references()["ops"].clone()).unwrap();
    let mut failures = Vec::new();
    assert_eq!(outcomes.len(), chains.len() * 48 * 64 * 3);
    for (text, expected) in chains.iter().zip(outcomes.chunks_exact(48 * 64 * 3)) {
        let chain = Chain::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(&scene, SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut out).unwrap();
        let (most, mean) = most_and_mean(&out, expected);
        let allowed = match text {
            // Sums of other order, at ties.
            text if text.contains("gaussian_blur") => (1, 0.001),
            // Bilinear sums round differently where the exact value is a whole number: a level in under 1 %.
            text if text.contains("bilinear") => (1, 0.01),
            _ => (0, 0.0),
        };
        if most > allowed.0 || mean > allowed.1 {
            failures.push(format!("{text}: differs by up to {most}, {mean:.4} on average"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn padding_is_torchvisions() {
    let scene = golden("scene.png");
    for case in references()["pad"].as_array().unwrap() {
        let chain = Chain::parse(case["chain"].as_str().unwrap()).unwrap();
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(&scene, SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut out).unwrap();
        assert!(out == expected(&format!("pad/{}", case["file"].as_str().unwrap())), "{case}");
    }
}

#[test]
fn random_augmentations_are_those_of_torchvision_and_timm_with_the_same_draws() {
    let scene = golden("scene.png");
    let drawn: serde_json::Value = serde_json::from_slice(&golden("drawn.json")).unwrap();
    let outcomes = expected("drawn.png");
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let cases = drawn["cases"].as_array().unwrap();
    let bytes = usize::try_from(3 * number(&drawn["size"][0]) * number(&drawn["size"][1])).unwrap();
    assert_eq!(outcomes.len(), cases.len() * bytes);
    let mut failures = Vec::new();
    for (case, expected) in cases.iter().zip(outcomes.chunks_exact(bytes)) {
        let chain = Chain::parse(case["chain"].as_str().unwrap()).unwrap();
        let seed = SampleSeed::new(number(&drawn["seed"]), number(&drawn["epoch"]), number(&case["sample"]));
        let mut out = vec![0; bytes];
        chain.apply(&scene, seed, &mut Scratch::new(), &mut out).unwrap();
        let (most, mean) = most_and_mean(&out, expected);
        // Sums of bilinear and bicubic filters round differently where the exact value is a whole number. An operation that
        // follows may enlarge that level in a few places: by its slope, or by one step of a histogram.
        if most > 1 || mean > 0.01 {
            failures.push(format!("{case}: differs by up to {most}, {mean:.4} on average"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
