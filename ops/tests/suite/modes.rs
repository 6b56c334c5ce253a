//! `decode_image` into other channels than RGB: with alpha, grey values, and masks of classes.

use feedstock_ops::{Chain, DType, ErrorKind, SampleSeed, Scratch};
use png::{BitDepth, ColorType};

/// Returns a PNG whose rows are packed values of `depth`.
fn png((width, height): (u32, u32), (color, depth): (ColorType, BitDepth), values: &[u8]) -> Vec<u8> {
    let bits = depth as usize;
    let packed: Vec<u8> = values
        .chunks_exact(width as usize)
        .flat_map(|row| {
            row.chunks(8 / bits).map(move |values| {
                let shifted = |(at, value): (usize, &u8)| value << (8 - bits - at * bits);
                values.iter().enumerate().map(shifted).fold(0, |byte, value| byte | value)
            })
        })
        .collect();
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ColorType::Indexed {
        encoder.set_palette((0..1_usize << bits).flat_map(|i| [i as u8 ^ 0x5A; 3]).collect::<Vec<u8>>());
    }
    encoder.write_header().unwrap().write_image_data(&packed).unwrap();
    out
}

fn apply(ops: &str, encoded: &[u8]) -> feedstock_ops::Result<Vec<u8>> {
    let chain = Chain::parse(ops)?;
    let mut row = vec![0xA5; chain.output().bytes()];
    chain.apply(encoded, SampleSeed::new(7, 0, 11), &mut Scratch::new(), &mut row)?;
    Ok(row)
}

/// Classes 0 … `classes` − 1 in a pattern without symmetry.
fn classes((width, height): (u32, u32), classes: u32) -> Vec<u8> {
    (0..width * height).map(|i| ((i * i / 3 + i / width) % classes) as u8).collect()
}

#[test]
fn indices_of_every_depth_are_those_stored() {
    for (depth, count) in
        [(BitDepth::One, 2), (BitDepth::Two, 4), (BitDepth::Four, 16), (BitDepth::Eight, 256)]
    {
        for size in [(13, 9), (16, 2), (1, 1)] {
            let values = classes(size, count);
            let ops = format!("decode_image:mode=indices,resize:{}x{}", size.1, size.0);
            let decoded = apply(&ops, &png(size, (ColorType::Indexed, depth), &values)).unwrap();
            assert_eq!(decoded, values, "{depth:?} {size:?}");
        }
    }
}

#[test]
fn grey_masks_have_their_values() {
    let ops = "decode_image:mode=indices,resize:3x5";
    for (depth, count, scale) in [(BitDepth::One, 2, 1), (BitDepth::Two, 4, 85), (BitDepth::Eight, 256, 1)] {
        let values = classes((5, 3), count);
        let expected: Vec<u8> = values.iter().map(|value| value * scale).collect(); // as Pillow scales two bits
        assert_eq!(apply(ops, &png((5, 3), (ColorType::Grayscale, depth), &values)).unwrap(), expected);
    }
}

#[test]
fn a_mask_follows_its_image_through_every_op() {
    let size = (67, 41);
    let values = classes(size, 200);
    let rgb: Vec<u8> = values.iter().flat_map(|value| [*value; 3]).collect();
    let mask = png(size, (ColorType::Indexed, BitDepth::Eight), &values);
    let image = png(size, (ColorType::Rgb, BitDepth::Eight), &rgb);
    for geometry in [
        "random_resized_crop:24:filter=nearest,horizontal_flip",
        "resize:32:filter=nearest,random_crop:24,horizontal_flip",
        "random_crop:24:padding=7:fill=200,horizontal_flip:0.9,center_crop:20",
        "center_crop:60x60:fill=200",
        "resize:30x40:filter=nearest,horizontal_flip,vertical_flip",
        "pad:3/5:fill=200,vertical_flip:0.8,center_crop:45x60",
        "pad:9:padding_mode=reflect,center_crop:50x70",
        "center_crop:40x40,rotate:40:fill=200",
        "center_crop:40x40,affine:20:translate=0.2/0.1:scale=0.7..1.4:shear=5/5/5/5:fill=200",
        "center_crop:40x40,perspective:0.5:1:interpolation=nearest:fill=200",
        "center_crop:40x40,random_apply:[vertical_flip:1,rotate:40,horizontal_flip:0.5]:0.9",
        "center_crop:40x40,random_choice:[vertical_flip:1,rotate:40,random_apply:[horizontal_flip:1]:0.9]",
    ] {
        let colour = "color_jitter:0.4,random_erasing:probability=1.0,grayscale:1,gaussian_blur:5,solarize:9:1,invert:1,\
                      posterize:2:1,equalize:1,autocontrast:1,adjust_sharpness:2:1,random_apply:[invert:1]:1";
        let of_image = apply(&format!("decode_image,{geometry}"), &image).unwrap();
        let first: Vec<u8> = of_image.chunks_exact(3).map(|pixel| pixel[0]).collect();
        for (ops, filter) in [("", ""), (",", colour), (",", "to_f32"), (",", "normalize,to_chw")] {
            let ops = format!("decode_image:mode=indices,{geometry}{ops}{filter}");
            assert_eq!(apply(&ops, &mask).unwrap(), first, "{ops}");
        }
    }
    let warped = |interpolation: &str| {
        let warps = "rotate:40:interpolation=X,affine:20:interpolation=X,perspective:0.5:1:interpolation=X";
        let ops = format!("decode_image:mode=indices,center_crop:40x40,random_apply:[{warps}]:1");
        apply(&ops.replace('X', interpolation), &mask).unwrap()
    };
    assert_eq!(warped("bilinear"), warped("nearest"));
    // A filter that would mix classes is not used.
    let nearest = apply("decode_image:mode=indices,random_resized_crop:24:filter=nearest", &mask).unwrap();
    assert_eq!(
        apply("decode_image:mode=indices,random_resized_crop:24:filter=bicubic", &mask).unwrap(),
        nearest
    );
}

#[test]
fn grey_is_luma_in_one_channel() {
    let image = png((2, 1), (ColorType::Rgb, BitDepth::Eight), &[255, 0, 0, 10, 20, 30]);
    let gray = apply("decode_image:mode=gray,resize:1x2", &image).unwrap();
    assert_eq!(gray, [76, 18]); // 0.299 R + 0.587 G + 0.114 B
    let output = |ops: &str| Chain::parse(ops).unwrap().output().clone();
    assert_eq!(output("decode_image:mode=gray,resize:4x5").shape, [4, 5, 1]);
    assert_eq!(output("decode_image:mode=gray,resize:4x5,to_chw").shape, [1, 4, 5]);
    let f32s = apply("decode_image:mode=gray,resize:1x2,normalize:mean=0.5/0.5/0.5:std=0.5/0.5/0.5", &image)
        .unwrap();
    let f32s: Vec<f32> = f32s.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
    assert!((f32s[0] - (76.0 / 127.5 - 1.0)).abs() < 1e-6 && f32s.len() == 2);
}

/// Returns a PNG of 16-bit grey.
fn wide_png((width, height): (u32, u32), values: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(ColorType::Grayscale);
    encoder.set_depth(BitDepth::Sixteen);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
    encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
    out
}

fn u16s(row: &[u8]) -> Vec<u16> {
    row.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect()
}

#[test]
fn grey_of_16_bits_keeps_its_values() {
    let values: Vec<u16> = (0..9 * 7).map(|i: u16| i.wrapping_mul(40_503)).collect();
    let image = wide_png((9, 7), &values);
    let wide = |ops: &str| u16s(&apply(&format!("decode_image:mode=gray16,{ops}"), &image).unwrap());
    assert_eq!(wide("resize:7x9"), values);
    assert_eq!(
        wide("resize:7x9,horizontal_flip:1,vertical_flip:1"),
        values.iter().rev().copied().collect::<Vec<_>>()
    );
    let cropped: Vec<u16> = (2..5).flat_map(|y| values[y * 9 + 3..y * 9 + 6].to_vec()).collect();
    assert_eq!(wide("center_crop:3"), cropped);
    let padded = wide("pad:1:fill=255,center_crop:9x11");
    assert_eq!((padded[0], &padded[12..21]), (65_535, &values[..9]));
    let f32s = apply("decode_image:mode=gray16,resize:7x9,to_f32", &image).unwrap();
    let f32s = f32s.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    assert!(f32s.zip(&values).all(|(real, value)| (real - f32::from(*value) / 65_535.0).abs() < 1e-7));
    let output = Chain::parse("decode_image:mode=gray16,resize:4x5,to_chw").unwrap().output().clone();
    assert_eq!((output.dtype, output.shape.as_slice()), (DType::U16, &[1, 4, 5][..]));
}

#[test]
fn grey_of_16_bits_is_averaged_as_16_bits() {
    let image = wide_png((4, 2), &[0, 1, 256, 511, 2, 3, 65_535, 65_534]);
    let halved = apply("decode_image:mode=gray16,resize:1x4", &image).unwrap();
    // The mean of two rows: bytes that are averaged apart would carry no bit from the high byte to the low one.
    assert_eq!(u16s(&halved), [1, 2, 32_896, 33_023]);
}

#[test]
fn alpha_is_the_fourth_channel() {
    let pixels: Vec<u8> = (0..3 * 2 * 4).map(|i: u8| i.wrapping_mul(37)).collect();
    let rgba = png((3 * 4, 2), (ColorType::Grayscale, BitDepth::Eight), &pixels);
    assert!(
        apply("decode_image:mode=rgba,resize:2x12", &rgba).unwrap().chunks(4).all(|pixel| pixel[3] == 255)
    );

    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 3, 2);
    encoder.set_color(ColorType::Rgba);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    assert_eq!(apply("decode_image:mode=rgba,center_crop:2x3", &out).unwrap(), pixels);
    let mirrored: Vec<u8> =
        pixels.chunks(12).flat_map(|row| row.chunks(4).rev().flatten().copied()).collect();
    assert_eq!(apply("decode_image:mode=rgba,center_crop:2x3,horizontal_flip:1", &out).unwrap(), mirrored);
    let padded = apply("decode_image:mode=rgba,pad:1,center_crop:4x5", &out).unwrap();
    assert_eq!((&padded[..20], &padded[24..36]), (&[0; 20][..], &pixels[..12]));
    let planes = apply("decode_image:mode=rgba,center_crop:2x3,to_chw", &out).unwrap();
    for (at, value) in planes.iter().enumerate() {
        assert_eq!(*value, pixels[at % 6 * 4 + at / 6]);
    }
    let f32s = apply("decode_image:mode=rgba,center_crop:2x3,to_f32", &out).unwrap();
    let f32s = f32s.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    assert!(f32s.zip(&pixels).all(|(real, value)| (real - f32::from(*value) / 255.0).abs() < 1e-7));
    let rgb = apply("decode_image,center_crop:2x3", &out).unwrap();
    assert!(rgb.chunks(3).zip(pixels.chunks(4)).all(|(rgb, rgba)| rgb == &rgba[..3]));
}

#[test]
fn transparent_pixels_do_not_show_in_their_neighbours() {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 2, 1);
    encoder.set_color(ColorType::Rgba);
    encoder.write_header().unwrap().write_image_data(&[200, 100, 50, 255, 9, 255, 255, 0]).unwrap();
    assert_eq!(apply("decode_image:mode=rgba,resize:1x1", &out).unwrap(), [199, 99, 49, 128]);
}

#[test]
fn what_does_not_fit_a_mode_is_refused() {
    let rgb = png((2, 1), (ColorType::Rgb, BitDepth::Eight), &[0; 6]);
    let error = apply("decode_image:mode=indices,resize:1x2", &rgb).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.message().contains("the image is RGB, and mode=\"indices\" needs a palette"), "{error}");
    let error = apply("decode_image:mode=gray16,resize:1x2", &rgb).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(
        error.message().contains("the image is RGB, and mode=\"gray16\" needs a PNG of 16-bit grey"),
        "{error}"
    );
    for (ops, part) in [
        ("decode_image:mode=gray16,color_jitter,resize:8x8", "works on 8 bits a channel"),
        ("decode_image:mode=gray16,rotate:9:interpolation=bilinear,resize:8x8", "works on 8 bits a channel"),
        ("decode_image:mode=gray16,resize:8x8,normalize", "three times the same number"),
        ("decode_image:mode=indices,rand_augment,resize:8x8", "moves pixels of the image"),
        ("decode_image:mode=indices,trivial_augment,resize:8x8", "moves pixels of the image"),
        ("decode_image:mode=indices,auto_augment,resize:8x8", "moves pixels of the image"),
        ("decode_image:mode=indices,aug_mix,resize:8x8", "op 1 (aug_mix): moves pixels of the image"),
        ("decode_image:mode=indices,timm_rand_augment,resize:8x8", "op 1 (timm_rand_augment): moves pixels"),
        (
            "decode_image:mode=indices,random_apply:[invert,rand_augment],resize:8x8",
            "op 1 (rand_augment): moves",
        ),
        ("decode_image:mode=indices,rotate:9:fill=1/2/3,resize:8x8", "fill must be one number"),
        ("decode_image:mode=gray,pad:9:fill=1/2/3,resize:8x8", "fill must be one number"),
        ("decode_image:mode=gray,resize:8x8,normalize", "three times the same number"),
        ("decode_image:mode=gray,resize:8x8,to_f32,random_erasing", "only before to_f32"),
        ("decode_image:mode=gray,resize:8x8,random_erasing:value=1/2/3", "value must be one number"),
        (
            "decode_image:mode=rgba,color_jitter,resize:8x8",
            "op 1 (color_jitter): works on colours without alpha",
        ),
        ("decode_image:mode=rgba,rand_augment,resize:8x8", "works on colours without alpha"),
        ("decode_image:mode=rgba,resize:8x8,random_erasing", "works on colours without alpha"),
        ("decode_image:mode=rgba,resize:8x8,to_f32,random_erasing", "works on colours without alpha"),
        ("decode_image:mode=rgba,resize:8x8,normalize", "to_f32 converts all four"),
        ("decode_image:mode=rgba,pad:9:fill=1,resize:8x8", "fill must be 0"),
        ("decode_image:mode=rgba,rotate:9:fill=1/2/3,resize:8x8", "fill must be 0"),
        ("decode_image:mode=sepia,resize:8x8", "mode"),
    ] {
        let error = Chain::parse(ops).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.message().contains(part), "{ops}: {error}");
    }
}

#[test]
fn chains_of_before_keep_their_description() {
    let chain = feedstock_ops::ChainSpec::parse("decode_image,random_crop:8,center_crop:4").unwrap();
    let json = serde_json::to_string(&chain).unwrap();
    assert!(!json.contains("mode") && !json.contains("fill"), "{json}");
    assert_eq!(chain.compile().unwrap().output().dtype, DType::U8);
}
