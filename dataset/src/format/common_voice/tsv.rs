//! Common Voice's tables: tab separated, no quoting, columns by header.
//!
//! A quotation mark in a sentence is text. Lines end with LF or CRLF; empty lines are skipped. A row with more or fewer
//! fields than the header is an error that names the line.

use crate::{Error, Result};
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, StringBuilder};
use csv::{ByteRecord, ReaderBuilder, Terminator};
use std::collections::HashMap;
use std::sync::Arc;

/// Columns that hold whole numbers.
const INTEGERS: [&str; 2] = ["up_votes", "down_votes"];

/// Seconds by the file name of the audio clip.
pub(super) type Durations = HashMap<Box<str>, f64>;

/// A TSV's rows.
#[derive(Debug)]
pub(super) struct Table {
    /// Names of the columns, without `path`.
    pub(super) names: Vec<String>,
    pub(super) columns: Vec<ArrayRef>,
    pub(super) paths: Vec<String>,
    /// Each row's line, from 1.
    pub(super) lines: Vec<u32>,
}

/// Rows of a table with their lines.
struct Rows<'a> {
    name: &'a str,
    bytes: &'a [u8],
    reader: csv::Reader<&'a [u8]>,
    record: ByteRecord,
    fields: usize,
}

impl<'a> Rows<'a> {
    fn new(name: &'a str, bytes: &'a [u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes); // a byte-order mark
        let reader = ReaderBuilder::new()
            .delimiter(b'\t')
            .quoting(false)
            .has_headers(false)
            .flexible(true)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(bytes);
        Self { name, bytes, reader, record: ByteRecord::new(), fields: 0 }
    }

    fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::config(format!("{} line {}: {why}", self.name, self.line_number()))
    }

    /// Returns the record's line, from 1. The reader's position is from before it skipped empty lines.
    fn line_number(&self) -> u64 {
        let Some(at) = self.record.position() else { return 0 };
        let before =
            usize::try_from(at.byte()).ok().and_then(|byte| self.bytes.get(byte..)).unwrap_or_default();
        let skipped = before.iter().take_while(|&&b| b == b'\n').count();
        at.line() + skipped as u64
    }

    /// Moves to the next line that is not empty.
    fn advance(&mut self) -> Result<bool> {
        loop {
            if !self.reader.read_byte_record(&mut self.record).map_err(|e| self.bad(e))? {
                return Ok(false);
            }
            if !(self.record.len() == 1 && matches!(&self.record[0], b"" | b"\r")) {
                return Ok(true);
            }
        }
    }

    fn line(&self) -> Result<u32> {
        u32::try_from(self.line_number()).map_err(|_| self.bad("over 2^32 lines; split the table"))
    }

    fn field(&self, i: usize) -> Result<&str> {
        let field = &self.record[i];
        let field =
            if i + 1 == self.record.len() { field.strip_suffix(b"\r").unwrap_or(field) } else { field };
        std::str::from_utf8(field).map_err(|e| self.bad(format!("field {} is not UTF-8: {e}", i + 1)))
    }

    fn header(&mut self) -> Result<Vec<String>> {
        if !self.advance()? {
            return Err(Error::config(format!("{}: it is empty, without a header", self.name)));
        }
        self.fields = self.record.len();
        (0..self.fields).map(|i| Ok(self.field(i)?.trim().to_owned())).collect()
    }

    /// Moves to the next row, which must have as many fields as the header.
    fn row(&mut self) -> Result<bool> {
        if !self.advance()? {
            return Ok(false);
        }
        let fields = self.record.len();
        if fields != self.fields {
            return Err(self.bad(format!(
                "{fields} fields, where the header has {}; the table may have been cut off or edited",
                self.fields
            )));
        }
        Ok(true)
    }
}

/// A column while it is read.
enum Column {
    Text { values: StringBuilder, keep_empty: bool },
    Integers(Vec<Option<i64>>),
}

impl Column {
    fn of(name: &str) -> Self {
        match INTEGERS.contains(&name) {
            true => Self::Integers(Vec::new()),
            false => Self::Text { values: StringBuilder::new(), keep_empty: name == "sentence" },
        }
    }

    fn push(&mut self, text: &str) -> Result<(), String> {
        match self {
            Self::Text { values, keep_empty } if !text.is_empty() || *keep_empty => values.append_value(text),
            Self::Text { values, .. } => values.append_null(),
            Self::Integers(values) if text.trim().is_empty() => values.push(None),
            Self::Integers(values) => {
                let number = text.trim().parse().map_err(|_| format!("'{text}' is not a whole number"))?;
                values.push(Some(number));
            }
        }
        Ok(())
    }

    fn finish(self, name: &str) -> ArrayRef {
        match self {
            Self::Integers(values) => Arc::new(Int64Array::from(values)),
            Self::Text { mut values, .. } => {
                let texts = values.finish();
                match seconds(&texts).filter(|_| name == crate::catalog::DURATION) {
                    Some(seconds) => Arc::new(seconds),
                    None => Arc::new(texts),
                }
            }
        }
    }
}

/// Parses texts as numbers, if all of them are.
fn seconds(texts: &StringArray) -> Option<Float64Array> {
    let parse =
        |text: Option<&str>| text.map(|t| t.trim().parse::<f64>().ok()).map_or(Some(None), |n| n.map(Some));
    texts.iter().map(parse).collect::<Option<Vec<Option<f64>>>>().map(Float64Array::from)
}

/// Reads a table; `name` is its name in errors.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Table> {
    let mut rows = Rows::new(name, bytes);
    let header = rows.header()?;
    let path = header.iter().position(|c| c == "path").ok_or_else(|| {
        Error::config(format!(
            "{name}: no column path, which names the audio clips; its columns are: {}",
            header.join(", ")
        ))
    })?;
    let mut names: Vec<String> = header;
    for i in 0..names.len() {
        let name_of = match names[i].as_str() {
            "accent" => "accents".to_owned(),
            // Names that the catalog uses.
            taken @ ("split" | "audio" | crate::catalog::SAMPLE_ID) => format!("tsv_{taken}"),
            other => other.to_owned(),
        };
        if names[..i].contains(&name_of) {
            return Err(Error::config(format!("{name}: two columns {name_of} in its header; rename one")));
        }
        names[i] = name_of;
    }
    let mut columns: Vec<Column> = names.iter().map(|n| Column::of(n)).collect();
    let (mut paths, mut lines) = (Vec::new(), Vec::new());
    while rows.row()? {
        for (i, column) in columns.iter_mut().enumerate() {
            let text = rows.field(i)?;
            if i == path {
                if text.trim().is_empty() {
                    return Err(rows.bad("its path is empty: it names no audio clip"));
                }
                paths.push(text.trim().to_owned());
            } else {
                column.push(text).map_err(|why| rows.bad(format!("{}: {why}", names[i])))?;
            }
        }
        lines.push(rows.line()?);
    }
    names.remove(path);
    columns.remove(path);
    let columns = columns.into_iter().zip(&names).map(|(column, name)| column.finish(name)).collect();
    Ok(Table { names, columns, paths, lines })
}

/// Reads `clip_durations.tsv` (columns `clip` and `duration[ms]`), or the older `times.txt`.
///
/// `times.txt` is not documented: any line that ends with a number, after a tab or a space, counts as a file name and its
/// milliseconds, and other lines are counted. Returns the durations and the number of lines left out.
pub(super) fn durations(name: &str, bytes: &[u8]) -> Result<(Durations, usize)> {
    let is_tsv = name.ends_with(".tsv");
    let mut found = Durations::new();
    if !is_tsv {
        let text = String::from_utf8_lossy(bytes);
        let mut others = 0;
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let parsed = line.trim().rsplit_once(['\t', ' ']).and_then(|(clip, ms)| {
                let clip = clip.trim().trim_end_matches(':').trim_end();
                Some((clip, milliseconds(ms)?)).filter(|(clip, _)| !clip.is_empty())
            });
            match parsed {
                Some((clip, seconds)) => {
                    found.insert(file_name(clip).into(), seconds);
                }
                None => others += 1,
            }
        }
        return Ok((found, others));
    }
    let mut rows = Rows::new(name, bytes);
    let header = rows.header()?;
    let column = |is: &dyn Fn(&str) -> bool| header.iter().position(|c| is(c));
    let (Some(clip), Some(ms)) =
        (column(&|c| c == "clip"), column(&|c| c == "duration[ms]" || c == "duration"))
    else {
        return Err(Error::config(format!(
            "{name}: its columns are {}, where `clip` and `duration[ms]` are needed",
            header.join(", ")
        )));
    };
    while rows.row()? {
        let text = rows.field(ms)?;
        let seconds = milliseconds(text)
            .ok_or_else(|| rows.bad(format!("'{text}' is not a number of milliseconds")))?;
        found.insert(file_name(rows.field(clip)?).into(), seconds);
    }
    Ok((found, 0))
}

fn milliseconds(text: &str) -> Option<f64> {
    let ms = text.trim().parse::<f64>().ok()?;
    (ms.is_finite() && ms >= 0.0).then_some(ms / 1_000.0)
}

/// Returns an audio clip's name without its folder.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::Int64Type;
    use proptest::prelude::*;

    #[test]
    fn quotes_are_text_and_crlf_is_an_end_of_line() {
        let text = "client_id\tpath\tsentence\tup_votes\taccent\r\n\
                    a\tx.mp3\t\"Hello,\" she said\t2\tUS\r\n\r\nb\ty.mp3\t\t\t\r\nc\tz\t\"\t0\t\"";
        let table = parse("train.tsv", text.as_bytes()).unwrap();
        assert_eq!(table.names, ["client_id", "sentence", "up_votes", "accents"]);
        assert_eq!(table.paths, ["x.mp3", "y.mp3", "z"]);
        assert_eq!(table.lines, [2, 4, 5]);
        let sentences = table.columns[1].as_string::<i32>();
        assert_eq!(sentences.iter().collect::<Vec<_>>(), [Some("\"Hello,\" she said"), Some(""), Some("\"")]);
        let votes = table.columns[2].as_primitive::<Int64Type>();
        assert_eq!(votes.iter().collect::<Vec<_>>(), [Some(2), None, Some(0)]);
        let accents = table.columns[3].as_string::<i32>();
        assert_eq!((accents.value(0), accents.is_null(1), accents.value(2)), ("US", true, "\""));
    }

    /// Lines count from 1 whatever is empty between them, in rows and in errors.
    #[test]
    fn lines_are_right_behind_empty_lines() {
        for end in ["\n", "\r\n"] {
            let text = ["", "path\tup_votes", "", "", "a\t1", "b\t2", "", "c\t3", "", ""].join(end);
            assert_eq!(parse("x.tsv", text.as_bytes()).unwrap().lines, [5, 6, 8], "{end:?}");
            let marked = format!("\u{feff}{text}");
            assert_eq!(parse("x.tsv", marked.as_bytes()).unwrap().lines, [5, 6, 8], "{end:?}");
            for (bad, why) in
                [("d", "1 fields"), ("d\tmany", "up_votes: 'many'"), ("\t4", "its path is empty")]
            {
                let error = parse("x.tsv", format!("{text}{end}{bad}").as_bytes()).unwrap_err();
                let told = error.message();
                assert!(told.contains("x.tsv line 11: ") && told.contains(why), "{end:?} {bad:?}: {told}");
            }
        }
    }

    /// `cargo test -p feedstock-dataset a_hundred_thousand_rows -- --nocapture` prints the figure.
    #[test]
    fn a_hundred_thousand_rows_take_a_moment() {
        let mut text =
            String::from("client_id\tpath\tsentence_id\tsentence\tup_votes\tdown_votes\tage\tlocale\n");
        for i in 0..100_000 {
            let row = format!(
                "{i:0128x}\tcommon_voice_en_{i}.mp3\t{i:064x}\tThe quick brown fox said \"{i}\".\t2\t0\t\ten\n"
            );
            text.push_str(&row);
        }
        let start = std::time::Instant::now();
        let table = parse("train.tsv", text.as_bytes()).unwrap();
        println!("{} rows, {} MB: {:?}", table.lines.len(), text.len() / 1_000_000, start.elapsed());
        assert_eq!((table.lines.len(), table.lines[99_999]), (100_000, 100_001));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }

    #[test]
    fn bad_tables_name_file_and_line() {
        let refused = |text: &[u8]| parse("de/train.tsv", text).unwrap_err().message().to_owned();
        assert!(refused(b"").contains("empty"));
        assert!(refused(b"client_id\tsentence\na\tb\n").contains("no column path"));
        let short = refused(b"path\tsentence\nx.mp3\thi\ny.mp3\n");
        assert!(short.contains("de/train.tsv line 3") && short.contains("1 fields"), "{short}");
        assert!(refused(b"path\tsentence\nx.mp3\ta\tb\n").contains("3 fields"));
        assert!(refused(b"path\tup_votes\nx.mp3\tmany\n").contains("line 2: up_votes: 'many'"));
        assert!(refused(b"path\tsentence\nx.mp3\t\xff\n").contains("not UTF-8"));
        assert!(refused(b"path\tsentence\n\thi\n").contains("names no audio clip"));
        assert!(refused(b"path\tpath\n").contains("two columns path"));
    }

    #[test]
    fn durations_are_read_from_both_forms() {
        let (new, 0) =
            durations("clip_durations.tsv", b"clip\tduration[ms]\na.mp3\t1500\r\nb.mp3\t20\n").unwrap()
        else {
            panic!("a line was left out")
        };
        assert_eq!((new["a.mp3"], new["b.mp3"]), (1.5, 0.02));
        let (old, others) =
            durations("times.txt", b"clips/a.mp3\t1500\nb.mp3 20\nc.mp3: 7\ntotal\n").unwrap();
        assert_eq!((old["a.mp3"], old["b.mp3"], old["c.mp3"], others), (1.5, 0.02, 0.007, 1));
        let bad = durations("clip_durations.tsv", b"clip\tduration[ms]\na.mp3\tlong\n").unwrap_err();
        assert!(bad.message().contains("line 2"), "{bad}");
        assert!(durations("clip_durations.tsv", b"a\tb\n").is_err());
    }

    proptest! {
        /// Whatever the bytes: rows as wide as the header, or an error that names the table.
        #[test]
        fn any_bytes_are_rows_or_an_error(
            lines in proptest::collection::vec("[a-c\t\"\r. 0-9\\x00\u{e9}]{0,12}", 0..8),
            cut in 0..40usize,
        ) {
            let text = format!("client_id\tpath\tup_votes\n{}", lines.join("\n"));
            for bytes in [text.as_bytes(), &text.as_bytes()[..cut.min(text.len())]] {
                match parse("x.tsv", bytes) {
                    Ok(table) => {
                        prop_assert!(table.columns.iter().all(|c| c.len() == table.paths.len()));
                        prop_assert_eq!(table.lines.len(), table.paths.len());
                    }
                    Err(error) => prop_assert!(error.message().starts_with("x.tsv")),
                }
                for name in ["clip_durations.tsv", "times.txt"] {
                    if let Ok((found, _)) = durations(name, bytes) {
                        prop_assert!(found.values().all(|s| s.is_finite() && *s >= 0.0));
                    }
                }
            }
        }
    }
}
