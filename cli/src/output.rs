//! Printing: results to standard output, errors to standard error. Queries and passwords of URLs are removed.

use super::failure::Outcome;
use feedstock_dataset::hide_urls;
use serde_json::Value;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Buffered standard output.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Prints one line.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> Outcome {
        Ok(writeln!(self.0, "{}", hide_urls(line.as_ref()))?)
    }

    /// Prints one line of JSON.
    pub(crate) fn json(&mut self, value: &Value) -> Outcome {
        self.line(value.to_string())
    }

    /// Prints `name   value`, with all values in one column.
    pub(crate) fn fact(&mut self, name: &str, value: impl AsRef<str>) -> Outcome {
        Ok(writeln!(self.0, "{name:<16} {}", hide_urls(value.as_ref()))?)
    }

    /// Flushes the output; an error if that fails.
    pub(crate) fn end(mut self) -> Outcome {
        Ok(self.0.flush()?)
    }
}

/// Prints `feedstock: …` to standard error, on one line even if a library's message has several.
pub(crate) fn complain(message: &str) {
    let words: Vec<&str> = message.split_whitespace().collect();
    let _nowhere_left_to_say_it = writeln!(io::stderr(), "feedstock: {}", hide_urls(&words.join(" ")));
}

/// Formats 1234567 as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes in decimal units: 112000 as `112 kB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if number < 1000 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats seconds in a fitting unit: `2.78 h`, `14.2 min`, `5.0 s`.
pub(crate) fn hours(seconds: f64) -> String {
    if seconds >= 3600.0 {
        return format!("{:.2} h", seconds / 3600.0);
    }
    if seconds >= 60.0 {
        return format!("{:.1} min", seconds / 60.0);
    }
    format!("{seconds:.1} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let shown = [999, 1000, 112_345, 999_600, 5_400_000_000].map(bytes);
        assert_eq!(shown, ["999 B", "1.00 kB", "112 kB", "1.00 MB", "5.40 GB"]);
    }

    #[test]
    fn lengths_have_a_fitting_unit() {
        assert_eq!([5.04, 90.0, 10_000.0].map(hours), ["5.0 s", "1.5 min", "2.78 h"]);
    }
}
