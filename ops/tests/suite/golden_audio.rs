//! Compares speech features with those of torchaudio, transformers and librosa.

use crate::speech::{f32s, golden, run, wav};
use feedstock_ops::{Chain, SampleSeed, Scratch};
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
