//! A region that is decoded alone is bit-identical to that region of the whole image.

use crate::support::{Dice, Jpeg, SUBSAMPLINGS, most_and_mean, picture, turbo_decode};
use feedstock_ops::image::{DecodeImage, RandomCrop, RandomResizedCrop, decode_rgb};
use feedstock_ops::{Chain, ChainSpec, Op, SampleSeed, Scratch, decode_image};
use turbojpeg_sys as tj;

fn run(chain: &Chain, bytes: &[u8], id: u64, scratch: &mut Scratch) -> Vec<u8> {
    let mut out = vec![0; chain.output().bytes()];
    chain.apply(bytes, SampleSeed::new(9, 0, id), scratch, &mut out).unwrap();
    out
}

/// Returns the position of `part` in `whole`, if `whole` contains it.
fn find(
    whole: &[u8],
    (w, h): (usize, usize),
    part: &[u8],
    (pw, ph): (usize, usize),
) -> Option<(usize, usize)> {
    (0..=h - ph).flat_map(|y| (0..=w - pw).map(move |x| (x, y))).find(|&(x, y)| {
        (0..ph).all(|row| {
            let at = ((y + row) * w + x) * 3;
            whole[at..at + pw * 3] == part[row * pw * 3..(row + 1) * pw * 3]
        })
    })
}

/// Checks that random crops of one file are each found in libjpeg-turbo's full decode.
fn crops_are_found(jpeg: Jpeg, w: u32, h: u32, crops: u64, scratch: &mut Scratch) {
    let bytes = jpeg.encode(&picture(w, h, u64::from(w * h)), w, h);
    let whole = turbo_decode(&bytes, w, h);
    let mut dice = Dice(u64::from(w + h));
    let size = (w as usize, h as usize);
    assert_eq!(decode_rgb(&bytes, &DecodeImage::new()).unwrap().1, whole);
    for id in 0..crops {
        let (cw, ch) = (1 + dice.below(w), 1 + dice.below(h));
        let chain = ChainSpec::from([decode_image(), RandomCrop::new([ch, cw]).into()]).compile().unwrap();
        let part = run(&chain, &bytes, id, scratch);
        let place = find(&whole, size, &part, (cw as usize, ch as usize));
        assert!(place.is_some(), "crop {id} of {cw}×{ch} from {w}×{h}, subsampling {}", jpeg.subsampling);
    }
}

/// Returns the start of a marker's segment.
fn segment(bytes: &[u8], marker: u8) -> usize {
    bytes.windows(2).position(|pair| pair == [0xFF, marker]).unwrap() + 2
}

/// Coefficients outside the usual range, as in damaged files, wrap and saturate as in libjpeg-turbo.
#[cfg(target_arch = "x86_64")]
#[test]
fn coefficients_out_of_range_are_libjpeg_turbos() {
    let mut bytes = Jpeg::default().encode(&picture(96, 80, 5), 96, 80);
    for _table in 0..2 {
        let at = segment(&bytes, 0xDB);
        let length = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        bytes[at + 3..at + length].fill(255);
        bytes[at - 1] = 0xEE; // an error; restored below
    }
    for at in 0..bytes.len() - 1 {
        if bytes[at..at + 2] == [0xFF, 0xEE] {
            bytes[at + 1] = 0xDB;
        }
    }
    let whole = turbo_decode(&bytes, 96, 80);
    assert!(whole.contains(&0) && whole.contains(&255));
    assert_eq!(decode_rgb(&bytes, &DecodeImage::new()).unwrap().1, whole);
}

#[test]
fn components_in_another_order_than_the_frames_are_refused() {
    let mut bytes = Jpeg::default().encode(&picture(96, 80, 6), 96, 80);
    let at = segment(&bytes, 0xDA);
    assert_eq!(bytes[at + 2], 3);
    for byte in 0..2 {
        bytes.swap(at + 5 + byte, at + 7 + byte);
    }
    let error = decode_rgb(&bytes, &DecodeImage::new()).unwrap_err();
    assert!(error.to_string().contains("component ID"), "{error}"); // libjpeg-turbo's message
}

#[test]
fn random_crops_of_every_subsampling_and_odd_sizes() {
    let mut scratch = Scratch::new();
    for subsampling in SUBSAMPLINGS {
        for (w, h) in [(64, 48), (97, 61), (161, 83), (33, 130), (1, 1), (2, 3), (17, 16), (15, 40)] {
            crops_are_found(Jpeg { subsampling, ..Jpeg::default() }, w, h, 24, &mut scratch);
        }
    }
}

#[test]
fn random_crops_of_progressive_optimised_arithmetic_and_restarted_files() {
    let mut scratch = Scratch::new();
    let variants = [
        Jpeg { progressive: true, ..Jpeg::default() },
        Jpeg { optimize: true, quality: 60, ..Jpeg::default() },
        Jpeg { arithmetic: true, ..Jpeg::default() },
        Jpeg { restart_blocks: 1, ..Jpeg::default() },
        Jpeg { restart_blocks: 7, quality: 98, ..Jpeg::default() },
        Jpeg { quality: 100, ..Jpeg::default() },
        Jpeg { quality: 1, ..Jpeg::default() },
    ];
    for jpeg in variants {
        for subsampling in [tj::TJSAMP_TJSAMP_420, tj::TJSAMP_TJSAMP_422, tj::TJSAMP_TJSAMP_444] {
            for (w, h) in [(97, 61), (160, 96)] {
                crops_are_found(Jpeg { subsampling, ..jpeg }, w, h, 24, &mut scratch);
            }
        }
    }
}

#[test]
fn random_resized_crop_equals_full_decode_then_crop_then_resize() {
    let (w, h) = (400, 350);
    let bytes = Jpeg { quality: 95, ..Jpeg::default() }.encode(&picture(w, h, 5), w, h);
    // The same image as PNG takes the path that decodes everything.
    let whole = png_of(&turbo_decode(&bytes, w, h), w, h);
    let op: Op = RandomResizedCrop::new(224).into();
    let chain = ChainSpec::from([decode_image(), op]).compile().unwrap();
    let mut scratch = Scratch::new();
    for id in 0..300 {
        assert_eq!(run(&chain, &bytes, id, &mut scratch), run(&chain, &whole, id, &mut scratch), "draw {id}");
    }
}

#[test]
fn resize_then_crop_equals_the_two_steps() {
    let (w, h) = (230, 171);
    let bytes = Jpeg::default().encode(&picture(w, h, 6), w, h);
    let mut scratch = Scratch::new();
    for filter in ["bilinear", "bicubic", "lanczos"] {
        for (size, crop) in [(96, 80), (40, 40), (200, 128), (171, 100)] {
            let fused =
                Chain::parse(&format!("decode_image,resize:{size}:filter={filter},center_crop:{crop}"));
            let longer = size * w / h;
            let resized =
                Chain::parse(&format!("decode_image,resize:{size}x{longer}:filter={filter}")).unwrap();
            let resized = png_of(&run(&resized, &bytes, 0, &mut scratch), longer, size);
            let cropped = Chain::parse(&format!("decode_image,center_crop:{crop}")).unwrap();
            let (most, mean) = most_and_mean(
                &run(&fused.unwrap(), &bytes, 0, &mut scratch),
                &run(&cropped, &resized, 0, &mut scratch),
            );
            // Weights are equal except for rounding of about 2⁻¹⁴, once per pass.
            assert!(most <= 2 && mean < 0.01, "{filter} {size} {crop}: {most} {mean}");
        }
    }
}

#[test]
fn scaled_decoding_stays_close_and_can_be_turned_off() {
    let (w, h) = (1800, 1500);
    let bytes = Jpeg::default().encode(&picture(w, h, 7), w, h);
    let whole = png_of(&turbo_decode(&bytes, w, h), w, h);
    let mut scratch = Scratch::new();
    let crop = |decode: DecodeImage| {
        let op = RandomResizedCrop::new(224).scale([0.5, 1.0]);
        ChainSpec::from([decode.into(), op.into()]).compile().unwrap()
    };
    let (scaled, exact) = (crop(DecodeImage::new()), crop(DecodeImage::new().scaled(false)));
    let mut differ = 0;
    for id in 0..12 {
        let reference = run(&exact, &whole, id, &mut scratch);
        assert_eq!(run(&exact, &bytes, id, &mut scratch), reference);
        let (most, mean) = most_and_mean(&run(&scaled, &bytes, id, &mut scratch), &reference);
        assert!(mean < 1.0 && most < 24, "draw {id}: {most} {mean}");
        differ += u32::from(most > 0);
    }
    assert!(differ > 0, "scaled decoding never happened, so this test proves nothing");
}

fn png_of(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    bytes
}

#[test]
fn ycck_decodes_like_the_cmyk_it_came_from() {
    let (w, h) = (90, 61);
    let rgb = picture(w, h, 8);
    // Inverted CMYK as Adobe writes it, with some black.
    let cmyk: Vec<u8> = rgb.chunks_exact(3).flat_map(|p| [p[0], p[1], p[2], 255 - p[0] / 3]).collect();
    let jpeg = Jpeg { subsampling: tj::TJSAMP_TJSAMP_444, quality: 100, ..Jpeg::default() };
    let bytes = jpeg.encode_as(&cmyk, w, h, tj::TJPF_TJPF_CMYK);
    let (_, decoded) = decode_rgb(&bytes, &DecodeImage::new()).unwrap();
    let expected: Vec<u8> = cmyk
        .chunks_exact(4)
        .flat_map(|p| [0, 1, 2].map(|c| (u32::from(p[c]) * u32::from(p[3]) / 255) as u8))
        .collect();
    let (most, mean) = most_and_mean(&decoded, &expected);
    assert!(most <= 6 && mean < 1.0, "{most} {mean}");
    let mut scratch = Scratch::new();
    let chain = Chain::parse("decode_image,random_crop:20x30").unwrap();
    let part = run(&chain, &bytes, 1, &mut scratch);
    assert!(find(&decoded, (90, 61), &part, (30, 20)).is_some());
}
