//! Describing, compiling and running chains.

use crate::support::{Jpeg, picture};
use feedstock_ops::image::{
    AutoAugmentPolicy, EraseValue, Filter, Normalize, RandomErasing, RandomResizedCrop,
};
use feedstock_ops::{
    Chain, ChainSpec, DType, ErrorKind, Layout, SampleSeed, Scratch, adjust_sharpness, affine, aug_mix,
    auto_augment, autocontrast, center_crop, color_jitter, decode_image, equalize, gaussian_blur, grayscale,
    horizontal_flip, invert, normalize, pad, perspective, posterize, rand_augment, random_apply,
    random_choice, random_crop, random_erasing, random_resized_crop, resize, rotate, solarize,
    timm_rand_augment, to_chw, to_f32, trivial_augment, vertical_flip,
};

fn run(chain: &Chain, bytes: &[u8], seed: SampleSeed, scratch: &mut Scratch) -> Vec<u8> {
    let mut out = vec![0xAA; chain.output().bytes()];
    chain.apply(bytes, seed, scratch, &mut out).unwrap();
    out
}

fn everything() -> ChainSpec {
    ChainSpec::from([
        decode_image(),
        resize(300),
        pad(3),
        random_crop(280),
        center_crop([270, 260]),
        random_resized_crop(96),
        horizontal_flip(0.5),
        vertical_flip(0.5),
        rotate([-10.0, 10.0]),
        affine([-5.0, 5.0]),
        perspective(0.5, 0.5),
        random_apply([color_jitter(0.4, 0.4, 0.4, 0.1), grayscale(0.2)], 0.8),
        random_choice([
            solarize(128.0, 0.5),
            posterize(4, 0.5),
            equalize(0.5),
            autocontrast(0.5),
            invert(0.5),
        ]),
        gaussian_blur(9, [0.1, 2.0]),
        adjust_sharpness(2.0, 0.5),
        auto_augment(AutoAugmentPolicy::Imagenet),
        rand_augment(2, 9),
        trivial_augment(),
        timm_rand_augment(9.0),
        aug_mix(3),
        RandomErasing::new(0.5).value(EraseValue::Constant(9.0)).into(),
        to_f32(),
        normalize([0.5; 3], [0.25; 3]),
        to_chw(),
        random_erasing(1.0),
    ])
}

#[test]
fn json_and_text_describe_the_same_chain() {
    let text = "decode_image, random_resized_crop:224:scale=0.2..1:filter=bicubic, horizontal_flip, \
                normalize:mean=0.5/0.5/0.5:std=0.25/0.25/0.25, to_chw";
    let parsed: ChainSpec = text.parse().unwrap();
    let built = ChainSpec::from([
        decode_image(),
        RandomResizedCrop::new(224).scale([0.2, 1.0]).filter(Filter::Bicubic).into(),
        horizontal_flip(0.5),
        Normalize::new([0.5; 3], [0.25; 3]).into(),
        to_chw(),
    ]);
    assert_eq!(parsed, built);
    let json = serde_json::to_string(&built).unwrap();
    assert!(json.contains(r#"{"op":"random_resized_crop","size":[224,224]"#), "{json}");
    assert_eq!(serde_json::from_str::<ChainSpec>(&json).unwrap(), built);
    let all = everything();
    assert_eq!(serde_json::from_str::<ChainSpec>(&serde_json::to_string(&all).unwrap()).unwrap(), all);
    let terse = r#"[{"op":"decode_image"},{"op":"random_resized_crop","size":224},{"op":"horizontal_flip"}]"#;
    let terse: ChainSpec = serde_json::from_str(terse).unwrap();
    assert_eq!(terse, "decode_image,random_resized_crop:224,horizontal_flip".parse().unwrap());
}

#[test]
fn mistakes_are_named() {
    for (text, words) in [
        ("", "op 0"),
        ("resize:224x224", "decode_image"),
        ("decode_image", "fixed output size"),
        ("decode_image,resize:256", "fixed output size"),
        ("decode_image,decode_image,center_crop:8", "op 1 (decode_image)"),
        (
            "decode_image,center_crop:0",
            "op 1 (center_crop): size must be 1 … 32768 pixels on each side; got 0×0",
        ),
        (
            "decode_image,center_crop:8,horizontal_flip:1.5",
            "op 2 (horizontal_flip): probability must be 0 … 1; got 1.5",
        ),
        ("decode_image,center_crop:8,normalize,center_crop:4", "op 3 (center_crop): works on bytes"),
        ("decode_image,center_crop:8,normalize,normalize", "op 3 (normalize): comes once"),
        ("decode_image,center_crop:8,normalize,to_f32", "op 3 (to_f32)"),
        ("decode_image,center_crop:8,normalize:std=1/0/1", "op 2 (normalize)"),
        ("decode_image,center_crop:8,random_erasing:value=0.5", "op 2 (random_erasing)"),
        ("decode_image,centre_crop:size=8", "`centre_crop` is not an op (did you mean center_crop?)"),
        (
            "decode_image,center_crop:8:filter=bilinear",
            "`filter` is not a parameter; the parameters are size",
        ),
        ("decode_image,center_crop:8:9", "`9` has no parameter"),
        ("decode_image,center_crop:8:size=9", "given twice"),
        (
            "decode_image,random_resized_crop:224:scale=1..0.5",
            "scale must be a range above 0 and at most 1; got 1..0.5",
        ),
        ("decode_image,random_resized_crop:224:filter=boxy", "`filter` must be one of"),
        ("decode_image:max_pixels=0,center_crop:8", "op 0 (decode_image)"),
        ("decode_image,center_crop:8,gaussian_blur:4", "kernel_size must be an odd number, 1 … 511; got 4"),
        ("decode_image,center_crop:8,gaussian_blur:3:0..1", "sigma must be a range above 0"),
        ("decode_image,center_crop:8,solarize:-1", "threshold must be 0 … 256; got -1"),
        ("decode_image,center_crop:8,posterize:0", "bits must be 1 … 8; got 0"),
        (
            "decode_image,center_crop:8,adjust_sharpness:-1",
            "sharpness_factor must be a finite number >= 0; got -1",
        ),
        ("decode_image,center_crop:8,rotate:-5", "degrees must be a range within -360 … 360; got 5..-5"),
        (
            "decode_image,center_crop:8,affine:5:translate=2/0",
            "translate must be two numbers 0 … 1; got 2 and 0",
        ),
        ("decode_image,center_crop:8,affine:5:scale=0..1", "scale must be a range within 0.001 … 1000"),
        (
            "decode_image,center_crop:8,affine:5:shear=90",
            "shear must be a range within -89 … 89; got -90..90",
        ),
        ("decode_image,center_crop:8,perspective:1.5", "distortion_scale must be 0 … 1; got 1.5"),
        ("decode_image,center_crop:8,pad:40000", "padding must be 0 … 32768 pixels on each side; got 40000"),
        (
            "decode_image,center_crop:30000,pad:9000",
            "size must be 1 … 32768 pixels on each side; got 48000×48000",
        ),
        (
            "decode_image,center_crop:8,random_apply:[invert:2]",
            "op 2 (random_apply): op 0 (invert): probability must",
        ),
        (
            "decode_image,center_crop:8,random_apply:[invert]:2",
            "op 2 (random_apply): probability must be 0 … 1",
        ),
        (
            "decode_image,center_crop:8,random_apply:[invert,random_resized_crop:8]",
            "op 1 (random_resized_crop): changes the image's size or type; ops that run at random must keep both",
        ),
        (
            "decode_image,center_crop:8,random_choice:[to_f32]",
            "op 0 (to_f32): changes the image's size or type",
        ),
        (
            "decode_image,center_crop:8,random_choice:[random_apply:[to_chw]]",
            "op 0 (to_chw): changes the image's",
        ),
        (
            "decode_image,center_crop:8,random_apply:[decode_audio]",
            "op 0 (decode_audio): does not work on images",
        ),
        (
            "decode_image,center_crop:8,to_f32,random_apply:[vertical_flip]",
            "op 3 (random_apply): works on bytes",
        ),
        (
            "decode_image,center_crop:8,random_choice:[invert]:probabilities=1/1",
            "probabilities must be 1 finite numbers >= 0, one for each op, not all 0; got [1.0, 1.0]",
        ),
        ("decode_image,center_crop:8,rand_augment:2:99", "and magnitude below it; got 2, 31 and 99"),
        ("decode_image,center_crop:8,timm_rand_augment:11", "magnitude must be 0 … 10; got 11"),
        ("decode_image,center_crop:8,timm_rand_augment:num_layers=17", "num_layers must be 0 … 16; got 17"),
        ("decode_image,center_crop:8,aug_mix:11", "severity must be 1 … 10; got 11"),
        ("decode_image,center_crop:8,aug_mix:chain_depth=0", "chain_depth must be −1 or 1 … 16; got 0"),
        ("decode_image,center_crop:8,aug_mix:alpha=0", "alpha must be 0.01 … 1e6; got 0"),
    ] {
        let error = Chain::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{text}");
        assert!(error.message().contains(words), "{text}: {error}");
    }
    for (json, words) in [
        (r#"{"op": "decode_image"}"#, "a chain must be a JSON list of objects"),
        (r#"[{"size": 8}]"#, "op 0: its `op` must be the name of an op"),
        (r#"[{"op": "centre_crop"}]"#, "`centre_crop` is not an op (did you mean center_crop?)"),
        (
            r#"[{"op": "decode_image", "max_pixel": 8}]"#,
            "`max_pixel` is not a parameter (did you mean max_pixels?)",
        ),
        (
            r#"[{"op": "decode_image", "max_pixels": 0.5}]"#,
            "op 0 (decode_image): `max_pixels` must be an integer",
        ),
        (r#"[{"op": "center_crop"}]"#, "op 0 (center_crop): `size` is missing"),
        (
            r#"[{"op": "random_apply", "ops": []}, {"op": "random_apply"}]"#,
            "op 1 (random_apply): `ops` is missing",
        ),
        (
            r#"[{"op": "random_apply", "ops": [{"op": "invert"}, {"op": "solarize"}]}]"#,
            "op 0 (random_apply): op 1 (solarize): `threshold` is missing",
        ),
    ] {
        let error = ChainSpec::from_json(json).expect_err(json);
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{json}");
        assert!(error.message().contains(words), "{json}: {error}");
    }
}

#[test]
fn outputs_are_what_the_chain_says() {
    for (text, dtype, layout, shape) in [
        ("decode_image,center_crop:8x9", DType::U8, Layout::Hwc, [8, 9, 3]),
        ("decode_image,resize:8x9,to_chw", DType::U8, Layout::Chw, [3, 8, 9]),
        ("decode_image,to_chw,to_f32,center_crop:9", DType::U8, Layout::Hwc, [0; 3]),
        ("decode_image,center_crop:9,to_f32", DType::F32, Layout::Hwc, [9, 9, 3]),
        ("decode_image,random_resized_crop:9,normalize,to_chw", DType::F32, Layout::Chw, [3, 9, 9]),
        ("decode_image,resize:4x6,resize:8", DType::U8, Layout::Hwc, [8, 12, 3]),
    ] {
        match Chain::parse(text) {
            Ok(chain) => {
                let spec = chain.output();
                assert_eq!((spec.dtype, spec.layout, &spec.shape[..]), (dtype, layout, &shape[..]), "{text}");
            }
            Err(error) => assert_eq!(shape, [0; 3], "{text}: {error}"),
        }
    }
}

#[test]
fn same_seed_same_bytes_whatever_ran_before() {
    let chain = everything().compile().unwrap();
    let photos: Vec<Vec<u8>> = [(400, 350), (333, 500), (64, 64)]
        .map(|(w, h)| Jpeg::default().encode(&picture(w, h, 11), w, h))
        .into();
    let seed = |id: usize| SampleSeed::new(5, 1, id as u64);
    let fresh: Vec<Vec<u8>> =
        (0..30).map(|id| run(&chain, &photos[id % 3], seed(id), &mut Scratch::new())).collect();
    let mut scratch = Scratch::new();
    for id in (0..30).rev() {
        assert_eq!(run(&chain, &photos[id % 3], seed(id), &mut scratch), fresh[id], "sample {id}");
    }
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (chain, photos, fresh) = (chain.clone(), &photos, &fresh);
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for id in (worker..30).step_by(3) {
                    assert_eq!(run(&chain, &photos[id % 3], seed(id), &mut scratch), fresh[id]);
                }
            });
        }
    });
    assert_ne!(
        run(&chain, &photos[0], SampleSeed::new(5, 2, 0), &mut scratch),
        fresh[0],
        "another epoch must look different"
    );
}

/// SimCLR (Chen et al. 2020): the chain of its paper, as its JSON and its text.
#[test]
fn a_chain_of_simclr_is_described_and_draws_its_ops() {
    let text = "decode_image,random_resized_crop:32,horizontal_flip,random_apply:[color_jitter:0.8:0.8:0.8:0.2]:0.8,\
                grayscale:0.2,random_apply:[gaussian_blur:3:0.1..2]:0.5,normalize,to_chw";
    let spec: ChainSpec = text.parse().unwrap();
    assert_eq!(serde_json::from_str::<ChainSpec>(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
    assert_eq!(spec.compile().unwrap().output().shape, [3, 32, 32]);
    let photo = Jpeg::default().encode(&picture(50, 40, 12), 50, 40);
    let chain = Chain::parse("decode_image,resize:8x8,grayscale:0.2").unwrap();
    let is_gray = |id| {
        let out = run(&chain, &photo, SampleSeed::new(1, 0, id), &mut Scratch::new());
        out.chunks_exact(3).all(|pixel| pixel == [pixel[0]; 3])
    };
    let gray = (0..400).filter(|&id| is_gray(id)).count();
    assert!(gray.abs_diff(80) < 40, "{gray}"); // σ = 8
}

/// Op i in op k draws from the seed that absorbed k, then i, so its draws depend on nothing else.
#[test]
fn inner_ops_draw_by_the_outer_index_and_theirs() {
    let photo = Jpeg::default().encode(&picture(50, 40, 12), 50, 40);
    let pixels = |text: &str, id| {
        let chain = Chain::parse(&format!("decode_image,resize:16x16,{text}")).unwrap();
        run(&chain, &photo, SampleSeed::new(3, 0, id), &mut Scratch::new())
    };
    let (mut seen, mut applied) = ([0; 3], 0);
    for id in 0..200 {
        let (seed, plain) = (SampleSeed::new(3, 0, id), pixels("center_crop:16", id));
        let outer = seed.op(2).chance(0.7);
        let [first, second] = [0, 1].map(|inner| seed.within(2).op(inner).chance(0.5));
        let flips = match (outer && first, outer && second) {
            (false, false) => plain.clone(),
            (true, false) => pixels("vertical_flip:1", id),
            (false, true) => pixels("horizontal_flip:1", id),
            (true, true) => pixels("vertical_flip:1,horizontal_flip:1", id),
        };
        assert_eq!(pixels("random_apply:[vertical_flip,horizontal_flip]:0.7", id), flips);
        applied += usize::from(outer);
        let one = pixels("random_choice:[vertical_flip:1,horizontal_flip:1,invert:1]", id);
        let of = ["vertical_flip:1", "horizontal_flip:1", "invert:1"].map(|op| pixels(op, id));
        seen[of.iter().position(|pixels| *pixels == one).unwrap()] += 1;
        let nested = seed.within(2).within(1).op(0).chance(0.5);
        let expected = if nested { pixels("invert:1", id) } else { plain };
        assert_eq!(pixels("random_apply:[invert:0,random_apply:[invert]:1]:1", id), expected);
    }
    assert!(seen.iter().all(|count| *count > 40), "{seen:?}");
    assert!((110..170).contains(&applied), "{applied}");
}

#[test]
fn flips_happen_half_the_time_and_mirror_every_output_kind() {
    let photo = Jpeg::default().encode(&picture(50, 40, 12), 50, 40);
    let mut scratch = Scratch::new();
    for tail in ["", ",to_chw", ",to_f32", ",normalize,to_chw"] {
        let build =
            |flip: &str| Chain::parse(&format!("decode_image,center_crop:24x30{flip}{tail}")).unwrap();
        let (plain, always, half) = (build(""), build(",horizontal_flip:1"), build(",horizontal_flip"));
        let seed = SampleSeed::new(0, 0, 0);
        let upright = run(&plain, &photo, seed, &mut scratch);
        let mirrored = run(&always, &photo, seed, &mut scratch);
        let spec = plain.output();
        let (bytes, chw) = (spec.dtype.bytes(), spec.layout == Layout::Chw);
        let pixel = bytes * if chw { 1 } else { 3 };
        for (row, other) in upright.chunks_exact(30 * pixel).zip(mirrored.chunks_exact(30 * pixel)) {
            assert!(row.chunks_exact(pixel).eq(other.rchunks_exact(pixel)), "{tail}");
        }
        let flips = (0..400)
            .filter(|&id| run(&half, &photo, SampleSeed::new(1, 0, id), &mut scratch) == mirrored)
            .count();
        // 200 expected, σ = 10.
        assert!(flips.abs_diff(200) < 50, "{tail}: {flips}");
        let upended = run(&build(",vertical_flip:1"), &photo, seed, &mut scratch);
        let row = 30 * pixel;
        for (plane, other) in upright.chunks_exact(24 * row).zip(upended.chunks_exact(24 * row)) {
            assert!(plane.chunks_exact(row).eq(other.rchunks_exact(row)), "{tail}");
        }
        let both = run(&build(",vertical_flip:1,horizontal_flip:1"), &photo, seed, &mut scratch);
        for (row, other) in upended.chunks_exact(row).zip(both.chunks_exact(row)) {
            assert!(row.chunks_exact(pixel).eq(other.rchunks_exact(pixel)), "{tail}");
        }
    }
}

#[test]
fn small_pictures_pad_or_are_refused() {
    let photo = Jpeg::default().encode(&picture(20, 10, 13), 20, 10);
    let mut scratch = Scratch::new();
    let refused = Chain::parse("decode_image,random_crop:16").unwrap();
    let mut out = vec![0; refused.output().bytes()];
    let error = refused.apply(&photo, SampleSeed::new(0, 0, 0), &mut scratch, &mut out).unwrap_err();
    assert!(error.message().contains("pad_if_needed"), "{error}");
    let padded = Chain::parse("decode_image,random_crop:16:pad_if_needed=true").unwrap();
    let out = run(&padded, &photo, SampleSeed::new(0, 0, 0), &mut scratch);
    assert!(out.chunks_exact(16 * 3).any(|row| row.iter().all(|&x| x == 0)));
    assert!(out.iter().any(|&x| x != 0));
    let around = Chain::parse("decode_image,random_crop:10x20:padding=4").unwrap();
    run(&around, &photo, SampleSeed::new(0, 0, 0), &mut scratch);
}

#[test]
fn erasing_after_normalize_writes_the_value() {
    let photo = Jpeg::default().encode(&picture(50, 40, 14), 50, 40);
    let op = RandomErasing::new(1.0).value(EraseValue::Channels([7.0, 8.0, 9.0]));
    let spec = [decode_image(), resize([32, 32]), Normalize::default().into(), to_chw(), op.into()];
    let chain = ChainSpec::from(spec).compile().unwrap();
    let out = run(&chain, &photo, SampleSeed::new(0, 0, 0), &mut Scratch::new());
    let values: Vec<f32> = out.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
    for (plane, expected) in values.chunks_exact(32 * 32).zip([7.0, 8.0, 9.0]) {
        let erased = plane.iter().filter(|&&x| x == expected).count();
        assert!((20..=338).contains(&erased), "{erased}");
    }
}

#[test]
#[should_panic(expected = "exactly as long")]
fn a_row_of_another_length_is_the_callers_defect() {
    let chain = Chain::parse("decode_image,center_crop:8").unwrap();
    let _ = chain.apply(b"", SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut [0; 7]);
}
