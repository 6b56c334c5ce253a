//! Crops that jump to rows by an index are bit-identical to crops that do not, whatever the index is.

use crate::support::{Dice, Jpeg, SUBSAMPLINGS, picture, textured_picture};
use feedstock_ops::image::{RandomCrop, RowIndex};
use feedstock_ops::{Chain, ChainSpec, SampleSeed, Scratch, decode_image};

/// Pixels and warnings, or an error's text.
type Outcome = Result<(Vec<u8>, String), String>;

fn outcome(chain: &Chain, bytes: &[u8], id: u64, scratch: &mut Scratch) -> Outcome {
    let mut out = vec![0; chain.output().bytes()];
    scratch.take_warnings();
    chain.apply(bytes, SampleSeed::new(5, 0, id), scratch, &mut out).map_err(|error| error.to_string())?;
    Ok((out, format!("{:?}", scratch.take_warnings())))
}

/// The same with an index, which grows if the crop comes to more rows. As the stored form, since that is what comes back.
fn indexed(
    chain: &Chain,
    bytes: &[u8],
    id: u64,
    known: &mut Option<Vec<u8>>,
    scratch: &mut Scratch,
) -> Outcome {
    scratch.note_rows(known.as_ref().map(|bytes| RowIndex::from_bytes(bytes).unwrap()));
    let outcome = outcome(chain, bytes, id, scratch);
    if let Some(index) = scratch.take_rows() {
        assert!(known.as_ref() != Some(&index.to_bytes()), "nothing is new");
        *known = Some(index.to_bytes());
    }
    outcome
}

fn crop(width: u32, height: u32) -> Chain {
    ChainSpec::from([decode_image(), RandomCrop::new([height, width]).into()]).compile().unwrap()
}

/// Compares random crops of one file while its index grows. Returns the index.
fn crops_are_equal(bytes: &[u8], (w, h): (u32, u32), crops: u64, what: &str) -> Option<Vec<u8>> {
    let mut dice = Dice(u64::from(w * h));
    let (mut plain, mut jumping, mut known) = (Scratch::new(), Scratch::new(), None);
    for id in 0..crops {
        // Flat crops first: the index grows step by step.
        let chain = crop(1 + dice.below(w), 1 + dice.below(if id < crops / 2 { h.div_ceil(4) } else { h }));
        let expected = outcome(&chain, bytes, id, &mut plain);
        assert!(indexed(&chain, bytes, id, &mut known, &mut jumping) == expected, "{what}: crop {id}");
    }
    known
}

/// Images with fewer and with more rows than an index has starts, down to those that the own decoder leaves to libjpeg-turbo.
const SIZES: [(u32, u32); 8] =
    [(161, 83), (64, 48), (97, 261), (33, 560), (16, 1105), (17, 16), (15, 40), (1, 1)];

#[test]
fn crops_of_every_subsampling_and_odd_sizes() {
    let mut jumped = 0;
    for subsampling in SUBSAMPLINGS {
        for (w, h) in SIZES {
            let bytes = Jpeg { subsampling, ..Jpeg::default() }.encode(&picture(w, h, 3), w, h);
            let index = crops_are_equal(&bytes, (w, h), 30, &format!("{w}×{h}, subsampling {subsampling}"));
            assert!(index.as_ref().is_none_or(|index| index.len() <= 657));
            jumped += usize::from(index.is_some());
        }
    }
    // Five subsamplings are the own decoder's. Images of a single row of MCUs have no index, nor those under 16 pixels.
    assert!((5 * 5..=5 * 6).contains(&jumped), "{jumped}");
}

#[test]
fn crops_of_every_kind_of_file() {
    let (w, h) = (160, 196);
    let default = Jpeg::default();
    let variants = [
        (Jpeg { optimize: true, quality: 60, ..default }, true),
        (Jpeg { quality: 100, ..default }, true),
        (Jpeg { quality: 1, ..default }, true),
        (Jpeg { progressive: true, ..default }, false),
        (Jpeg { arithmetic: true, ..default }, false),
        (Jpeg { restart_blocks: 1, ..default }, false),
        (Jpeg { restart_blocks: 70, ..default }, false),
    ];
    for (variant, has_index) in variants {
        let bytes = variant.encode(&picture(w, h, 4), w, h);
        assert_eq!(crops_are_equal(&bytes, (w, h), 40, "kind").is_some(), has_index);
        // Whether rows are missing shows only at the end, so nothing is noted without an end marker.
        assert_eq!(crops_are_equal(&bytes[..bytes.len() - 2], (w, h), 10, "no end"), None);
    }
}

/// Larger files are decoded by joint tables, and reduced where the crop is large.
#[test]
fn crops_of_large_photos() {
    let (w, h) = (1210, 905);
    let bytes = Jpeg { quality: 95, ..Jpeg::default() }.encode(&textured_picture(w, h, 5, 15.0, 0.35), w, h);
    assert!(bytes.len() > 256 << 10);
    crops_are_equal(&bytes, (w, h), 12, "large").unwrap();
    let (mut plain, mut jumping, mut known) = (Scratch::new(), Scratch::new(), None);
    for id in 0..24 {
        for size in [64, 128, 400] {
            let chain = Chain::parse(&format!("decode_image,random_resized_crop:{size}")).unwrap();
            let expected = outcome(&chain, &bytes, id, &mut plain);
            assert!(indexed(&chain, &bytes, id, &mut known, &mut jumping) == expected, "{size}, draw {id}");
        }
    }
}

/// An index of another version of the file is not used, and is replaced.
#[test]
fn an_index_of_another_version_is_ignored() {
    let (w, h) = (161, 183);
    let versions: Vec<Vec<u8>> = [(6, 90), (7, 90), (6, 89)]
        .map(|(seed, quality)| Jpeg { quality, ..Jpeg::default() }.encode(&picture(w, h, seed), w, h))
        .into();
    let chain = crop(60, 70);
    let (mut plain, mut jumping, mut known) = (Scratch::new(), Scratch::new(), None);
    let mut replaced = 0;
    for id in 0..60 {
        let bytes = &versions[id as usize % 3];
        let before = known.clone();
        let expected = outcome(&chain, bytes, id, &mut plain);
        assert!(indexed(&chain, bytes, id, &mut known, &mut jumping) == expected, "crop {id}");
        replaced += usize::from(before != known);
    }
    assert!(replaced > 30, "{replaced}");
}

/// With damage in the file, the outcome is that without an index: pixels, warnings and errors.
#[test]
fn damaged_files_end_as_without_an_index() {
    let (w, h) = (97, 131);
    let mut dice = Dice(8);
    let (mut plain, mut jumping) = (Scratch::new(), Scratch::new());
    let (mut failed, mut warned, mut jumped) = (0, 0, 0);
    for round in 0..150 {
        let subsampling = SUBSAMPLINGS[round % 3];
        let mut bytes = Jpeg { subsampling, ..Jpeg::default() }.encode(&picture(w, h, 9), w, h);
        let healthy = bytes.clone();
        let at = 200 + dice.below(bytes.len() as u32 - 240) as usize;
        match round % 4 {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at..at + 40].fill(0xFE),
            2 => drop(bytes.drain(at..at + 40)),
            _ => bytes[at..at + 2].copy_from_slice(&[0xFF, 0xE5]),
        }
        let mut known = None;
        let of_healthy = crop(w, h);
        indexed(&of_healthy, &healthy, 0, &mut known, &mut jumping).unwrap();
        for id in 0..12 {
            let chain = crop(1 + dice.below(w), 1 + dice.below(h));
            let expected = outcome(&chain, &bytes, id, &mut plain);
            let found = indexed(&chain, &bytes, id, &mut known, &mut jumping);
            assert!(found == expected, "round {round}, crop {id}: {:?} {:?}", found.err(), expected.err());
            failed += usize::from(expected.is_err());
            warned += usize::from(expected.is_ok_and(|(_, warnings)| warnings.contains("Damaged")));
        }
        jumped += usize::from(known.is_some_and(|index| RowIndex::from_bytes(&index).is_some()));
    }
    assert!(failed > 50 && warned > 100 && jumped > 100, "{failed} {warned} {jumped}");
}

#[test]
fn nothing_is_noted_unless_it_is_asked_for() {
    let (w, h) = (64, 96);
    let bytes = Jpeg::default().encode(&picture(w, h, 10), w, h);
    let (chain, mut scratch) = (crop(32, 32), Scratch::new());
    outcome(&chain, &bytes, 0, &mut scratch).unwrap();
    assert_eq!(scratch.take_rows(), None);
    scratch.note_rows(None);
    outcome(&chain, &bytes, 0, &mut scratch).unwrap();
    assert!(scratch.take_rows().is_some());
    outcome(&chain, &bytes, 0, &mut scratch).unwrap();
    assert_eq!(scratch.take_rows(), None, "taking ends it");
}
