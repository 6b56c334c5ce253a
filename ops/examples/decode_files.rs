//! Decodes the files whose paths arrive on standard input, one a line, for programs that compare decoders.
//!
//! Each line is `image PATH` or `audio PATH`. The answer on standard output is one line of JSON, followed by `bytes`
//! bytes of data: RGB rows of 8 bits for an image, the samples of `channels` channels, one channel after the other, as
//! little-endian f32 for audio. Where the file is refused, `error` holds the reason and no data follows. `warnings` lists what is unusual about an image. `seconds` is
//! the time that decoding took, to the mean of the channels for audio, without reading the file. `scripts/survey` is
//! the user of this program.

#![allow(clippy::print_stdout, reason = "standard output is the interface of this program")]

use std::io::{self, BufRead, Write};
use std::time::Instant;

use feedstock_ops::audio::{DecodeAudio, decode_channels, decode_mono};
use feedstock_ops::image::{DecodeImage, decode_rgb_warned};
use serde_json::{Value, json};

/// Survey limits are those of the reference: as long and as large as the file is.
const MAX_SECONDS: f64 = 24.0 * 3600.0;

fn image(bytes: &[u8]) -> feedstock_ops::Result<(Value, Vec<u8>)> {
    let op = DecodeImage::new().scaled(false);
    let started = Instant::now();
    let (size, rgb, warnings) = decode_rgb_warned(bytes, &op)?;
    let seconds = started.elapsed().as_secs_f64();
    let warnings: Vec<_> = warnings.iter().map(|warning| warning.as_str()).collect();
    let head = json!({
        "width": size.width, "height": size.height, "seconds": seconds, "bytes": rgb.len(), "warnings": warnings,
    });
    Ok((head, rgb))
}

fn audio(bytes: &[u8]) -> feedstock_ops::Result<(Value, Vec<u8>)> {
    let op = DecodeAudio::new()
        .max_seconds(MAX_SECONDS)
        .max_samples(u64::MAX)
        .max_packets(u64::MAX)
        .max_decoded_bytes(u64::MAX);
    let started = Instant::now();
    decode_mono(bytes, &op)?;
    let seconds = started.elapsed().as_secs_f64();
    let (rate, channels) = decode_channels(bytes, &op)?;
    let data: Vec<u8> = channels.iter().flatten().flat_map(|sample| sample.to_le_bytes()).collect();
    let head =
        json!({ "sample_rate": rate, "channels": channels.len(), "seconds": seconds, "bytes": data.len() });
    Ok((head, data))
}

fn answer(line: &str) -> (Value, Vec<u8>) {
    let Some((kind, path)) = line.split_once(' ') else {
        return (
            json!({ "error": format!("a line must be `image PATH` or `audio PATH`; got {line:?}") }),
            Vec::new(),
        );
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return (json!({ "error": format!("{path}: {error}") }), Vec::new()),
    };
    let result = match kind {
        "image" => image(&bytes),
        "audio" => audio(&bytes),
        other => {
            return (
                json!({ "error": format!("the kind must be image or audio; got {other:?}") }),
                Vec::new(),
            );
        }
    };
    result.unwrap_or_else(|error| (json!({ "error": error.to_string() }), Vec::new()))
}

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let (head, data) = answer(&line?);
        writeln!(out, "{head}")?;
        out.write_all(&data)?;
        out.flush()?;
    }
    Ok(())
}
