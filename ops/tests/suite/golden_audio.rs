//! Compares speech features with those of torchaudio, transformers and librosa.

use crate::speech::{f32s, golden, run, wav};
use feedstock_ops::{Chain, ChainSpec, Noise, Resources, SampleSeed, Scratch};
use serde_json::Value;

/// The tolerance relative to the value.
const RELATIVE: f32 = 1e-4;

/// The tolerance relative to the case's standard deviation. Logarithms and normalised features cross zero, and the quietest
/// bins of a linear spectrum are the references' rounding errors.
const OF_SPREAD: f32 = 1e-5;

fn references() -> Value {
    serde_json::from_slice(&golden("references.json")).unwrap()
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// Returns the input of a case: 100 samples from 4000 on for the short one, everything for the others.
fn clip(name: &str) -> Vec<u8> {
    let whole = golden("clip.wav");
    if name != "short" {
        return whole;
    }
    let samples = whole[44..].chunks_exact(2).map(|x| i16::from_le_bytes(x.try_into().unwrap()));
    wav(16_000, &samples.skip(4000).take(100).map(|x| f32::from(x) / 32768.0).collect::<Vec<_>>())
}

#[test]
fn features_agree_with_the_reference_libraries() {
    let mut scratch = Scratch::new();
    for case in references()["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let chain = format!("decode_audio,resample:16000,{}", case["chain"].as_str().unwrap());
        let chain = Chain::parse(&chain).unwrap();
        let (length, ours) = run(&chain, &clip(name), SampleSeed::new(1, 0, 0), &mut scratch).unwrap();
        let shape: Vec<usize> = case["shape"].as_array().unwrap().iter().map(count).collect();
        let (keep, width) = (count(&case["keep"]), shape.get(1).copied().unwrap_or(1));
        assert_eq!((length.div_ceil(keep), ours.len()), (shape[0], length * width), "{name}");
        let theirs = f32s(&golden(&format!("{name}.f32")));
        assert_eq!(theirs.len(), shape.iter().product::<usize>(), "{name}: as long as its shape");
        let mean = theirs.iter().sum::<f32>() / theirs.len() as f32;
        let spread = (theirs.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / theirs.len() as f32).sqrt();
        let mut worst = (0.0, 0, 0.0, 0.0);
        for (frame, (ours, theirs)) in
            ours.chunks_exact(width).step_by(keep).zip(theirs.chunks_exact(width)).enumerate()
        {
            for (a, b) in ours.iter().zip(theirs) {
                let error = (a - b).abs() / (RELATIVE * b.abs() + OF_SPREAD * spread);
                if error > worst.0 || error.is_nan() {
                    worst = (error, frame, *a, *b);
                }
            }
        }
        println!("{name}: {:.3} of the tolerance at frame {}: {} for {}", worst.0, worst.1, worst.2, worst.3);
        assert!(worst.0 <= 1.0, "{name}: {worst:?}, as {}", case["by"]);
    }
}

#[test]
fn silence_is_trimmed_as_librosa_does() {
    let mut scratch = Scratch::new();
    let whole =
        run(&Chain::parse("decode_audio").unwrap(), &clip(""), SampleSeed::new(1, 0, 0), &mut scratch);
    let whole = whole.unwrap().1;
    for case in references()["trims"].as_array().unwrap() {
        let mut op = case["options"].clone();
        op["op"] = "trim_silence".into();
        let ops = serde_json::json!([{"op": "decode_audio"}, op]).to_string();
        let chain = serde_json::from_str::<feedstock_ops::ChainSpec>(&ops).unwrap().compile().unwrap();
        let (_, ours) = run(&chain, &clip(""), SampleSeed::new(1, 0, 0), &mut scratch).unwrap();
        let kept = count(&case["kept"][0])..count(&case["kept"][1]);
        assert!(kept.start > 0 && kept.end < whole.len(), "{kept:?}: there is silence at both ends");
        assert_eq!(ours, whole[kept], "{}", case["options"]);
    }
}

/// Returns the impulse responses of the references.
fn rooms(about: &Value) -> Resources {
    let (all, mut clips, mut at) = (f32s(&golden("response.f32")), Vec::new(), 0);
    for length in about["responses"].as_array().unwrap().iter().map(count) {
        clips.push(all[at..at + length].to_vec());
        at += length;
    }
    let sample_rate = u32::try_from(count(&about["rate"])).unwrap();
    Resources::new().with_impulse_responses("rooms", Noise { sample_rate, clips })
}

#[test]
fn waveforms_are_those_of_torchaudio_with_the_same_draws() {
    let about: Value = serde_json::from_slice(&golden("waves.json")).unwrap();
    let (theirs, resources) = (f32s(&golden("waves.f32")), rooms(&about));
    let (first, samples) = (count(&about["first"]), count(&about["samples"]));
    let whole = clip("");
    let values = whole[44..].chunks_exact(2).map(|x| i16::from_le_bytes(x.try_into().unwrap()));
    let short =
        wav(16_000, &values.skip(first).take(samples).map(|x| f32::from(x) / 32768.0).collect::<Vec<_>>());
    let cases = about["cases"].as_array().unwrap();
    assert_eq!(theirs.len(), cases.len() * samples);
    let mut scratch = Scratch::new();
    for (case, theirs) in cases.iter().zip(theirs.chunks_exact(samples)) {
        let text = case["chain"].as_str().unwrap();
        let chain = ChainSpec::parse(text).unwrap().compile_with(&resources).unwrap();
        let id = case["sample"].as_u64().unwrap();
        let seed = SampleSeed::new(about["seed"].as_u64().unwrap(), about["epoch"].as_u64().unwrap(), id);
        let (_, ours) = run(&chain, &short, seed, &mut scratch).unwrap();
        assert_eq!(ours.len(), theirs.len(), "{case}");
        let most = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{text}: {most:e}");
        let tolerance = match text {
            text if text.contains("time_shift") => 0.0,
            text if text.contains("biquad") => 1e-5,
            _ => 1e-4, // reverb: transforms in single precision
        };
        assert!(most <= tolerance, "{case}: differs by up to {most:e}");
    }
}
