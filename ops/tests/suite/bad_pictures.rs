//! Bytes that are not a usable image. Each is a `BadSample` that states the reason, and the scratch stays clean.

use crate::support::{Dice, Jpeg, golden, picture, turbo_decode};
use feedstock_ops::image::{DecodeImage, ImageFormat, decode_rgb, decode_rgb_warned, read_header};
use feedstock_ops::{Chain, Error, ErrorKind, SampleSeed, Scratch, Warning};

const CHAIN: &str = "decode_image,random_resized_crop:32,horizontal_flip";

/// Runs one scratch over the bad bytes and then a good image, whose result must be that of a fresh scratch.
fn refuse(bytes: &[u8]) -> Error {
    let chain = Chain::parse(CHAIN).unwrap();
    let good = Jpeg::default().encode(&picture(120, 90, 1), 120, 90);
    let run = |bytes: &[u8], scratch: &mut Scratch| {
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(bytes, SampleSeed::new(1, 2, 3), scratch, &mut out).map(|()| out)
    };
    let expected = run(&good, &mut Scratch::new()).unwrap();
    let mut scratch = Scratch::new();
    assert_eq!(run(&good, &mut scratch).unwrap(), expected);
    let error = run(bytes, &mut scratch).expect_err("the bytes are not a usable image");
    assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
    assert_eq!(run(&good, &mut scratch).unwrap(), expected, "the scratch is stained by: {error}");
    error
}

fn photo() -> Vec<u8> {
    Jpeg { quality: 95, ..Jpeg::default() }.encode(&picture(400, 350, 2), 400, 350)
}

/// Returns `photo` with another size in its frame header.
fn claiming(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = photo();
    let at = bytes.windows(2).position(|two| two == [0xFF, 0xC0]).unwrap();
    bytes[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    bytes[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

#[test]
fn empty() {
    assert!(refuse(b"").message().contains("empty"));
}

#[test]
fn no_picture() {
    assert!(refuse(b"<html>404 Not Found</html>").message().contains("no JPEG, PNG or WebP"));
    refuse(&[0xFF, 0xD8, 0xFF]);
    refuse(b"\x89PNG\r\n\x1a\n");
    refuse(b"RIFF\x10\0\0\0WEBPVP8 ");
}

#[test]
fn jpeg_cut_in_half() {
    let bytes = photo();
    let error = refuse(&bytes[..bytes.len() / 2]);
    assert!(error.message().contains("cut off"), "{error}");
}

#[test]
fn jpeg_cut_anywhere() {
    let bytes = Jpeg::default().encode(&picture(60, 40, 3), 60, 40);
    for cut in 0..bytes.len() - 8 {
        let result = decode_rgb(&bytes[..cut], &DecodeImage::new());
        assert!(result.is_err(), "{cut} of {} bytes decode", bytes.len());
    }
    let progressive = Jpeg { progressive: true, ..Jpeg::default() }.encode(&picture(60, 40, 3), 60, 40);
    for cut in (0..progressive.len() - 8).step_by(3) {
        let result = decode_rgb(&progressive[..cut], &DecodeImage::new());
        assert!(result.is_err(), "{cut} of {} progressive bytes decode", progressive.len());
    }
}

#[test]
fn jpeg_cut_below_the_crop() {
    // All rows that the crop needs are present, but the file is not whole.
    let bytes = photo();
    let chain = Chain::parse("decode_image,center_crop:64").unwrap();
    let mut out = vec![0; chain.output().bytes()];
    let mut scratch = Scratch::new();
    let mut apply = |bytes: &[u8]| chain.apply(bytes, SampleSeed::new(0, 0, 0), &mut scratch, &mut out);
    apply(&bytes).unwrap();
    let error = apply(&bytes[..bytes.len() * 9 / 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.message().contains("cut off"), "{error}");
}

#[test]
fn jpeg_without_only_its_end_marker_decodes_as_in_pillow() {
    let bytes = photo();
    let (_, pixels) = decode_rgb(&bytes[..bytes.len() - 2], &DecodeImage::new()).unwrap();
    assert_eq!(pixels, turbo_decode(&bytes, 400, 350));
}

#[test]
fn jpeg_with_something_appended_decodes() {
    let mut bytes = photo();
    bytes.extend_from_slice(&[0; 1000]);
    let (_, pixels) = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
    assert_eq!(pixels, turbo_decode(&photo(), 400, 350));
}

#[test]
fn jpeg_with_stray_bytes_before_its_end_decodes() {
    for progressive in [false, true] {
        let jpeg = Jpeg { progressive, ..Jpeg::default() };
        let clean = jpeg.encode(&picture(120, 90, 2), 120, 90);
        let mut bytes = clean.clone();
        bytes.splice(clean.len() - 2..clean.len() - 2, [0x12, 0x34, 0x56]);
        let (_, pixels) = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
        assert_eq!(pixels, turbo_decode(&clean, 120, 90));
    }
}

#[test]
fn jpeg_with_flipped_bytes_is_an_error_or_whole() {
    // Entropy-coded data has no checksum, so some flips make another valid image. None may cause a panic, an image with
    // missing rows filled, or a dirty scratch. Most are detected.
    let bytes = Jpeg::default().encode(&picture(120, 90, 4), 120, 90);
    let chain = Chain::parse(CHAIN).unwrap();
    let (mut scratch, mut dice) = (Scratch::new(), Dice(4));
    let mut out = vec![0; chain.output().bytes()];
    let mut refused = 0;
    for id in 0..400 {
        let mut bytes = bytes.clone();
        for _ in 0..20 {
            let at = 2 + dice.below(bytes.len() as u32 - 2) as usize;
            bytes[at] ^= 1 << dice.below(8);
        }
        match chain.apply(&bytes, SampleSeed::new(0, 0, id), &mut scratch, &mut out) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 240, "only {refused} of 400 damaged images are rejected");
}

#[test]
fn jpeg_of_65535_by_65535_in_its_header() {
    let error = refuse(&claiming(65535, 65535));
    assert!(error.message().contains("65535×65535") && error.message().contains("max_pixels"), "{error}");
}

#[test]
fn jpeg_of_16384_by_16384_in_170_kb() {
    let mut bytes = claiming(16384, 16384);
    bytes.resize(170_000, 0);
    let error = refuse(&bytes);
    assert!(error.message().contains("16384×16384"), "{error}");
    // Also if the user raised the limit on pixels: this number of pixels does not fit into these few bytes.
    let error = decode_rgb(&bytes, &DecodeImage::new().max_pixels(1 << 30)).unwrap_err();
    assert!(error.message().contains("max_pixels_per_byte"), "{error}");
}

#[test]
fn jpeg_with_more_rows_in_its_header_than_data() {
    // As in Pillow, the missing rows are filled.
    let (size, pixels, warnings) = decode_rgb_warned(&claiming(400, 700), &DecodeImage::new()).unwrap();
    assert_eq!((size.width, size.height), (400, 700));
    assert!(warnings.contains(Warning::DamagedData));
    let rows = 300 * 400 * 3;
    assert_eq!(pixels[..rows], turbo_decode(&photo(), 400, 350)[..rows]);
}

#[test]
fn png_named_jpg_decodes() {
    // The decoder gets no name: the content decides.
    let bytes = golden("scene.png");
    let header = read_header(&bytes).unwrap();
    assert_eq!((header.format, header.width, header.height), (ImageFormat::Png, 96, 80));
    let chain = Chain::parse(CHAIN).unwrap();
    let mut out = vec![0; chain.output().bytes()];
    chain.apply(&bytes, SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut out).unwrap();
}

#[test]
fn png_and_webp_cut_anywhere() {
    for name in ["decode/rgb.png", "decode/lossy.webp", "decode/lossless.webp", "decode/alpha.webp"] {
        let bytes = golden(name);
        assert!(decode_rgb(&bytes, &DecodeImage::new()).is_ok());
        // For a PNG, Pillow needs neither the end chunk nor the two checksums before it (nor the two bytes before them).
        let needed = bytes.len() - if name.ends_with(".png") { 12 + 4 + 4 + 2 } else { 0 };
        for cut in 0..needed {
            let result = decode_rgb(&bytes[..cut], &DecodeImage::new());
            assert!(result.is_err(), "{cut} of {} bytes of {name} decode", bytes.len());
        }
        refuse(&bytes[..bytes.len() / 2]);
    }
}

#[test]
fn png_with_flipped_bytes() {
    let bytes = golden("decode/rgb.png");
    let (_, whole) = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
    let (mut dice, mut same, mut decoded) = (Dice(5), 0_usize, 0);
    for _ in 0..200 {
        let mut bytes = bytes.clone();
        let at = 8 + dice.below(bytes.len() as u32 - 8) as usize;
        bytes[at] ^= 1 << dice.below(8);
        if let Ok((_, pixels, warnings)) = decode_rgb_warned(&bytes, &DecodeImage::new()) {
            assert!(warnings.contains(Warning::DamagedData), "a flip at byte {at} is not detected");
            same += usize::from(pixels == whole);
            decoded += 1;
        }
    }
    // Pillow does not read some checksums, so flips there do no harm. Others can end the zlib stream late, so that its
    // checksum is not read.
    assert!(same > 0 && decoded < 20, "{decoded} of 200 decode, {same} of them as if whole");
}

#[test]
fn png_of_huge_size_in_its_header() {
    let mut bytes = golden("decode/rgb.png");
    bytes[16..24].copy_from_slice(&[0, 0, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF]);
    assert!(refuse(&bytes).message().contains("max_pixels"));
    bytes[16..24].copy_from_slice(&[0, 0, 0x20, 0, 0, 0, 0x20, 0]);
    assert!(refuse(&bytes).message().contains("max_pixels_per_byte"));
}

#[test]
fn every_file_flipped_at_random_never_panics() {
    let mut dice = Dice(6);
    for case in crate::support::references()["decode"].as_array().unwrap() {
        let bytes = golden(&format!("decode/{}", case["file"].as_str().unwrap()));
        for _ in 0..60 {
            let mut bytes = bytes.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(bytes.len() as u32) as usize;
                bytes[at] = dice.next() as u8;
            }
            let _ = decode_rgb(&bytes, &DecodeImage::new().exif_orientation(true));
        }
    }
}

/// Returns `bytes` without the segments of this marker.
fn without(bytes: &[u8], marker: u8) -> Vec<u8> {
    let mut left = bytes.to_vec();
    while let Some(at) = left.windows(2).position(|two| two == [0xFF, marker]) {
        let length = usize::from(u16::from_be_bytes([left[at + 2], left[at + 3]]));
        left.drain(at..at + 2 + length);
    }
    left
}

/// Returns `bytes` with `added` before the n-th of these markers.
fn with_before(bytes: &[u8], marker: u8, n: usize, added: &[u8]) -> Vec<u8> {
    let mut places = bytes.windows(2).enumerate().filter(|(_, two)| **two == [0xFF, marker]);
    let at = places.nth(n).unwrap().0;
    [&bytes[..at], added, &bytes[at..]].concat()
}

fn progressive() -> Vec<u8> {
    Jpeg { progressive: true, ..Jpeg::default() }.encode(&picture(120, 90, 5), 120, 90)
}

#[test]
fn jpeg_without_its_tables_is_not_decoded_with_those_of_the_file_before() {
    let chain = Chain::parse(CHAIN).unwrap();
    let mut scratch = Scratch::new();
    let mut apply = |bytes: &[u8]| {
        let mut out = vec![0; chain.output().bytes()];
        chain.apply(bytes, SampleSeed::new(1, 2, 3), &mut scratch, &mut out)
    };
    apply(&progressive()).unwrap();
    let error = apply(&without(&progressive(), 0xDB)).unwrap_err();
    assert!(error.message().contains("Quantization table"), "{error}");
}

#[test]
fn jpeg_with_a_damaged_colour_profile_decodes() {
    // The first of two parts of a profile; the second is missing.
    let part = [&[0xFF, 0xE2, 0, 20][..], b"ICC_PROFILE\0", &[1, 2, 9, 9, 9, 9]].concat();
    let damaged = with_before(&progressive(), 0xDB, 0, &part);
    let whole = decode_rgb(&progressive(), &DecodeImage::new()).unwrap();
    assert_eq!(decode_rgb(&damaged, &DecodeImage::new()).unwrap(), whole);
}

#[test]
fn jpeg_with_stray_bytes_between_its_scans_decodes() {
    let stray = with_before(&progressive(), 0xDA, 1, &[0, 0, 0, 0]);
    let whole = decode_rgb(&progressive(), &DecodeImage::new()).unwrap();
    assert_eq!(decode_rgb(&stray, &DecodeImage::new()).unwrap(), whole);
}

#[test]
fn png_cut_after_its_rows_decodes_as_in_pillow() {
    let bytes = golden("decode/rgb.png");
    let whole = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
    for cut in 1..=21 {
        let (size, pixels, warnings) =
            decode_rgb_warned(&bytes[..bytes.len() - cut], &DecodeImage::new()).unwrap();
        assert!((size, pixels) == whole, "{cut} bytes cut off");
        assert!(warnings.contains(Warning::DamagedData), "{cut} bytes cut off");
    }
}
