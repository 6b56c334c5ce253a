//! Compares the fused chain with its bare parts: `cargo bench -p feedstock-ops --bench decode_chain --profile dev`
//! (the dev profile builds everything that a sample passes through at -O3).
//!
//! One thread, 400×350 px 4:2:0 JPEGs of about 110 KB, random_resized_crop(224) and a flip, u8. The contenders take
//! turns at each image and are measured in CPU time, so that a busy machine disturbs all alike. The outputs are
//! compared bit for bit. `FEEDSTOCK_BENCH_ROUNDS` sets how often each image is run (default 20).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a bench"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::ffi::c_int;
use std::time::Duration;

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use feedstock_ops::image::{Marked, RandomResizedCrop, RestartMarkers, Size};
use feedstock_ops::{Chain, SampleSeed, Scratch};
use support::{Jpeg, cpu_time, textured_picture};
use turbojpeg_sys as tj;

const WIDTH: u32 = 400;
const HEIGHT: u32 = 350;
const SIDE: u32 = 224;
const PICTURES: u64 = 48;
const RESTART_INTERVAL: u16 = 4;

/// libjpeg-turbo with a reused handle and buffers, and fast_image_resize.
struct Bare {
    handle: tj::tjhandle,
    rgb: Vec<u8>,
    resizer: Resizer,
}

impl Bare {
    fn new() -> Self {
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        Self { handle, rgb: vec![0; (WIDTH * HEIGHT * 3) as usize], resizer: Resizer::new() }
    }

    fn decode(&mut self, jpeg: &[u8]) {
        let (length, rgb) = (jpeg.len() as tj::size_t, self.rgb.as_mut_ptr());
        let status =
            unsafe { tj::tj3Decompress8(self.handle, jpeg.as_ptr(), length, rgb, 0, tj::TJPF_TJPF_RGB) };
        assert_eq!(status, 0);
    }

    /// Entropy decoding (and one row of the rest).
    fn last_row(&mut self, jpeg: &[u8]) {
        let length = jpeg.len() as tj::size_t;
        unsafe {
            assert_eq!(tj::tj3DecompressHeader(self.handle, jpeg.as_ptr(), length), 0);
            let row = tj::tjregion { x: 0, y: HEIGHT as c_int - 1, w: WIDTH as c_int, h: 1 };
            assert_eq!(tj::tj3SetCroppingRegion(self.handle, row), 0);
        }
        self.decode(jpeg);
        let all = tj::tjregion { x: 0, y: 0, w: 0, h: 0 };
        unsafe { assert_eq!(tj::tj3SetCroppingRegion(self.handle, all), 0) };
    }

    fn crop_resize_flip(&mut self, seed: SampleSeed, out: &mut [u8]) {
        let size = Size { height: HEIGHT, width: WIDTH };
        let rect = RandomResizedCrop::new(SIDE).draw(size, &mut seed.op(1));
        let source = ImageRef::new(WIDTH, HEIGHT, &self.rgb, PixelType::U8x3).unwrap();
        let source = CroppedImage::new(&source, rect.x, rect.y, rect.width, rect.height).unwrap();
        let mut target = Image::from_slice_u8(SIDE, SIDE, out, PixelType::U8x3).unwrap();
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        self.resizer.resize(&source, &mut target, &options).unwrap();
        if seed.op(2).chance(0.5) {
            for row in out.chunks_exact_mut(SIDE as usize * 3) {
                row.reverse();
                row.chunks_exact_mut(3).for_each(<[u8]>::reverse);
            }
        }
    }
}

fn main() {
    // `cargo test --benches` only checks that it runs.
    let test = std::env::args().any(|argument| argument == "--test");
    let rounds =
        std::env::var("FEEDSTOCK_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let rounds = if test { 1 } else { rounds };
    let jpeg = Jpeg { quality: 95, ..Jpeg::default() };
    let photos: Vec<Vec<u8>> = (0..PICTURES)
        .map(|seed| jpeg.encode(&textured_picture(WIDTH, HEIGHT, seed, 15.0, 0.35), WIDTH, HEIGHT))
        .collect();
    let mut markers = RestartMarkers::new(RESTART_INTERVAL).unwrap();
    let marked: Vec<Vec<u8>> = photos
        .iter()
        .map(|photo| match markers.add(photo).unwrap() {
            Marked::Yes(marked) => marked,
            Marked::No(why) => panic!("photos {why}"),
        })
        .collect();
    let [kib, marked_kib] = [&photos, &marked]
        .map(|photos| photos.iter().map(Vec::len).sum::<usize>() as f64 / PICTURES as f64 / 1024.0);

    let chain = Chain::parse(&format!("decode_image,random_resized_crop:{SIDE},horizontal_flip")).unwrap();
    let f32_chain =
        Chain::parse(&format!("decode_image,random_resized_crop:{SIDE},horizontal_flip,normalize,to_chw"))
            .unwrap();
    let center = Chain::parse(&format!("decode_image,resize:256,center_crop:{SIDE}")).unwrap();
    let (mut bare, mut scratch) = (Bare::new(), Scratch::new());
    let mut rows = [(); 6].map(|()| vec![0_u8; f32_chain.output().bytes()]);
    let [bare_out, chain_out, f32_out, center_out, marked_out, _] = &mut rows;
    let bytes = chain.output().bytes();
    let mut spent = [Duration::ZERO; 7];
    for round in 0..=rounds {
        for (id, photo) in photos.iter().enumerate() {
            let seed = SampleSeed::new(7, round, id as u64);
            let times = [
                cpu_time(),
                {
                    bare.last_row(photo);
                    cpu_time()
                },
                {
                    bare.decode(photo);
                    cpu_time()
                },
                {
                    bare.crop_resize_flip(seed, &mut bare_out[..bytes]);
                    cpu_time()
                },
                {
                    chain.apply(photo, seed, &mut scratch, &mut chain_out[..bytes]).unwrap();
                    cpu_time()
                },
                {
                    f32_chain.apply(photo, seed, &mut scratch, f32_out).unwrap();
                    cpu_time()
                },
                {
                    center.apply(photo, seed, &mut scratch, &mut center_out[..bytes]).unwrap();
                    cpu_time()
                },
                {
                    chain.apply(&marked[id], seed, &mut scratch, &mut marked_out[..bytes]).unwrap();
                    cpu_time()
                },
            ];
            assert!(
                bare_out[..bytes] == chain_out[..bytes] && chain_out[..bytes] == marked_out[..bytes],
                "image {id}, round {round}: not bit-identical"
            );
            // The first round warms up caches and buffers.
            if round > 0 || test {
                for (spent, pair) in spent.iter_mut().zip(times.windows(2)) {
                    *spent += pair[1] - pair[0];
                }
            }
        }
    }
    let count = photos.len() as f64 * rounds as f64;
    let per = |spent: Duration| (count / spent.as_secs_f64(), spent.as_secs_f64() / count * 1e3);
    println!("{PICTURES} images of {WIDTH}×{HEIGHT}, {kib:.0} KiB, {rounds} rounds, one thread, CPU time");
    let line = |name: &str, spent: Duration| {
        let (rate, each) = per(spent);
        println!("{name:<58} {rate:>7.0} images/s  {each:.3} ms");
    };
    let [entropy, decode, resize, ours, ours_f32, ours_center, ours_marked] = spent;
    line("libjpeg-turbo, entropy decoding and one row", entropy);
    line("libjpeg-turbo, full decode", decode);
    line("crop, resize and flip", resize);
    line("full decode + crop + resize + flip", decode + resize);
    line("decode_image,random_resized_crop:224,horizontal_flip", ours);
    line("  the same, normalize,to_chw (f32)", ours_f32);
    line("decode_image,resize:256,center_crop:224", ours_center);
    line("random_resized_crop:224, restart markers every 4 MCUs", ours_marked);
    println!("with markers, images have {:.3} times the bytes", marked_kib / kib);
    println!("ratio chain / bare parts: {:.2} (bit-identical)", per(ours).0 / per(decode + resize).0);
}
