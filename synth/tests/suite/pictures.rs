//! The images: size, statistics, marks, determinism.

use feedstock_synth::{ImagenetOptions, Painter, Sample, picture, read_mark};
use std::time::Instant;
use turbojpeg_sys as tj;

fn painter(options: ImagenetOptions) -> Painter {
    Painter::new(&options).unwrap()
}

/// Returns RGB and (width, height, subsampling) of a JPEG, decoded by libjpeg-turbo.
fn decode(jpeg: &[u8]) -> (Vec<u8>, usize, usize, i32) {
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as i32);
        assert_eq!(tj::tj3DecompressHeader(handle, jpeg.as_ptr(), jpeg.len() as u64), 0);
        let get = |parameter| tj::tj3Get(handle, parameter as i32);
        let width = get(tj::TJPARAM_TJPARAM_JPEGWIDTH);
        let height = get(tj::TJPARAM_TJPARAM_JPEGHEIGHT);
        let mut rgb = vec![0; (3 * width * height) as usize];
        let (start, size) = (jpeg.as_ptr(), jpeg.len() as u64);
        let answer = tj::tj3Decompress8(handle, start, size, rgb.as_mut_ptr(), 0, tj::TJPF_TJPF_RGB);
        assert_eq!(answer, 0);
        let subsampling = get(tj::TJPARAM_TJPARAM_SUBSAMP);
        tj::tj3Destroy(handle);
        (rgb, width as usize, height as usize, subsampling)
    }
}

#[test]
fn an_image_has_about_110_kb_and_is_made_fast() {
    let mut painter = painter(ImagenetOptions::default());
    painter.sample(0).unwrap(); // makes the noise
    let start = Instant::now();
    let samples: Vec<Sample> = (0..400).map(|index| painter.sample(index).unwrap()).collect();
    let rate = samples.len() as f64 / start.elapsed().as_secs_f64();
    let mut sizes: Vec<f64> = samples.iter().map(|sample| sample.jpeg.len() as f64).collect();
    sizes.sort_by(f64::total_cmp);
    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
    let tenth = |n: usize| sizes[n * sizes.len() / 10] / 1000.0;
    println!(
        "{rate:.0} images/s on one core; {:.1} KB mean, deciles 1, 5, 9: {:.0}, {:.0}, {:.0} KB",
        mean / 1000.0,
        tenth(1),
        tenth(5),
        tenth(9)
    );
    assert!((100e3..120e3).contains(&mean), "mean {mean} bytes");
    assert!(sizes[0] > 20e3 && sizes[399] < 300e3, "from {} to {}", sizes[0], sizes[399]);
}

#[test]
fn sizes_vary_around_their_mean_unless_exact() {
    let mut straying = painter(ImagenetOptions::default());
    let sizes: Vec<(u32, u32)> =
        (0..100).map(|index| straying.sample(index).unwrap()).map(|s| (s.width, s.height)).collect();
    assert!(sizes.iter().all(|&(w, h)| (340..=460).contains(&w) && (297..=403).contains(&h)));
    let mean = sizes.iter().map(|&(w, _)| f64::from(w)).sum::<f64>() / 100.0;
    assert!((385.0..415.0).contains(&mean), "mean width {mean}");
    let mut exact =
        painter(ImagenetOptions { exact_size: true, width: 123, height: 77, ..Default::default() });
    for index in 0..5 {
        let sample = exact.sample(index).unwrap();
        let (_, width, height, _) = decode(&sample.jpeg);
        assert_eq!((width, height, sample.width, sample.height), (123, 77, 123, 77));
    }
}

#[test]
fn the_mark_survives_jpeg() {
    let mut painter = painter(ImagenetOptions::default());
    for index in [0, 1, 255, 3999, 1_000_003, u64::from(u32::MAX)] {
        let sample = painter.sample(index).unwrap();
        let (rgb, width, height, subsampling) = decode(&sample.jpeg);
        assert_eq!((width as u32, height as u32), (sample.width, sample.height));
        assert_eq!(subsampling, tj::TJSAMP_TJSAMP_420);
        assert_eq!(read_mark(&rgb, width).map(u64::from), Some(index));
    }
}

#[test]
fn the_same_seed_and_index_give_the_same_bytes() {
    let (jpeg, label) = picture(7, 42);
    let mut painter = painter(ImagenetOptions { seed: 7, ..Default::default() });
    painter.sample(41).unwrap(); // no state is left between samples
    let sample = painter.sample(42).unwrap();
    assert_eq!((&jpeg, label), (&sample.jpeg, sample.label));
    assert_ne!(picture(8, 42).0, jpeg);
    assert_ne!(picture(7, 43).0, jpeg);
}

/// A golden hash: a change of the images must be intended, because figures and fixtures depend on them.
#[test]
fn the_bytes_are_those_of_the_last_release() {
    let mut painter = painter(ImagenetOptions::default());
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for index in 0..4 {
        for byte in painter.sample(index).unwrap().jpeg {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3); // FNV-1a
        }
    }
    assert_eq!(format!("{hash:016x}"), "54b6143dce784203");
}

/// Photographs: colour channels are correlated, and every octave has about the same energy.
#[test]
fn the_pixels_have_the_statistics_of_photographs() {
    let mut painter = painter(ImagenetOptions { exact_size: true, ..Default::default() });
    let mut octaves = vec![0.0; 5];
    let mut correlation = 0.0;
    const PICTURES: u64 = 40;
    for index in 0..PICTURES {
        let (rgb, width, height, _) = decode(&painter.sample(index).unwrap().jpeg);
        let channel =
            |c: usize| -> Vec<f64> { rgb.iter().skip(c).step_by(3).map(|&v| f64::from(v)).collect() };
        correlation += correlate(&channel(0), &channel(1)) / PICTURES as f64;
        for (octave, energy) in octaves.iter_mut().zip(octave_energies(channel(1), width, height)) {
            *octave += energy;
        }
    }
    println!("red–green correlation {correlation:.2}, energy by octave from the finest {octaves:.0?}");
    assert!((0.75..0.99).contains(&correlation), "correlation {correlation}");
    for pair in octaves.windows(2) {
        assert!((0.5..2.5).contains(&(pair[1] / pair[0])), "energy by octave: {octaves:?}");
    }
}

fn correlate(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let cov = |x: &[f64], mx: f64, y: &[f64], my: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum()
    };
    cov(a, mean_a, b, mean_b) / (cov(a, mean_a, a, mean_a) * cov(b, mean_b, b, mean_b)).sqrt()
}

/// Returns the mean square difference from the 2×2 mean, level by level.
fn octave_energies(mut level: Vec<f64>, mut width: usize, mut height: usize) -> Vec<f64> {
    let mut energies = Vec::new();
    for _ in 0..5 {
        let (half_width, half_height) = (width / 2, height / 2);
        let mut next = vec![0.0; half_width * half_height];
        let mut energy = 0.0;
        for y in 0..half_height {
            for x in 0..half_width {
                let at = |dx: usize, dy: usize| level[(2 * y + dy) * width + 2 * x + dx];
                let four = [at(0, 0), at(1, 0), at(0, 1), at(1, 1)];
                let mean = four.iter().sum::<f64>() / 4.0;
                energy += four.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
                next[y * half_width + x] = mean;
            }
        }
        energies.push(energy / next.len() as f64);
        (level, width, height) = (next, half_width, half_height);
    }
    energies
}
