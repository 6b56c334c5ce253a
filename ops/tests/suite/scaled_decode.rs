//! Reduced sizes of baseline JPEGs are those of libjpeg-turbo, bit for bit.
//!
//! A progressive JPEG of the same pixels has the same coefficients, and libjpeg-turbo decodes it. So a chain must return the same for
//! both files.

use crate::support::{Dice, Jpeg, picture, textured_picture};
use feedstock_ops::{Chain, SampleSeed, Scratch};
use turbojpeg_sys as tj;

/// Returns an image as baseline and as progressive JPEG.
fn twins(jpeg: Jpeg, rgb: &[u8], (width, height): (u32, u32)) -> [Vec<u8>; 2] {
    [false, true].map(|progressive| {
        let restart_blocks = if progressive { 0 } else { jpeg.restart_blocks };
        Jpeg { progressive, restart_blocks, ..jpeg }.encode(rgb, width, height)
    })
}

fn outcome(chain: &Chain, bytes: &[u8], id: u64, scratch: &mut Scratch) -> Result<Vec<u8>, String> {
    let mut out = vec![0; chain.output().bytes()];
    chain.apply(bytes, SampleSeed::new(11, 0, id), scratch, &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

/// Checks that both files give the same with each chain, for some seeds.
fn are_alike(chains: &[&str], [baseline, progressive]: &[Vec<u8>; 2], what: &str, scratch: &mut Scratch) {
    for ops in chains {
        let chain = Chain::parse(ops).unwrap();
        for id in 0..10 {
            let [ours, turbos] =
                [baseline, progressive].map(|bytes| outcome(&chain, bytes, id, scratch).unwrap());
            assert!(ours == turbos, "{what}: {ops}, draw {id}");
        }
    }
}

/// Halves, quarters and eighths, of crops anywhere and of the whole image. `nearest` shows pixels as they are.
const CHAINS: [&str; 6] = [
    "decode_image,resize:60x70:filter=nearest",
    "decode_image,resize:31x37",
    "decode_image,resize:17x16:filter=nearest",
    "decode_image,random_resized_crop:48:scale=0.1..1",
    "decode_image,random_resized_crop:24:scale=0.1..1",
    "decode_image,random_resized_crop:11:scale=0.02..1",
];

const SUBSAMPLINGS: [tj::TJSAMP; 6] = [
    tj::TJSAMP_TJSAMP_444,
    tj::TJSAMP_TJSAMP_422,
    tj::TJSAMP_TJSAMP_420,
    tj::TJSAMP_TJSAMP_440,
    tj::TJSAMP_TJSAMP_411,
    tj::TJSAMP_TJSAMP_GRAY,
];

#[test]
fn every_subsampling_and_odd_sizes() {
    let mut scratch = Scratch::new();
    for size in [(320, 288), (317, 291), (401, 263), (290, 409)] {
        let rgb = picture(size.0, size.1, u64::from(size.0));
        for subsampling in SUBSAMPLINGS {
            let twins = twins(Jpeg { subsampling, ..Jpeg::default() }, &rgb, size);
            are_alike(&CHAINS, &twins, &format!("{size:?}, subsampling {subsampling}"), &mut scratch);
        }
    }
}

#[test]
fn restart_markers_own_tables_and_every_quality() {
    let (size, mut scratch) = ((383, 350), Scratch::new());
    let rgb = textured_picture(size.0, size.1, 3, 15.0, 0.35);
    for subsampling in [tj::TJSAMP_TJSAMP_420, tj::TJSAMP_TJSAMP_422, tj::TJSAMP_TJSAMP_444] {
        let variants = [
            Jpeg { restart_blocks: 1, ..Jpeg::default() },
            Jpeg { restart_blocks: 7, quality: 98, ..Jpeg::default() },
            Jpeg { restart_blocks: 200, ..Jpeg::default() },
            Jpeg { optimize: true, quality: 60, ..Jpeg::default() },
            Jpeg { quality: 100, ..Jpeg::default() },
            Jpeg { quality: 1, ..Jpeg::default() },
        ];
        for jpeg in variants.map(|jpeg| Jpeg { subsampling, ..jpeg }) {
            let what = format!("quality {}, restarts {}", jpeg.quality, jpeg.restart_blocks);
            are_alike(&CHAINS, &twins(jpeg, &rgb, size), &what, &mut scratch);
        }
    }
}

/// With 16-bit quantisers as large as they get, sums wrap and saturate.
#[cfg(target_arch = "x86_64")]
#[test]
fn coefficients_out_of_range_are_libjpeg_turbos() {
    let (size, mut scratch) = ((300, 310), Scratch::new());
    for subsampling in [tj::TJSAMP_TJSAMP_420, tj::TJSAMP_TJSAMP_422, tj::TJSAMP_TJSAMP_444] {
        let twins = twins(Jpeg { subsampling, ..Jpeg::default() }, &picture(size.0, size.1, 5), size);
        let coarse = twins.map(|mut bytes| {
            let mut at = 2;
            while bytes[at + 1] != 0xDA {
                let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
                if bytes[at + 1] == 0xDB {
                    bytes[at + 5..at + 2 + length].fill(255);
                }
                at += 2 + length;
            }
            bytes
        });
        are_alike(&CHAINS, &coarse, &format!("subsampling {subsampling}"), &mut scratch);
    }
}

/// Damaged files return what they return at full size: pixels or an error, never a panic.
#[test]
fn damage_is_found() {
    let (size, mut scratch) = ((333, 300), Scratch::new());
    let bytes = Jpeg::default().encode(&picture(size.0, size.1, 9), size.0, size.1);
    let data = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
    let [scaled, exact] = ["", ":scaled=false"]
        .map(|option| Chain::parse(&format!("decode_image{option},resize:40x40")).unwrap());
    let mut dice = Dice(1);
    let mut refused = 0;
    for round in 0..150 {
        let mut broken = bytes.clone();
        match round % 3 {
            0 => broken.truncate(data + dice.below((bytes.len() - data) as u32) as usize),
            _ => {
                let at = data + dice.below((bytes.len() - data - 2) as u32) as usize;
                broken[at] ^= 1 << dice.below(8);
            }
        }
        let [scaled, exact] =
            [&scaled, &exact].map(|chain| outcome(chain, &broken, 0, &mut scratch).map(|_| ()));
        assert_eq!(scaled, exact, "round {round}");
        refused += u32::from(scaled.is_err());
    }
    assert!(refused > 40, "{refused} refused");
}
