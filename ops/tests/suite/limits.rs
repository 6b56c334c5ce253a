//! The limits of decoding: what they count, that each is an option, and that descriptions without them do not change.

use crate::support::{Jpeg, picture};
use feedstock_ops::audio::{DecodeAudio, decode_mono};
use feedstock_ops::image::{DecodeImage, decode_rgb};
use feedstock_ops::{ChainSpec, ErrorKind, Op};

/// Returns a progressive JPEG of 50 × 40 px at 4:2:0. Luminance has 7 × 5 blocks, each colour 4 × 3. The 4 × 3 MCUs have 6
/// blocks each.
fn progressive() -> Vec<u8> {
    Jpeg { progressive: true, ..Jpeg::default() }.encode(&picture(50, 40, 3), 50, 40)
}

#[track_caller]
fn image_is_refused(bytes: &[u8], op: &DecodeImage, why: &str) {
    let error = decode_rgb(bytes, op).map(|(size, _)| size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.message().contains(why), "{error}\nshould contain: {why}");
}

#[track_caller]
fn audio_is_refused(bytes: &[u8], op: &DecodeAudio, why: &str) {
    let error = decode_mono(bytes, op).map(|(_, samples)| samples.len()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.message().contains(why), "{error}\nshould contain: {why}");
}

#[test]
fn scans_of_an_encoder_are_counted_exactly() {
    // libjpeg's script: two scans of all components, four of luminance, two of each colour.
    let (bytes, op) = (progressive(), DecodeImage::new());
    let blocks = 2 * 72 + 4 * 35 + 4 * 12;
    let expected = decode_rgb(&bytes, &op).unwrap();
    let just = op.clone().max_scans(10).max_scan_blocks(blocks).max_coefficient_bytes(72 * 128);
    assert_eq!(decode_rgb(&bytes, &just).unwrap(), expected);
    image_is_refused(&bytes, &op.clone().max_scans(9), "the JPEG has 10 scans, over max_scans (9)");
    let why = "the 10 scans of the JPEG of 50×40 px visit 332 blocks, over max_scan_blocks (331)";
    image_is_refused(&bytes, &op.clone().max_scan_blocks(blocks - 1), why);
    let why = "the JPEG of 50×40 px keeps 9216 bytes between its scans, over max_coefficient_bytes (9215)";
    image_is_refused(&bytes, &op.max_coefficient_bytes(72 * 128 - 1), why);
}

#[test]
fn a_picture_of_one_scan_has_no_scans_to_limit() {
    let bytes = Jpeg::default().encode(&picture(50, 40, 3), 50, 40);
    let op = DecodeImage::new().max_scans(1).max_scan_blocks(1).max_coefficient_bytes(1);
    assert_eq!(decode_rgb(&bytes, &op).unwrap(), decode_rgb(&bytes, &DecodeImage::new()).unwrap());
}

/// The largest image within the default `max_pixels`, with 1.5 times the scans that any encoder writes.
#[test]
fn large_progressive_pictures_are_within_the_defaults() {
    let (size, _) = decode_rgb(&crate::hostile::progressive(9456, 30), &DecodeImage::new()).unwrap();
    assert_eq!((size.width, size.height), (9456, 9456));
}

#[test]
fn packets_are_limited() {
    let op = DecodeAudio::new().max_packets(1);
    for name in ["48k_mono_64.mp3", "16k_mono.aac", "44k_stereo.flac", "44k_stereo.ogg", "44k_stereo.m4a"] {
        let clip = std::fs::read(format!("tests/golden/audio/{name}")).unwrap();
        audio_is_refused(&clip, &op, "packets, over max_packets (1); raise the limit or set on_error=skip");
    }
}

/// A WebP's pixel uses the last of its groups.
#[test]
fn groups_of_huffman_codes_are_counted_exactly() {
    for groups in [1, 2, 257, 2600] {
        let bytes = crate::hostile::webp_of_groups(groups);
        let (size, pixels) = decode_rgb(&bytes, &DecodeImage::new().max_huffman_groups(groups)).unwrap();
        assert_eq!((size.width, size.height, pixels), (1, 1, vec![0; 3]));
        let why = format!("has {groups} groups of Huffman codes, over max_huffman_groups ({})", groups - 1);
        if groups > 1 {
            image_is_refused(&bytes, &DecodeImage::new().max_huffman_groups(groups - 1), &why);
        }
    }
}

/// Files of libwebp at its best effort: with predictors, colours, a cache and several groups, all of which must be read to
/// count the groups, or with a palette.
#[test]
fn groups_are_found_behind_the_transforms() {
    for (name, groups) in [("lossless_groups.webp", 6), ("lossless_palette.webp", 6)] {
        let bytes = std::fs::read(format!("tests/golden/decode/{name}")).unwrap();
        decode_rgb(&bytes, &DecodeImage::new().max_huffman_groups(groups)).unwrap();
        let why = format!("has {groups} groups of Huffman codes");
        image_is_refused(&bytes, &DecodeImage::new().max_huffman_groups(groups - 1), &why);
    }
}

/// 1,000 samples of two channels, stated by the header or found while decoding.
#[test]
fn channels_are_limited_together() {
    let clip = std::fs::read("tests/golden/audio/44k_stereo.flac").unwrap();
    let (_, samples) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
    let bytes = samples.len() as u64 * 2 * 4;
    decode_mono(&clip, &DecodeAudio::new().max_decoded_bytes(bytes)).unwrap();
    let why = format!("decode to at least {bytes} bytes, over max_decoded_bytes ({})", bytes - 1);
    audio_is_refused(&clip, &DecodeAudio::new().max_decoded_bytes(bytes - 1), &why);
    for name in ["44k_stereo.ogg", "44k_stereo.m4a"] {
        let clip = std::fs::read(format!("tests/golden/audio/{name}")).unwrap();
        audio_is_refused(&clip, &DecodeAudio::new().max_decoded_bytes(40_000), "max_decoded_bytes (40000)");
    }
}

#[test]
fn common_files_take_hardly_any_steps_and_little_memory_of_codebooks() {
    let op = DecodeAudio::new().max_steps(20_000).max_codebook_bytes(3 << 20);
    let files = std::fs::read_dir("tests/golden/audio").unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in files.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with("references")) {
        let clip = std::fs::read(&path).unwrap();
        let Ok(expected) = decode_mono(&clip, &DecodeAudio::new()) else { continue };
        assert_eq!(decode_mono(&clip, &op).unwrap(), expected, "{}", path.display());
        count += 1;
    }
    assert!(count >= 25, "{count} files");
}

/// 200,000 bytes are read twice, at 16 bytes per step. Each of 8 packets passes over half of 8 entries, at 4 per step. They
/// are decoded in vain, 7 of them before the last is found.
#[test]
fn packets_that_lie_over_each_other_are_steps() {
    let bytes = crate::hostile::mp4_of_durations(4, 50_000, 2);
    let steps = (400_000 - bytes.len() as u64) / 16 + 8 + 7 * (1024 + 50_000);
    let op = DecodeAudio::new().max_lost_share(1.0);
    let why = format!(
        "it takes {steps} steps to find the packets of the AAC audio clip, over max_steps ({})",
        steps - 1
    );
    audio_is_refused(&bytes, &op.clone().max_steps(steps - 1), &why);
    let error =
        decode_mono(&bytes, &op.max_steps(steps + 100)).map(|_| ()).map_err(|error| error.to_string());
    assert!(!error.is_err_and(|error| error.contains("max_steps")));
}

#[test]
fn options_are_in_both_forms_of_a_chain() {
    let spec = ChainSpec::parse(
        "decode_image:max_scans=20:max_scan_blocks=1000:max_coefficient_bytes=2000:max_huffman_groups=4,center_crop:8",
    )
    .unwrap();
    let op = DecodeImage::new().max_scans(20).max_scan_blocks(1000).max_coefficient_bytes(2000);
    let op: Op = op.max_huffman_groups(4).into();
    assert_eq!(spec.0[0], op);
    let json = serde_json::to_string(&op).unwrap();
    assert!(
        json.ends_with(
            r#""max_scans":20,"max_scan_blocks":1000,"max_coefficient_bytes":2000,"max_huffman_groups":4}"#
        ),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), op);

    let spec =
        ChainSpec::parse("decode_audio:max_packets=9:max_steps=8:max_codebook_bytes=7:max_decoded_bytes=6")
            .unwrap();
    let op = DecodeAudio::new().max_packets(9).max_steps(8).max_codebook_bytes(7);
    let op: Op = op.max_decoded_bytes(6).into();
    assert_eq!(spec.0[0], op);
    let json = serde_json::to_string(&op).unwrap();
    assert!(
        json.ends_with(r#""max_packets":9,"max_steps":8,"max_codebook_bytes":7,"max_decoded_bytes":6}"#),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<Op>(&json).unwrap(), op);

    for text in [
        "decode_image:max_scans=0,center_crop:8",
        "decode_image:max_scan_blocks=0,center_crop:8",
        "decode_image:max_huffman_groups=0,center_crop:8",
    ] {
        assert_eq!(ChainSpec::parse(text).unwrap().compile().unwrap_err().kind(), ErrorKind::BadConfig);
    }
    for text in [
        "decode_audio:max_packets=0",
        "decode_audio:max_steps=0",
        "decode_audio:max_codebook_bytes=0",
        "decode_audio:max_decoded_bytes=0",
    ] {
        assert_eq!(ChainSpec::parse(text).unwrap().compile().unwrap_err().kind(), ErrorKind::BadConfig);
    }
}

/// Cursors and workers compare chains by these bytes.
#[test]
fn a_chain_without_these_options_is_described_as_before() {
    let spec = ChainSpec::from([feedstock_ops::decode_image(), feedstock_ops::decode_audio()]);
    assert_eq!(
        serde_json::to_string(&spec).unwrap(),
        concat!(
            r#"[{"op":"decode_image","exif_orientation":false,"scaled":true,"max_pixels":89478485,"#,
            r#""max_pixels_per_byte":1024},{"op":"decode_audio","max_seconds":600.0,"max_samples":57600000,"#,
            r#""max_sample_rate":384000,"max_channels":8,"max_lost_share":0.02}]"#
        )
    );
}
