//! Describing, compiling and running chains of speech ops.

use crate::speech::{golden, run, tone, wav};
use feedstock_ops::audio::{
    AddNoise, DecodeAudio, Law, LogMel, MaskValue, Mfcc, PadSeconds, SpecAugment, TrimSilence, decode_mono,
};
use feedstock_ops::{
    Chain, ChainSpec, DType, ErrorKind, Layout, Need, Noise, RaggedRow, Resources, SampleSeed, Scratch,
    add_noise, decode_audio, feature_major, g711, global_mvn, highpass_biquad, log_mel, log_mel_librosa,
    log_mel_torchaudio, log_mel_whisper, mfcc, pad_seconds, random_crop_seconds, resample, spec_augment,
    speed_perturb, time_shift, trim_silence, utterance_mvn, volume,
};

const NOISE: &str = "s3://corpus/musan";

fn noise(sample_rate: u32) -> Resources {
    let clips = vec![tone(sample_rate, 9000, 700.0, 0.3), tone(sample_rate, 90_000, 1900.0, 0.1)];
    Resources::new().with_noise(NOISE, Noise { sample_rate, clips })
}

fn everything() -> ChainSpec {
    ChainSpec::from([
        decode_audio(),
        resample(16_000),
        trim_silence(40.0),
        speed_perturb([0.9, 1.0, 1.1]),
        random_crop_seconds(0.8),
        time_shift([-0.5, 0.5]),
        highpass_biquad([100.0, 300.0]),
        g711(Law::ALaw),
        AddNoise::new(NOISE, [5.0, 20.0]).probability(0.8).into(),
        volume([-6.0, 6.0]),
        utterance_mvn(),
        log_mel(80),
        spec_augment(),
        utterance_mvn(),
        global_mvn([0.1], [0.9]),
        feature_major(),
    ])
}

fn seed(sample: u64) -> SampleSeed {
    SampleSeed::new(7, 1, sample)
}

/// Returns sines at 48 kHz, pure enough that any resampler keeps their level.
fn clip(samples: usize) -> Vec<u8> {
    wav(48_000, &tone(48_000, samples, 440.0, 0.5))
}

#[test]
fn json_and_text_describe_the_same_chain() {
    let text = "decode_audio, resample:16000, trim_silence:40, speed_perturb:0.9/1.0/1.1, random_crop_seconds:0.8, \
                time_shift, highpass_biquad:100..300, g711:a_law, add_noise:s3://corpus/musan:5..20:probability=0.8, volume:-6..6, utterance_mvn, log_mel:80, \
                spec_augment, utterance_mvn, global_mvn:0.1:0.9, feature_major";
    assert_eq!(text.parse::<ChainSpec>().unwrap(), everything());
    let json = serde_json::to_string(&everything()).unwrap();
    assert_eq!(serde_json::from_str::<ChainSpec>(&json).unwrap(), everything());
    for (text, op) in [
        ("log_mel", log_mel_whisper()),
        (
            "log_mel:128:hop_length=200:mel_scale=htk:norm=none:log=db:top_db=80:drop_last_frame=false",
            log_mel_torchaudio(),
        ),
        (
            "log_mel:128:n_fft=2048:hop_length=512:pad_mode=constant:log=db:top_db=80:drop_last_frame=false",
            log_mel_librosa(),
        ),
        ("mfcc:40", mfcc(40)),
        ("mfcc:13:n_mels=23:top_db=80", Mfcc::of(13, LogMel::torchaudio(23)).into()),
        ("pad_seconds:30:truncate=true", PadSeconds::new(30.0).truncate(true).into()),
        ("add_noise:musan:10", add_noise("musan", [10.0, 10.0])),
        (
            "spec_augment:freq_masks=1:freq_width=5:value=0",
            SpecAugment::new().freq(1, 5).value(MaskValue::Constant(0.0)).into(),
        ),
        ("spec_augment:value=mean", spec_augment()),
        ("trim_silence:30:frame_length=400:hop_length=100", TrimSilence::new(30.0).frames(400, 100).into()),
    ] {
        let spec = ChainSpec::parse(text).unwrap();
        assert_eq!(spec, ChainSpec::from([op]), "{text}");
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ChainSpec>(&json).unwrap(), spec, "{json}");
    }
}

/// Changes the encoder's delay and padding, 12 bits each, in the LAME tag.
fn with_gaps(mp3: &[u8], change: impl Fn(u32, u32) -> (u32, u32)) -> Vec<u8> {
    let at = mp3.windows(4).position(|four| four == b"LAME").unwrap() + 21;
    let old = mp3[at..at + 3].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    let (delay, padding) = change(old >> 12, old & 0xFFF);
    let mut out = mp3.to_vec();
    out[at..at + 3].copy_from_slice(&(delay << 12 | padding).to_be_bytes()[1..]);
    out
}

/// An MP3 is decoded at half its rate if `resample` follows; a WAV of its samples is not.
#[test]
fn an_mp3_makes_what_its_samples_make() {
    let clip = std::fs::read("tests/golden/audio/48k_mono_64.mp3").unwrap();
    let mut scratch = Scratch::new();
    let mut odd_lengths = 0;
    // Odd and even starts and lengths.
    for (delay, padding) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let clip = with_gaps(&clip, |old_delay, old_padding| (old_delay + delay, old_padding + padding));
        let (rate, samples) = decode_mono(&clip, &DecodeAudio::new()).unwrap();
        odd_lengths += samples.len() % 2;
        let samples = wav(rate, &samples);
        // At the ends, half a resampling filter affects three frames.
        for (text, ends, tolerance) in [
            ("resample:8000", 43, 1e-4),
            ("resample:16000", 43, 1e-4),
            ("resample:16000,log_mel:80", 3 * 80, 5e-3),
        ] {
            let chain = Chain::parse(&format!("decode_audio,{text}")).unwrap();
            let (length, ours) = run(&chain, &clip, seed(1), &mut scratch).unwrap();
            let (expected_length, expected) = run(&chain, &samples, seed(1), &mut scratch).unwrap();
            assert_eq!((length, ours.len()), (expected_length, expected.len()), "{text}");
            let differences = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = differences.skip(ends).take(ours.len() - 2 * ends).fold(0.0, f32::max);
            println!("{text}, delay + {delay}, padding + {padding}: {worst}");
            assert!(worst < tolerance, "{text}: {worst}");
            assert!(ours != expected, "{text}: the MP3 was decoded in another way");
        }
    }
    assert_eq!(odd_lengths, 2);
}

#[test]
fn mistakes_are_named() {
    for (text, words) in [
        ("log_mel:80", "decode_image, decode_audio, tokenize"),
        ("decode_audio,log_mel:80", "op 1 (log_mel): its filters depend on the sample rate"),
        ("decode_audio,log_mel:80", "put resample:16000 before it"),
        ("decode_audio,add_noise:n:5", "op 1 (add_noise): the noise is loaded at the waveform's rate"),
        ("decode_audio,resample:16000,add_noise:n:5", "op 2 (add_noise): the noise n is not loaded"),
        ("decode_audio,reverb:r", "op 1 (reverb): impulse responses are loaded at the waveform's rate"),
        ("decode_audio,resample:16000,reverb:r", "op 2 (reverb): the impulse responses r are not loaded"),
        ("decode_audio,lowpass_biquad:3000", "(lowpass_biquad): its coefficients depend on the sample rate"),
        (
            "decode_audio,resample:8000,lowpass_biquad:4000",
            "cutoff_freq must be above 0 and below half of the sample rate, 4000 Hz here; got 4000..4000",
        ),
        ("decode_audio,resample:8000,bass_biquad:3:Q=0", "Q must be 0.001 … 1000; got 0"),
        (
            "decode_audio,resample:8000,equalizer_biquad:9:200",
            "gain must be a range within -100 … 100; got 200..200",
        ),
        ("decode_audio,time_shift:1.5", "shift must be a range within -1 … 1; got -1.5..1.5"),
        ("decode_audio,g711:b_law", "`law` must be mu_law or a_law; got b_law"),
        ("decode_audio,resample:0", "op 1 (resample)"),
        ("decode_audio,decode_audio", "op 1 (decode_audio): the audio clip is decoded already"),
        ("decode_audio,resample:16000,log_mel:80,volume", "op 3 (volume): works on waveforms"),
        ("decode_audio,resample:16000,log_mel:80,mfcc:13", "op 3 (mfcc): the features are made already"),
        ("decode_audio,resample:16000,spec_augment", "op 2 (spec_augment): works on features"),
        ("decode_audio,feature_major", "op 1 (feature_major): works on features"),
        ("decode_audio,resample:16000,log_mel:80,global_mvn:1/2/3:1", "mean has 3 values for 80 features"),
        ("decode_audio,resample:16000,log_mel:80:f_max=9000", "half the sample rate"),
        ("decode_audio,resample:16000,log_mel:80:bands=3", "`bands` is not a parameter"),
        ("decode_audio,resample:16000,mfcc:13:bands=3", "`bands` is not a parameter"),
        ("decode_audio,resample:16000,log_mel:80:window=hat", "`window` must be one of"),
        ("decode_audio,pad_seconds:0", "op 1 (pad_seconds): seconds must be above 0 and at most 3600; got 0"),
        (
            "decode_audio,random_crop_seconds:-1",
            "op 1 (random_crop_seconds): seconds must be above 0 and at most 3600; got -1",
        ),
        ("decode_audio,resample:384000,pad_seconds:3600", "over 268435456"),
        ("decode_audio,speed_perturb:3", "a multiple of 0.001; got 3"),
        ("decode_audio,volume:6..-6", "gain_db must be a range within -160 … 160; got 6..-6"),
        ("decode_audio,trim_silence:-3", "top_db must be above 0; got -3"),
        (
            "decode_audio,resample:16000,pad_seconds:0.001:truncate=true,log_mel:80",
            "every audio clip is 16 samples long",
        ),
        #[cfg(feature = "image")]
        ("decode_audio,center_crop:8", "op 1 (center_crop): does not work on audio"),
        #[cfg(feature = "image")]
        ("decode_image,log_mel:8", "op 1 (log_mel): does not work on images"),
    ] {
        let error = Chain::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{text}");
        assert!(error.message().contains(words), "{text}: {error}");
    }
}

#[test]
fn noise_is_asked_for_at_the_rate_of_its_place() {
    let need = |sample_rate| Need::Noise { uri: NOISE.to_owned(), sample_rate };
    assert_eq!(everything().needs(), [need(16_000)]);
    let spec = ChainSpec::from([
        decode_audio(),
        resample(24_000),
        add_noise(NOISE, [5.0, 5.0]),
        resample(16_000),
        add_noise(NOISE, [5.0, 5.0]),
        add_noise(NOISE, [9.0, 9.0]),
    ]);
    assert_eq!(spec.needs(), [need(16_000), need(24_000)]);
    let error = spec.compile_with(&noise(16_000)).unwrap_err();
    assert!(error.message().contains("16000 Hz, but the waveform has 24000 Hz"), "{error}");
    let empty = Resources::new().with_noise(NOISE, Noise { sample_rate: 16_000, clips: vec![] });
    assert!(everything().compile_with(&empty).unwrap_err().message().contains("no audio clips"));
}

#[test]
fn same_seed_same_bytes_whatever_ran_before() {
    let chain = everything().compile_with(&noise(16_000)).unwrap();
    let clips = [clip(48_000), golden("clip.wav"), clip(100_001)];
    let rows = |scratch: &mut Scratch, order: [usize; 3]| {
        let mut rows = [(); 3].map(|()| (0, Vec::new()));
        for i in order {
            rows[i] = run(&chain, &clips[i], seed(i as u64), scratch).unwrap();
        }
        rows
    };
    let mut scratch = Scratch::new();
    let first = rows(&mut scratch, [0, 1, 2]);
    assert_eq!(first, rows(&mut scratch, [2, 1, 0]));
    assert!(chain.apply_ragged(b"no audio", seed(9), &mut scratch, &mut RaggedRow::new()).is_err());
    assert_eq!(first, rows(&mut Scratch::new(), [1, 2, 0]));
    let fresh =
        std::thread::scope(|scope| scope.spawn(|| rows(&mut Scratch::new(), [0, 2, 1])).join().unwrap());
    assert_eq!(first, fresh);
    let other = run(&chain, &clips[0], seed(77), &mut scratch).unwrap();
    assert_ne!(first[0], other);
}

#[test]
fn draws_of_an_op_do_not_depend_on_the_ops_around_it() {
    let gain = |text: &str| {
        let (_, row) = run(&Chain::parse(text).unwrap(), &clip(4800), seed(3), &mut Scratch::new()).unwrap();
        row[100] / tone(48_000, 4800, 440.0, 0.5)[100]
    };
    let one = gain("decode_audio,volume:0,volume:-20..20");
    let two = gain("decode_audio,random_crop_seconds:9,volume:-20..20");
    let elsewhere = gain("decode_audio,volume:-20..20");
    assert!((one - two).abs() < 1e-5 && (one - elsewhere).abs() > 1e-3, "{one} {two} {elsewhere}");
}

#[test]
fn rows_are_as_long_as_their_clips_or_all_alike() {
    for (text, samples, length, width) in [
        ("decode_audio", 4801, 4801, 1),
        ("decode_audio,resample:16000", 4801, 1601, 1),
        ("decode_audio,resample:16000,log_mel:80", 48_000, 100, 80),
        ("decode_audio,resample:16000,log_mel:80:drop_last_frame=false", 48_000, 101, 80),
        ("decode_audio,resample:16000,mfcc:13", 48_000, 81, 13),
        ("decode_audio,pad_seconds:0.5", 4801, 24_000, 1),
        ("decode_audio,random_crop_seconds:0.05", 4801, 2400, 1),
        ("decode_audio,speed_perturb:0.9", 4500, 5000, 1),
        ("decode_audio,speed_perturb:1.1", 5500, 5000, 1),
    ] {
        let chain = Chain::parse(text).unwrap();
        let mut row = RaggedRow::new();
        chain.apply_ragged(&clip(samples), seed(1), &mut Scratch::new(), &mut row).unwrap();
        assert_eq!(row.length(), length, "{text}");
        assert_eq!(row.bytes().len(), length * width * 4, "{text}");
        assert_eq!(chain.output().bytes_at(length), Some(row.bytes().len()), "{text}");
    }
    // Fixed rows of longer and shorter audio clips, aligned or not.
    let chain =
        Chain::parse("decode_audio,resample:16000,random_crop_seconds:0.5,pad_seconds:0.5,log_mel:80")
            .unwrap();
    let output = chain.output();
    assert_eq!((output.dtype, &output.shape[..], output.layout), (DType::F32, &[50, 80][..], Layout::Tf));
    for samples in [1000, 24_000, 90_000] {
        let mut rows = vec![0; output.bytes() + 8];
        let mut results = [0, 1, 2].map(|offset| {
            let row = &mut rows[offset..offset + output.bytes()];
            chain.apply(&clip(samples), seed(1), &mut Scratch::new(), row).unwrap();
            row.to_vec()
        });
        results.sort();
        assert_eq!(results[0], results[2], "{samples}");
    }
}

#[test]
fn feature_major_is_the_transpose() {
    let (length, frames) = run(
        &Chain::parse("decode_audio,resample:16000,log_mel:80,utterance_mvn").unwrap(),
        &golden("clip.wav"),
        seed(1),
        &mut Scratch::new(),
    )
    .unwrap();
    let text = "decode_audio,resample:16000,log_mel:80,feature_major,utterance_mvn";
    let chain = Chain::parse(text).unwrap();
    assert_eq!(chain.output().layout, Layout::Ft);
    let (same, features) = run(&chain, &golden("clip.wav"), seed(1), &mut Scratch::new()).unwrap();
    assert_eq!((length, same), (150, 150));
    for (t, f) in (0..length).flat_map(|t| (0..80).map(move |f| (t, f))) {
        assert_eq!(frames[t * 80 + f], features[f * length + t]);
    }
}

#[test]
fn silence_gives_finite_results_in_every_op() {
    let chain = everything().compile_with(&noise(16_000)).unwrap();
    for samples in [48_000, 9600] {
        for bytes in [wav(48_000, &vec![0.0; samples]), wav(48_000, &vec![1e-30; samples])] {
            for sample in 0..20 {
                let (length, row) = run(&chain, &bytes, seed(sample), &mut Scratch::new()).unwrap();
                assert!(length > 0 && row.iter().all(|x| x.is_finite()), "{sample}");
            }
        }
    }
}

#[test]
fn clips_too_short_for_a_frame_are_bad_samples() {
    for text in [
        "decode_audio,resample:16000,log_mel:80",
        "decode_audio,resample:16000,log_mel:80:center=false:drop_last_frame=false,feature_major",
        "decode_audio,resample:16000,mfcc:13:center=false",
    ] {
        let chain = Chain::parse(text).unwrap();
        let error = run(&chain, &wav(16_000, &[0.1; 100]), seed(1), &mut Scratch::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSample, "{text}");
        assert!(error.message().contains("100 samples long"), "{error}");
        assert!(error.message().contains("pad_seconds"), "{error}");
        let (length, _) = run(&chain, &wav(16_000, &[0.1; 600]), seed(1), &mut Scratch::new()).unwrap();
        assert!(length > 0, "{text}");
    }
}

#[test]
fn speed_changes_pitch_and_tempo() {
    for (factor, hz) in [("0.5", 500.0), ("2.0", 2000.0)] {
        let chain = Chain::parse(&format!("decode_audio,speed_perturb:{factor}")).unwrap();
        let bytes = wav(16_000, &tone(16_000, 16_000, 1000.0, 0.5));
        let (_, row) = run(&chain, &bytes, seed(1), &mut Scratch::new()).unwrap();
        let expected = tone(16_000, row.len(), hz, 0.5);
        let inner = 1000..row.len() - 1000;
        let worst = inner.map(|i| (row[i] - expected[i]).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{factor}: {worst}");
    }
}

#[test]
fn defaults_are_whispers() {
    let op = LogMel::default();
    assert_eq!((op.n_mels, op.n_fft, op.hop_length, op.drop_last_frame), (80, 400, 160, true));
    let chain = ChainSpec::from([
        decode_audio(),
        resample(16_000),
        PadSeconds::new(30.0).truncate(true).into(),
        log_mel_whisper(),
        feature_major(),
    ]);
    assert_eq!(chain.compile().unwrap().output().shape, [80, 3000]);
    let padded = ChainSpec::from([decode_audio(), random_crop_seconds(1.0), pad_seconds(1.0)]);
    assert!(padded.compile().unwrap().output().is_ragged(), "audio clips differ in rate");
}
