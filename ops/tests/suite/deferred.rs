//! Chains that leave images to a GPU: which images, and their descriptions.

use crate::support::{Jpeg, golden, picture};
use feedstock_ops::image::{DeferredRow, RandomResizedCrop, Rect, Shown, Size};
use feedstock_ops::{Chain, ErrorKind, RaggedRow, SampleSeed, Scratch};
use turbojpeg_sys as tj;

const CHAIN: &str = "decode_image,random_resized_crop:32,horizontal_flip";

fn jpeg() -> Vec<u8> {
    Jpeg::default().encode(&picture(120, 90, 1), 120, 90)
}

fn deferred(chain: &Chain, bytes: &[u8], seed: SampleSeed) -> RaggedRow {
    let mut row = RaggedRow::new();
    chain.apply_ragged(bytes, seed, &mut Scratch::new(), &mut row).unwrap();
    assert_eq!(row.length(), row.bytes().len());
    row
}

fn shown(chain: &str, bytes: &[u8], seed: SampleSeed) -> Shown {
    let chain = Chain::parse(chain).unwrap().deferring(1.0).unwrap();
    match DeferredRow::read(deferred(&chain, bytes, seed).bytes()).unwrap() {
        DeferredRow::Jpeg(same, shown) => {
            assert!(same == bytes);
            shown
        }
        DeferredRow::Pixels(_) => panic!("decoded by the CPU"),
    }
}

#[test]
fn a_deferred_row_is_the_jpeg_and_what_the_chain_shows_of_it() {
    let (bytes, picture) = (jpeg(), Size { height: 90, width: 120 });
    for id in 0..20 {
        let seed = SampleSeed::new(3, 1, id);
        let view = RandomResizedCrop::new(32).draw(picture, &mut seed.op(1));
        let window = [0.0, 0.0, f64::from(view.width), f64::from(view.height)];
        let (mirrored, upended) = (seed.op(2).chance(0.5), seed.op(3).chance(0.5));
        let mut expected = Shown { picture, view, window, mirrored, upended: false };
        assert_eq!(shown(CHAIN, &bytes, seed), expected);
        expected.upended = upended;
        assert_eq!(shown(&format!("{CHAIN},vertical_flip"), &bytes, seed), expected);
    }
    let whole = Rect { x: 0, y: 0, width: 120, height: 90 };
    let seed = SampleSeed::new(3, 1, 0);
    // 120 × 90 becomes 60 × 45, whose middle 40 × 40 begins at (10, 2): half of 5 is 2, as torchvision rounds.
    let window = [20.0, 4.0, 80.0, 80.0];
    let expected = Shown { picture, view: whole, window, mirrored: false, upended: false };
    assert_eq!(shown("decode_image,resize:45,center_crop:40", &bytes, seed), expected);
    let window = [0.0, 0.0, 120.0, 90.0];
    let expected = Shown { picture, view: whole, window, mirrored: true, upended: false };
    assert_eq!(shown("decode_image,resize:30x70,horizontal_flip:1", &bytes, seed), expected);
    let expected = Shown { mirrored: false, upended: true, ..expected };
    let flips = "vertical_flip:1,horizontal_flip:1,horizontal_flip:1";
    assert_eq!(shown(&format!("decode_image,resize:30x70,{flips}"), &bytes, seed), expected);
}

#[test]
fn the_split_is_a_pure_function_of_the_seed() {
    let (chain, bytes) = (Chain::parse(CHAIN).unwrap(), jpeg());
    let picked = |share: f64| -> Vec<bool> {
        let deferring = chain.deferring(share).unwrap();
        let pick = |id| {
            let seed = SampleSeed::new(7, 2, id);
            match DeferredRow::read(deferred(&deferring, &bytes, seed).bytes()).unwrap() {
                DeferredRow::Jpeg(..) => true,
                DeferredRow::Pixels(pixels) => {
                    let mut expected = vec![0; chain.output().bytes()];
                    chain.apply(&bytes, seed, &mut Scratch::new(), &mut expected).unwrap();
                    assert!(pixels == expected, "the CPU's result");
                    false
                }
            }
        };
        (0..400).map(pick).collect()
    };
    let count = |picked: &[bool]| picked.iter().filter(|picked| **picked).count();
    let (few, half) = (picked(0.2), picked(0.5));
    assert_eq!(half, picked(0.5));
    assert!((55..105).contains(&count(&few)) && (160..240).contains(&count(&half)));
    assert!(few.iter().zip(&half).all(|(few, half)| !few || *half), "a larger share only adds");
    assert_eq!((count(&picked(0.0)), count(&picked(1.0))), (0, 400));
}

#[test]
fn what_decoders_in_hardware_do_not_take_stays_with_the_cpu() {
    let chain = Chain::parse(CHAIN).unwrap();
    let deferring = chain.deferring(1.0).unwrap();
    let of = |jpeg: Jpeg| jpeg.encode(&picture(120, 90, 1), 120, 90);
    let noise: Vec<u8> = {
        let mut dice = crate::support::Dice(5);
        (0..200 * 200 * 3).map(|_| dice.below(256) as u8).collect()
    };
    let seed = SampleSeed::new(1, 2, 3);
    for (what, bytes) in [
        ("a PNG", golden("scene.png")),
        ("progressive", of(Jpeg { progressive: true, ..Jpeg::default() })),
        ("4:1:1", of(Jpeg { subsampling: tj::TJSAMP_TJSAMP_411, ..Jpeg::default() })),
        ("far larger than its row", Jpeg { quality: 100, ..Jpeg::default() }.encode(&noise, 200, 200)),
        (
            "of far more pixels than its row",
            Jpeg { quality: 5, ..Jpeg::default() }.encode(&vec![90; 300 * 300 * 3], 300, 300),
        ),
    ] {
        let row = deferred(&deferring, &bytes, seed);
        let mut expected = vec![0; chain.output().bytes()];
        chain.apply(&bytes, seed, &mut Scratch::new(), &mut expected).unwrap();
        assert!(DeferredRow::read(row.bytes()).unwrap() == DeferredRow::Pixels(&expected), "{what}");
    }
    let cut = &jpeg()[..1500];
    let error = deferring.apply_ragged(cut, seed, &mut Scratch::new(), &mut RaggedRow::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample, "the CPU rejects a JPEG without its end: {error}");
}

/// The CPU's decoding at half the size differs from a GPU's decoding of the whole image.
#[test]
fn pictures_that_the_cpu_halves_stay_with_it() {
    let bytes = Jpeg { quality: 50, ..Jpeg::default() }.encode(&picture(200, 160, 1), 200, 160);
    let seed = SampleSeed::new(1, 2, 3);
    let is_deferred = |chain: &str| {
        let chain = Chain::parse(chain).unwrap().deferring(1.0).unwrap();
        matches!(DeferredRow::read(deferred(&chain, &bytes, seed).bytes()).unwrap(), DeferredRow::Jpeg(..))
    };
    for (size, is_large) in [("64x64", false), ("40x40", true), ("41x51", false)] {
        assert_eq!(is_deferred(&format!("decode_image,resize:{size}")), !is_large, "{size}");
        assert!(is_deferred(&format!("decode_image:scaled=false,resize:{size}")));
    }
    assert!(!is_deferred("decode_image,resize:40,center_crop:40"));
    assert!(is_deferred("decode_image,resize:60,center_crop:40"));
}

#[test]
fn chains_that_do_more_are_refused() {
    for (chain, says) in [
        ("decode_image,random_resized_crop:32,color_jitter", "chains of decode_image"),
        ("decode_image,random_resized_crop:32,normalize", "chains of decode_image"),
        ("decode_image,random_resized_crop:32:filter=bicubic", "bilinear"),
        ("decode_image,horizontal_flip,random_resized_crop:32", "chains of decode_image"),
        ("decode_image,center_crop:32", "chains of decode_image"),
    ] {
        let error = Chain::parse(chain).unwrap().deferring(0.5).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{chain}");
        assert!(error.message().contains(says), "{chain}: {error}");
    }
    let chain = Chain::parse(CHAIN).unwrap();
    for share in [-0.1, 1.5, f64::NAN] {
        assert_eq!(chain.deferring(share).err().unwrap().kind(), ErrorKind::BadConfig);
    }
    assert_eq!(DeferredRow::read(&[0; 63]).unwrap_err().kind(), ErrorKind::Bug);
    assert_eq!(DeferredRow::read(&[9; 80]).unwrap_err().kind(), ErrorKind::Bug);
}
