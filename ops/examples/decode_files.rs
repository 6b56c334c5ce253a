//! Decodes the files whose paths arrive on standard input, one a line, for programs that compare decoders.
//!
//! Each line is `image PATH` or `audio PATH`. The answer on standard output is one line of JSON, followed by `bytes`
//! bytes of data: RGB rows of 8 bits for an image, mono samples as little-endian f32 for audio. Where the file is
//! refused, `error` holds the reason and no data follows. `seconds` is the time that decoding took, without reading
//! the file. `scripts/survey` is the user of this program.

#![allow(clippy::print_stdout, reason = "standard output is the interface of this program")]

use std::io::{self, BufRead, Write};
use std::time::Instant;

use feedstock_ops::audio::{DecodeAudio, decode_mono};
use feedstock_ops::image::{DecodeImage, decode_rgb};
use serde_json::{Value, json};

/// Survey limits are those of the reference: as long and as large as the file is.
const MAX_SECONDS: f64 = 24.0 * 3600.0;

fn image(bytes: &[u8]) -> feedstock_ops::Result<(Value, Vec<u8>)> {
    let op = DecodeImage::new().scaled(false);
    let started = Instant::now();
    let (size, rgb) = decode_rgb(bytes, &op)?;
    let seconds = started.elapsed().as_secs_f64();
    Ok((json!({ "width": size.width, "height": size.height, "seconds": seconds, "bytes": rgb.len() }), rgb))
}

fn audio(bytes: &[u8]) -> feedstock_ops::Result<(Value, Vec<u8>)> {
    let op = DecodeAudio::new().max_seconds(MAX_SECONDS);
    let started = Instant::now();
    let (rate, samples) = decode_mono(bytes, &op)?;
    let seconds = started.elapsed().as_secs_f64();
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    Ok((json!({ "sample_rate": rate, "seconds": seconds, "bytes": data.len() }), data))
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
