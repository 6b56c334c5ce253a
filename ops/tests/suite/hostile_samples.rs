//! Small files that are made to cost much time or memory. Each is rejected before it does.
//!
//! The limits count work, so the tests check the reason. Without the limits, each of these files costs seconds or gigabytes.

use crate::support::golden;
use feedstock_ops::audio::{DecodeAudio, decode_mono};
use feedstock_ops::image::{DecodeImage, decode_rgb};
use feedstock_ops::{Error, ErrorKind};

#[track_caller]
fn is_refused<T>(result: Result<T, Error>, why: &[&str]) {
    let error = result.err().expect("the file must be refused");
    assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
    for words in why {
        assert!(error.message().contains(words), "{error}\nshould contain: {words}");
    }
}

#[track_caller]
fn refuse_image(bytes: &[u8], why: &[&str]) {
    is_refused(decode_rgb(bytes, &DecodeImage::new()), why);
}

#[track_caller]
fn refuse_audio(bytes: &[u8], why: &[&str]) {
    is_refused(decode_mono(bytes, &DecodeAudio::new()), why);
}

#[test]
fn a_progressive_jpeg_of_480_scans() {
    let bytes = crate::hostile::progressive(9400, 480);
    assert!(bytes.len() < 600_000, "{} bytes", bytes.len());
    // 3 × 1175² blocks in the first scan, 1175² in each other scan.
    refuse_image(
        &bytes,
        &["480 scans", "9400×9400 px", "665461250 blocks", "max_scan_blocks (67108864)", "on_error=skip"],
    );
}

#[test]
fn a_progressive_jpeg_of_501_scans() {
    refuse_image(&crate::hostile::progressive(64, 501), &["501 scans", "max_scans (500)"]);
    decode_rgb(&crate::hostile::progressive(64, 500), &DecodeImage::new()).unwrap();
}

#[test]
fn a_webp_whose_frame_is_larger_than_its_canvas() {
    for animated in [false, true] {
        let bytes = crate::hostile::webp_frame_over_its_canvas(16_383, animated);
        refuse_image(&bytes, &["a frame of 16383×16383 px is in a canvas of 1×1 px"]);
    }
}

#[test]
fn a_lossless_webp_of_one_pixel_and_65536_groups_of_codes() {
    let bytes = crate::hostile::webp_of_groups(1 << 16);
    assert!(bytes.len() < 170_000, "{} bytes", bytes.len());
    let why = ["the WebP of 1×1 px has 65536 groups of Huffman codes, over max_huffman_groups (2600)"];
    refuse_image(&bytes, &why);
    for animated in [false, true] {
        refuse_image(&crate::hostile::webp_alpha_of_groups(1 << 16, animated), &why);
    }
}

/// The CPU time is compared with that of a search of the same number of zeros. A search from each of the 360 headers would
/// take 360 times as long.
#[test]
fn an_mp3_of_headers_and_padding() {
    let bytes = crate::hostile::mp3_headers_and_padding(20 << 20);
    let zeros = std::hint::black_box(vec![0_u8; bytes.len()]);
    let pass = crate::hostile::cpu_time(|| assert!(zeros.iter().all(|byte| *byte == 0)));
    let time = crate::hostile::cpu_time(|| refuse_audio(&bytes, &["are no MP3"]));
    assert!(time < 30 * pass, "{time:?}, a pass takes {pass:?}");
}

#[test]
fn an_ogg_of_page_marks() {
    let clip = golden("audio/48k_mono.ogg");
    let second = clip[4..].windows(4).position(|four| four == b"OggS").unwrap() + 4;
    let bytes = crate::hostile::ogg_of_marks(&clip[..second], 700_000);
    refuse_audio(&bytes, &["steps to find the packets of the Vorbis audio clip", "max_steps (268435456)"]);
}

#[test]
fn a_flac_of_frame_headers() {
    let bytes = crate::hostile::flac_of_headers(&golden("audio/16k_mono_24bit.flac")[..42], 3_000_000);
    refuse_audio(&bytes, &["steps to find the packets of the FLAC audio clip", "max_steps (268435456)"]);
}

#[test]
fn an_mp4_of_durations() {
    let bytes = crate::hostile::mp4_of_durations(200_000, 1, 1);
    refuse_audio(
        &bytes,
        &["5000000000 steps to find the packets of the AAC audio clip", "max_steps (268435456)"],
    );
}

#[test]
fn an_mp4_with_boxes_that_hide_others() {
    for doubled in [crate::hostile::Doubled::Movie, crate::hostile::Doubled::Tables] {
        let bytes = crate::hostile::mp4_of_doubled_boxes(50_000, doubled);
        refuse_audio(&bytes, &["steps to find the packets of the AAC audio clip", "max_steps (268435456)"]);
    }
}

#[test]
fn an_mp4_of_packets_without_duration() {
    let bytes = crate::hostile::mp4_of_packets_without_duration(300_000);
    refuse_audio(&bytes, &["steps to find the packets of the AAC audio clip", "max_steps (268435456)"]);
}

#[test]
fn an_mp4_of_one_fragment() {
    let bytes = crate::hostile::mp4_of_one_fragment(200_000);
    refuse_audio(&bytes, &["steps to find the packets of the AAC audio clip", "max_steps (268435456)"]);
}

#[test]
fn a_vorbis_clip_of_codebooks() {
    let bytes = crate::hostile::vorbis_of_codebooks(250);
    assert!(bytes.len() < 7000, "{} bytes", bytes.len());
    refuse_audio(
        &bytes,
        &["the codebooks of the Vorbis audio clip take 4620288000 bytes", "max_codebook_bytes (67108864)"],
    );
}
