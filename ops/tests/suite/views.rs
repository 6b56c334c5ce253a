//! Views of one decoded image are, bit for bit, what their chains make alone.

use crate::support::{Jpeg, SUBSAMPLINGS, picture};
use feedstock_ops::image::{DecodeImage, DecodeMode, RowIndex, View, ViewRows, Views};
use feedstock_ops::{
    Chain, ChainSpec, ErrorKind, Op, Result, Salt, SampleSeed, Scratch, Warning, decode_image,
    random_resized_crop, resize,
};

/// The rows of a sample.
struct Rows(Vec<Vec<u8>>);

impl ViewRows for Rows {
    fn row(&mut self, view: usize) -> Result<&mut [u8]> {
        Ok(&mut self.0[view])
    }
}

fn run(views: &Views, bytes: &[u8], seed: SampleSeed, scratch: &mut Scratch) -> Result<Vec<Vec<u8>>> {
    let mut rows = Rows(views.outputs().map(|output| vec![77; output.bytes()]).collect());
    views.apply(bytes, seed, scratch, &mut rows)?;
    Ok(rows.0)
}

fn chain(text: &str) -> ChainSpec {
    text.parse().unwrap()
}

/// Every kind of step, before and after pixels are needed: windows, crops with and without padding, steps in place on the decoded image,
/// conversions.
const CHAINS: [&str; 15] = [
    "random_resized_crop:40:scale=0.05..1:filter=bicubic,horizontal_flip,normalize,to_chw",
    "random_resized_crop:24:scale=0.05..0.4,random_apply:[color_jitter:0.4:0.4:0.4:0.1]:0.8,grayscale:0.2",
    "resize:60,center_crop:48",
    "resize:50x70:filter=nearest,random_crop:32",
    "resize:70:filter=lanczos,random_crop:33x41,vertical_flip",
    "random_crop:30x25,solarize:128:0.5",
    "horizontal_flip:1,center_crop:20",
    "gaussian_blur:5,random_resized_crop:16",
    "horizontal_flip:0.5,random_crop:32",
    "pad:5:padding_mode=reflect,random_crop:50",
    "center_crop:400x410,rotate:20",
    "random_crop:20,pad_to:40,to_f32",
    "random_crop:50,color_jitter:0.5,random_crop:24,random_erasing:1",
    "random_resized_crop:32,trivial_augment",
    "horizontal_flip,rotate:40:expand=true,random_crop:60:pad_if_needed=true",
];

fn views(decode: &Op) -> Views {
    let view = |(index, ops): (usize, &&str)| {
        let view = View::new(&format!("view{index}"), chain(ops));
        if index % 2 == 0 { view.count(3) } else { view }
    };
    Views::compile(decode, &CHAINS.iter().enumerate().map(view).collect::<Vec<_>>()).unwrap()
}

/// Compares each image of each view with the chain of its ops alone.
fn are_single_maps(decode: &Op, bytes: &[u8], what: &str, scratch: &mut Scratch) {
    let views = views(decode);
    for id in 0..4 {
        let seed = SampleSeed::new(5, 1, id);
        let rows = run(&views, bytes, seed, scratch).unwrap();
        for ((index, ops), row) in CHAINS.iter().enumerate().zip(&rows) {
            let ops = std::iter::once(decode.clone()).chain(chain(ops).0).collect::<ChainSpec>();
            let ops = ops.compile().unwrap();
            let images = row.chunks_exact(ops.output().bytes());
            assert_eq!(images.len(), if index % 2 == 0 { 3 } else { 1 });
            for (number, image) in (0..).zip(images) {
                let alone = ops.clone().with_salt(Salt::of_view(&format!("view{index}"), number));
                let mut expected = vec![0; ops.output().bytes()];
                alone.apply(bytes, seed, &mut Scratch::new(), &mut expected).unwrap();
                assert!(image == expected, "{what}: {}, sample {id}, image {number}", CHAINS[index]);
            }
            let mut own = vec![0; row.len()];
            views.chain(index).apply(bytes, seed, scratch, &mut own).unwrap();
            assert!(own == *row, "{what}: {}, sample {id}, alone", CHAINS[index]);
        }
    }
}

fn unscaled() -> DecodeImage {
    DecodeImage::new().scaled(false)
}

/// Adds an EXIF segment with this orientation.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let exif = [
        &b"\xFF\xE1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..],
        &[orientation],
        &[0; 7],
    ];
    [&jpeg[..2], &exif.concat(), &jpeg[2..]].concat()
}

fn png(rgb: &[u8], (width, height): (u32, u32)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    out
}

const SIZE: (u32, u32) = (229, 171);

#[test]
fn views_of_every_kind_of_image_are_their_single_maps() {
    let (rgb, mut scratch) = (picture(SIZE.0, SIZE.1, 3), Scratch::new());
    for subsampling in SUBSAMPLINGS {
        for progressive in [false, true] {
            let jpeg = Jpeg { subsampling, progressive, ..Jpeg::default() }.encode(&rgb, SIZE.0, SIZE.1);
            let what = format!("subsampling {subsampling}, progressive {progressive}");
            are_single_maps(&unscaled().into(), &jpeg, &what, &mut scratch);
        }
    }
    are_single_maps(&unscaled().into(), &png(&rgb, SIZE), "PNG", &mut scratch);
    let mut webp = Vec::new();
    let encoder = image_webp::WebPEncoder::new(&mut webp);
    encoder.encode(&rgb, SIZE.0, SIZE.1, image_webp::ColorType::Rgb8).unwrap();
    are_single_maps(&unscaled().into(), &webp, "WebP", &mut scratch);
}

#[test]
fn views_of_turned_and_of_grey_images_are_their_single_maps() {
    let (rgb, mut scratch) = (picture(SIZE.0, SIZE.1, 4), Scratch::new());
    let jpeg = Jpeg::default().encode(&rgb, SIZE.0, SIZE.1);
    for orientation in 1..=8 {
        let decode = unscaled().exif_orientation(true).into();
        let bytes = turned(&jpeg, orientation);
        let of_turned = Chain::parse("decode_image:exif_orientation=true,resize:8x8")
            .unwrap()
            .image_size(&bytes)
            .unwrap();
        assert_eq!(of_turned == Some([SIZE.0, SIZE.1]), orientation > 4, "the segment is read");
        are_single_maps(&decode, &bytes, &format!("orientation {orientation}"), &mut scratch);
    }
    let small = |text: &str| View::new(text, chain(text));
    let decode: Op = unscaled().mode(DecodeMode::Gray).into();
    let both = [small("gaussian_blur:5,random_resized_crop:16"), small("resize:20x30,to_f32")];
    let rows =
        run(&Views::compile(&decode, &both).unwrap(), &jpeg, SampleSeed::new(1, 0, 0), &mut scratch).unwrap();
    for (view, row) in both.iter().zip(&rows) {
        let ops = std::iter::once(decode.clone()).chain(view.ops.0.clone()).collect::<ChainSpec>();
        let alone = ops.compile().unwrap().with_salt(Salt::of_view(&view.name, 0));
        let mut expected = vec![0; alone.output().bytes()];
        alone.apply(&jpeg, SampleSeed::new(1, 0, 0), &mut scratch, &mut expected).unwrap();
        assert!(*row == expected, "{}", view.name);
    }
}

/// A view that needs less than all others gets what they need.
#[test]
fn large_images_are_decoded_at_the_finest_fraction_that_a_view_needs() {
    let (width, height) = (640, 512);
    let rgb = picture(width, height, 9);
    for (bytes, orientation) in [1, 6]
        .map(|orientation| (turned(&Jpeg::default().encode(&rgb, width, height), orientation), orientation))
    {
        let exif = |scaled: bool| -> Op { DecodeImage::new().scaled(scaled).exif_orientation(true).into() };
        let (seed, mut scratch) = (SampleSeed::new(1, 0, 3), Scratch::new());
        let mut made = |decode: &Op, sides: &[u32]| -> Vec<Vec<u8>> {
            let views: Vec<View> =
                sides.iter().map(|side| View::new(&format!("s{side}"), [resize([*side, *side])])).collect();
            run(&Views::compile(decode, &views).unwrap(), &bytes, seed, &mut scratch).unwrap()
        };
        let [scaled, whole] = [exif(true), exif(false)];
        type Made<'a> = dyn FnMut(&Op, &[u32]) -> Vec<Vec<u8>> + 'a;
        let alone = |made: &mut Made<'_>, decode: &Op, side: u32| made(decode, &[side]).remove(0);
        // 512 / 60 allows 1/4, 512 / 30 1/8, 512 / 100 1/2, 512 / 200 only the whole size.
        let (quarter, eighth) = (alone(&mut made, &scaled, 60), alone(&mut made, &scaled, 30));
        let both = made(&scaled, &[60, 30]);
        assert_eq!(both[0], quarter, "orientation {orientation}: its own fraction");
        assert!(
            both[1] != eighth && both[1] != alone(&mut made, &whole, 30),
            "orientation {orientation}: a quarter, not an eighth"
        );
        let (most, mean) = crate::support::most_and_mean(&both[1], &alone(&mut made, &whole, 30));
        assert!(most <= 20 && mean < 1.5, "orientation {orientation}: {most} at most, {mean} on average");
        let mut swapped = made(&scaled, &[30, 60]);
        swapped.reverse();
        assert_eq!(swapped, both, "the order of views does not count");
        assert_eq!(
            made(&scaled, &[60, 200, 30]),
            made(&whole, &[60, 200, 30]),
            "one view needs the whole size"
        );
    }
}

#[test]
fn scaled_crops_of_one_fraction_are_their_single_maps() {
    let (width, height) = (800, 640);
    let jpeg = Jpeg::default().encode(&picture(width, height, 2), width, height);
    let ops = "random_resized_crop:48:scale=0.25..1,horizontal_flip"; // of 310 to 640 pixels: a half or a quarter
    let views = Views::compile(&decode_image(), &[View::new("local", chain(ops)).count(6)]).unwrap();
    let single = chain(&format!("decode_image,{ops}")).compile().unwrap();
    let (mut scratch, mut equal, mut images) = (Scratch::new(), 0, 0);
    for id in 0..12 {
        let seed = SampleSeed::new(3, 0, id);
        let rows = run(&views, &jpeg, seed, &mut scratch).unwrap();
        for (number, image) in (0..).zip(rows[0].chunks_exact(single.output().bytes())) {
            let mut alone = vec![0; image.len()];
            single
                .clone()
                .with_salt(Salt::of_view("local", number))
                .apply(&jpeg, seed, &mut scratch, &mut alone)
                .unwrap();
            (equal, images) = (equal + usize::from(alone == image), images + 1);
        }
    }
    assert!(equal >= 12 && equal < images, "{equal} of {images} need the finest fraction of their sample");
}

/// Pins the derivation, which is part of the format: the first draw of op 1 of sample 42 in epoch 3 with seed 7.
#[test]
fn a_views_draws_absorb_its_name_and_number() {
    let first =
        |number: u32| SampleSeed::new(7, 3, 42).salted(Salt::of_view("local", number)).op(1).next_u64();
    assert_eq!([0, 7].map(first), [12_678_455_580_665_715_817, 13_395_340_166_179_566_289]);
    assert_eq!(Salt::of_view("local", 7), Salt::of_key("local/7"));
    let salts = [("local", 0), ("local", 1), ("local", 10), ("local/1", 0), ("global", 0)];
    let firsts = salts
        .map(|(name, number)| SampleSeed::new(7, 3, 42).salted(Salt::of_view(name, number)).op(1).next_u64());
    assert_eq!(std::collections::BTreeSet::from(firsts).len(), salts.len());
}

#[test]
fn views_do_not_depend_on_other_views_and_differ_from_each_other() {
    let jpeg = Jpeg::default().encode(&picture(SIZE.0, SIZE.1, 8), SIZE.0, SIZE.1);
    let crop = || [random_resized_crop(32)];
    let (decode, mut scratch): (Op, _) = (unscaled().into(), Scratch::new());
    let mut made = |views: &[View]| {
        let views = Views::compile(&decode, views).unwrap();
        run(&views, &jpeg, SampleSeed::new(7, 0, 1), &mut scratch).unwrap()
    };
    let [global, local] = [View::new("global", crop()), View::new("local", crop()).count(8)];
    let both = made(&[global.clone(), local.clone()]);
    let mut swapped = made(&[local.clone(), global.clone()]);
    swapped.reverse();
    assert_eq!(both, swapped);
    assert_eq!(made(std::slice::from_ref(&local)), both[1..]);
    assert_eq!(made(&[View::new("local", crop())])[0], both[1][..32 * 32 * 3], "one view is number 0");
    let images: std::collections::BTreeSet<&[u8]> =
        both.iter().flat_map(|row| row.chunks_exact(32 * 32 * 3)).collect();
    assert_eq!(images.len(), 9);
}

#[test]
fn where_rows_begin_may_be_known() {
    let jpeg = Jpeg::default().encode(&picture(SIZE.0, SIZE.1, 8), SIZE.0, SIZE.1);
    let ops = "random_resized_crop:16:scale=0.01..0.05";
    let views = Views::compile(&decode_image(), &[View::new("small", chain(ops)).count(2)]).unwrap();
    assert!(views.chain(0).shows_parts());
    let (mut scratch, mut known, mut jumped) = (Scratch::new(), None::<RowIndex>, 0);
    for id in 0..20 {
        let seed = SampleSeed::new(2, 0, id);
        let expected = run(&views, &jpeg, seed, &mut Scratch::new()).unwrap();
        jumped += usize::from(known.is_some());
        scratch.note_rows(known.clone());
        assert_eq!(run(&views, &jpeg, seed, &mut scratch).unwrap(), expected);
        known = scratch.take_rows().or(known);
    }
    assert!(jumped >= 10, "{jumped} of 20 samples knew where rows begin");
}

#[test]
fn a_bad_image_is_bad_for_all_views_and_the_next_one_is_good() {
    let jpeg = Jpeg::default().encode(&picture(SIZE.0, SIZE.1, 8), SIZE.0, SIZE.1);
    let large = View::new("large", chain("random_crop:172"));
    let views =
        Views::compile(&decode_image(), &[View::new("small", [random_resized_crop(8)]), large]).unwrap();
    let mut scratch = Scratch::new();
    let refusal = |bytes: &[u8], scratch: &mut Scratch| {
        let error = run(&views, bytes, SampleSeed::new(1, 0, 0), scratch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
        error.message().to_owned()
    };
    let no_image = refusal(b"no image", &mut scratch);
    assert!(no_image.ends_with("are no JPEG, PNG or WebP"), "{no_image}");
    let too_small = refusal(&jpeg, &mut scratch);
    assert!(too_small.starts_with("view 'large': "), "{too_small}");
    let good = Jpeg::default().encode(&picture(300, 280, 8), 300, 280);
    run(&views, &good, SampleSeed::new(1, 0, 0), &mut scratch).unwrap();
    let mut cut = png(&picture(300, 280, 8), (300, 280));
    cut.truncate(cut.len() - 12); // without its end
    run(&views, &cut, SampleSeed::new(1, 0, 0), &mut scratch).unwrap();
    assert!(scratch.take_warnings().contains(Warning::DamagedData));
}

#[test]
fn descriptions_that_make_no_views_are_refused() {
    let refusal = |decode: &Op, views: &[View]| match Views::compile(decode, views) {
        Ok(views) => panic!("{views:?}"),
        Err(error) => error.message().to_owned(),
    };
    let crop = |name: &str| View::new(name, [random_resized_crop(8)]);
    let decode = decode_image();
    assert_eq!(refusal(&decode, &[]), "views must have at least one view");
    assert!(refusal(&decode, &[crop("a"), crop("a")]).ends_with("another one than the other views; got 'a'"));
    assert!(refusal(&decode, &[crop("")]).ends_with("got ''"));
    assert_eq!(
        refusal(&decode, &[crop("a").count(1025)]),
        "view 'a': the number of images must be 1 … 1024; got 1025"
    );
    let twice = View::new("a", [decode_image(), resize([8, 8])]);
    assert!(refusal(&decode, &[crop("b"), twice]).starts_with("view 'a': op 1 (decode_image)"));
    assert!(refusal(&resize([8, 8]), &[crop("a")]).ends_with("start with decode_image, not with resize"));
}
