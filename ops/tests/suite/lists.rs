//! Each image of a list is, bit for bit, what the chain makes of it alone with the seed of its number.

use crate::support::{Jpeg, picture};
use feedstock_ops::{
    Chain, ChainSpec, ErrorKind, ImageList, RaggedRow, Result, Salt, SampleSeed, Scratch, Warning,
    decode_image, resize,
};
use std::collections::BTreeSet;

const OPS: &str = "decode_image,random_resized_crop:24,horizontal_flip,color_jitter:0.4:0.4";

fn image(number: u64) -> Vec<u8> {
    let (width, height) = (40 + 17 * number as u32, 90 - 11 * number as u32);
    Jpeg::default().encode(&picture(width, height, number), width, height)
}

fn run(chain: &Chain, images: &[&[u8]], seed: SampleSeed, scratch: &mut Scratch) -> Result<RaggedRow> {
    let mut row = RaggedRow::new();
    row.raw(1, 50_000).fill(77); // of another sample
    chain.apply_list(&images.to_vec(), seed, scratch, &mut row)?;
    Ok(row)
}

/// Returns the images of a row.
fn split<'a>(chain: &Chain, row: &'a RaggedRow) -> Vec<&'a [u8]> {
    let bytes = chain.output().bytes_at(1).unwrap();
    assert_eq!(row.bytes().len(), row.length() * bytes);
    row.bytes().chunks_exact(bytes).collect()
}

#[test]
fn an_image_of_a_list_is_the_image_alone_with_its_number() {
    let images: Vec<Vec<u8>> = (0..5).map(image).collect();
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    let mut scratch = Scratch::new();
    let masks =
        "decode_image:mode=gray,random_crop:30:pad_if_needed=true,normalize:0.5/0.5/0.5:0.2/0.2/0.2,to_chw";
    for ops in [OPS, masks, "decode_image:mode=rgba,random_resized_crop:20"] {
        for salt in [Salt::default(), Salt::of_key("pair")] {
            let one = Chain::parse(ops).unwrap().with_salt(salt);
            let list = one.of_lists(5).unwrap();
            assert_eq!(list.output().shape[1..], one.output().shape);
            assert_eq!((list.output().dtype, list.salt()), (one.output().dtype, salt));
            for count in [0, 1, 5] {
                let seed = SampleSeed::new(5, 1, count as u64);
                let row = run(&list, &images[..count], seed, &mut scratch).unwrap();
                assert_eq!(row.length(), count);
                for (number, found) in (0..).zip(split(&list, &row)) {
                    let mut expected = vec![0; one.output().bytes()];
                    let seed = one.seed(seed).image(number);
                    // Without its salt, which the seed has absorbed already.
                    let plain = one.clone().with_salt(Salt::default());
                    plain.apply(images[number as usize], seed, &mut scratch, &mut expected).unwrap();
                    assert!(found == expected, "{ops}, image {number} of {count}");
                }
            }
        }
    }
}

#[test]
fn equal_images_of_a_list_have_independent_draws() {
    let same = image(1);
    let list = Chain::parse(OPS).unwrap().of_lists(Chain::MAX_IMAGES).unwrap();
    let row = run(&list, &[&same[..]; 8], SampleSeed::new(5, 0, 3), &mut Scratch::new()).unwrap();
    assert_eq!(split(&list, &row).into_iter().collect::<BTreeSet<_>>().len(), 8);
}

/// Computed with the derivation that `ops/src/seed.rs` documents, in Python.
#[test]
fn the_seeds_of_images_stay_the_same() {
    let first = |number| SampleSeed::new(7, 1, 42).image(number).op(1).next_u64();
    assert_eq!(
        [0, 1, 255].map(first),
        [357_623_588_148_644_640, 7_853_896_750_013_075_097, 7_261_097_864_662_546_771]
    );
}

/// An image that is null.
struct Null(Vec<u8>);

impl ImageList for Null {
    fn count(&self) -> usize {
        3
    }

    fn image(&self, number: usize) -> Result<&[u8]> {
        match number {
            2 => Err(feedstock_ops::Error::bad_sample("it is null")),
            _ => Ok(&self.0),
        }
    }
}

#[test]
fn what_is_wrong_names_the_image() {
    let good = image(0);
    let list = Chain::parse(OPS).unwrap().of_lists(3).unwrap();
    let (seed, mut scratch) = (SampleSeed::new(5, 0, 3), Scratch::new());
    let mut refusal = |images: &[&[u8]]| {
        let error = run(&list, images, seed, &mut scratch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSample);
        error.message().to_owned()
    };
    let damaged = refusal(&[&good, b"not an image", &good]);
    assert!(damaged.starts_with("image 1 of the list: "), "{damaged}");
    assert_eq!(
        refusal(&[&good[..]; 4]),
        "the list has 4 images, over max_images (3); raise the limit or set on_error=skip"
    );
    let error = list.apply_list(&Null(good.clone()), seed, &mut scratch, &mut RaggedRow::new()).unwrap_err();
    assert_eq!(error.message(), "image 2 of the list: it is null");
    // The scratch is ready for the next sample.
    assert_eq!(run(&list, &[&good], seed, &mut scratch).unwrap().length(), 1);
}

#[test]
fn a_row_that_no_worker_could_send_is_bad_before_memory_is_allocated() {
    let large = ChainSpec::from([decode_image(), resize([4096, 4096])]).compile().unwrap();
    let list = large.of_lists(u32::MAX).unwrap();
    let images = vec![&b""[..]; 22]; // 4096 × 4096 × 3 bytes each: 1.03 GiB
    let mut row = RaggedRow::new();
    let error =
        list.apply_list(&images, SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut row).unwrap_err();
    assert!(error.message().contains("[22, 4096, 4096, 3]"), "{error}");
    assert_eq!(row.capacity_bytes(), 0);
}

#[test]
fn warnings_of_all_images_are_kept() {
    let mut good = Vec::new();
    let mut encoder = png::Encoder::new(&mut good, 8, 8);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[9; 192]).unwrap();
    let cut = &good[..good.len() - 12]; // without its end
    let list = Chain::parse("decode_image,resize:8x8").unwrap().of_lists(9).unwrap();
    let mut scratch = Scratch::new();
    let seed = SampleSeed::new(5, 0, 3);
    run(&list, &[&good, cut, &good], seed, &mut scratch).unwrap();
    assert!(scratch.take_warnings().contains(Warning::DamagedData));
    run(&list, &[&good, &good], seed, &mut scratch).unwrap();
    assert!(scratch.take_warnings().is_empty());
}

/// Working memory is predicted for each image: that of the sample is that of its largest image.
#[test]
fn the_working_memory_of_a_list_is_that_of_its_largest_image() {
    let (small, large) = (image(0), Jpeg::default().encode(&picture(900, 800, 1), 900, 800));
    let one = Chain::parse("decode_image:scaled=false,resize:8x8").unwrap();
    let needed = |chain: &dyn Fn(&mut Scratch) -> Result<()>| {
        let mut scratch = Scratch::new();
        scratch.allow(100_000);
        let mut last = 0;
        for _ in 0..10 {
            match chain(&mut scratch) {
                Ok(()) => return last,
                Err(_) => {
                    last = scratch.take_needed().unwrap();
                    scratch.allow(last);
                }
            }
        }
        panic!("it never has enough");
    };
    let seed = SampleSeed::new(5, 0, 3);
    let alone = needed(&|scratch| one.apply(&large, seed, scratch, &mut [0; 192]));
    let list = one.of_lists(9).unwrap();
    let images = vec![&small[..], &large[..], &small[..], &large[..]];
    let listed = needed(&|scratch| list.apply_list(&images, seed, scratch, &mut RaggedRow::new()));
    assert_eq!(listed, alone);
}

/// Returns what a sample asks for, one run after another, until it has enough.
fn requests(list: &Chain, images: &[&[u8]]) -> (Vec<u64>, Result<()>) {
    let (mut scratch, mut requests) = (Scratch::new(), Vec::new());
    scratch.allow(100_000);
    loop {
        let done =
            list.apply_list(&images.to_vec(), SampleSeed::new(5, 0, 3), &mut scratch, &mut RaggedRow::new());
        match scratch.take_needed() {
            Some(needed) => {
                scratch.allow(needed);
                requests.push(needed);
            }
            None => return (requests, done),
        }
        assert!(requests.len() < 50, "{requests:?}");
    }
}

#[test]
fn a_sample_asks_once_for_the_memory_of_its_largest_image() {
    let sides = (0..20).map(|number| 100 + 30 * number);
    let images: Vec<Vec<u8>> =
        sides.map(|side| Jpeg::default().encode(&picture(side, side, 1), side, side)).collect();
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    let list = Chain::parse("decode_image:scaled=false,resize:8x8").unwrap().of_lists(30).unwrap();
    let (asked, done) = requests(&list, &images);
    done.unwrap();
    let (of_largest, done) = requests(&list, &images[19..]);
    done.unwrap();
    assert_eq!((asked.len(), &asked), (1, &of_largest));

    let mut broken = images.clone();
    broken[3] = b"not an image";
    let (asked, done) = requests(&list, &broken);
    assert_eq!(asked.len(), 1);
    assert!(asked[0] < of_largest[0], "images after the broken one are not decoded");
    assert!(done.unwrap_err().message().starts_with("image 3 of the list: "));
}

#[test]
fn only_images_can_be_in_lists() {
    let refusal = |chain: &Chain, most| chain.of_lists(most).unwrap_err().message().to_owned();
    let image = Chain::parse(OPS).unwrap();
    assert_eq!(refusal(&image, 0), "max_images must be at least 1; got 0");
    let lists = image.of_lists(3).unwrap();
    assert!(refusal(&lists, 3).starts_with("only images can be in lists"));
    let deferred = lists.deferring(0.5).unwrap_err();
    assert!(deferred.message().contains("lists of images are decoded by CPUs"), "{deferred}");
    let error = lists.apply_ragged(b"", SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut RaggedRow::new());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Bug);
    assert!(!image.reads_lists() && lists.reads_lists() && !lists.shows_parts());
}
