//! `inspect` for speech: hours, durations, speakers, languages, splits. All come from the catalog; no audio is read.

use super::cells::cells;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, count, hours};
use feedstock_dataset::Dataset;
use serde_json::{Value, json};

/// Column names of audio layouts.
const DURATION: &str = "duration";
const SPEAKER: &str = "client_id";
const LOCALE: &str = "locale";
const SPLIT: &str = "split";
/// Maximum number of bars in the histogram, and their maximum width in characters: both fit a terminal.
const MOST_BARS: f64 = 16.0;
const BAR_CHARACTERS: f64 = 40.0;
/// Possible widths of a bar in seconds. The first one is used with which all audio clips fit into the bars.
const BAR_SECONDS: [f64; 9] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

/// Statistics of a data set of audio clips.
pub(super) struct Speech {
    lengths: Option<Lengths>,
    speakers: Option<u64>,
    locales: Vec<Group>,
    splits: Vec<Group>,
}

struct Lengths {
    /// Number of audio clips whose duration is known.
    known: u64,
    seconds: f64,
    shortest_s: f64,
    longest_s: f64,
    bar_s: f64,
    /// Start of each bar in seconds, and its number of audio clips.
    bars: Vec<(f64, u64)>,
}

/// Audio clips that share a value.
struct Group {
    value: String,
    count: u64,
    seconds: f64,
}

impl Speech {
    /// Computes the statistics from the catalog.
    pub(super) fn of(dataset: &Dataset) -> Outcome<Self> {
        let table =
            Table { dataset, filter: dataset.filter_sql().map_or(String::new(), |sql| format!("({sql})")) };
        let lengths = if table.has(DURATION) { table.lengths()? } else { None };
        let speakers = match table.has(SPEAKER) {
            true => Some(table.number(&format!("select count(distinct \"{SPEAKER}\") from catalog"))?),
            false => None,
        };
        Ok(Self { lengths, speakers, locales: table.groups(LOCALE)?, splits: table.groups(SPLIT)? })
    }

    pub(super) fn json(&self) -> Value {
        let group =
            |group: &Group| json!({ "value": group.value, "count": group.count, "seconds": group.seconds });
        let groups = |groups: &[Group]| groups.iter().map(group).collect::<Vec<Value>>();
        let lengths = self.lengths.as_ref();
        let bars = lengths.map(|lengths| {
            let bar = |&(from_s, count): &(f64, u64)| {
                json!({ "from_s": from_s, "to_s": from_s + lengths.bar_s, "count": count })
            };
            lengths.bars.iter().map(bar).collect::<Vec<Value>>()
        });
        json!({
            "seconds": lengths.map(|lengths| lengths.seconds),
            "clips_of_known_length": lengths.map(|lengths| lengths.known),
            "shortest_s": lengths.map(|lengths| lengths.shortest_s),
            "longest_s": lengths.map(|lengths| lengths.longest_s),
            "mean_s": lengths.map(|lengths| lengths.seconds / lengths.known as f64),
            "histogram": bars,
            "speakers": self.speakers,
            "locales": groups(&self.locales),
            "splits": groups(&self.splits),
        })
    }

    pub(super) fn print(&self, output: &mut Output, samples: u64) -> Outcome {
        match &self.lengths {
            None => output.fact("length", "unknown: the catalog has no values in a column duration")?,
            Some(lengths) => lengths.print(output, samples)?,
        }
        if let Some(speakers) = self.speakers {
            output.fact("speakers", count(speakers))?;
        }
        for (name, groups) in [("locales", &self.locales), ("splits", &self.splits)] {
            for (place, group) in groups.iter().enumerate() {
                let length =
                    if group.seconds > 0.0 { format!(", {}", hours(group.seconds)) } else { String::new() };
                let name = if place == 0 { name } else { "" };
                output
                    .fact(name, format!("{:<12} {} audio clips{length}", group.value, count(group.count)))?;
            }
        }
        Ok(())
    }
}

impl Lengths {
    fn print(&self, output: &mut Output, samples: u64) -> Outcome {
        let mean = self.seconds / self.known as f64;
        let unknown = match samples.saturating_sub(self.known) {
            0 => String::new(),
            missing => format!("; {} audio clips of unknown length", count(missing)),
        };
        output.fact(
            "length",
            format!(
                "{} in total, mean {mean:.2} s, {:.2} to {:.2} s{unknown}",
                hours(self.seconds),
                self.shortest_s,
                self.longest_s
            ),
        )?;
        let most = self.bars.iter().map(|bar| bar.1).max().unwrap_or(1);
        for &(from_s, clips) in &self.bars {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 40")]
            let width = (BAR_CHARACTERS * clips as f64 / most as f64).ceil() as usize;
            let range = format!("{from_s:>6.1}–{:.1} s", from_s + self.bar_s);
            output.fact("", format!("{range:<16} {} {}", "█".repeat(width), count(clips)))?;
        }
        Ok(())
    }
}

/// A view of the selected samples.
struct Table<'a> {
    dataset: &'a Dataset,
    filter: String,
}

impl Table<'_> {
    fn has(&self, column: &str) -> bool {
        self.dataset.catalog().schema().column_with_name(column).is_some()
    }

    /// Returns the rows of `query`. Its `from catalog` is replaced by the selected samples, with `and …` as a further
    /// condition.
    fn rows(&self, query: &str, and: &str, rest: &str) -> Outcome<Vec<Vec<String>>> {
        let conditions: Vec<&str> =
            [self.filter.as_str(), and].into_iter().filter(|text| !text.is_empty()).collect();
        let filter = match conditions.is_empty() {
            true => String::new(),
            false => format!(" where {}", conditions.join(" and ")),
        };
        cells(&futures::executor::block_on(self.dataset.sql(&format!("{query}{filter}{rest}")))?)
    }

    fn number(&self, query: &str) -> Outcome<u64> {
        let rows = self.rows(query, "", "")?;
        parsed(rows.first().and_then(|row| row.first()))
    }

    fn lengths(&self) -> Outcome<Option<Lengths>> {
        let known = format!("\"{DURATION}\" is not null");
        let facts = format!(
            "select count(*), sum(\"{DURATION}\"), min(\"{DURATION}\"), max(\"{DURATION}\") from catalog"
        );
        let rows = self.rows(&facts, &known, "")?;
        let Some([clips, seconds, shortest, longest]) = rows.first().map(Vec::as_slice) else {
            return Err(Failure::bug("a query of durations has other than four columns"));
        };
        let known_clips: u64 = parsed(Some(clips))?;
        if known_clips == 0 {
            return Ok(None);
        }
        let longest_s: f64 = parsed(Some(longest))?;
        let fits = |bar: &&f64| longest_s / **bar < MOST_BARS;
        let bar_s = BAR_SECONDS.iter().find(fits).copied().unwrap_or(longest_s / (MOST_BARS - 1.0));
        let bars =
            format!("select cast(floor(\"{DURATION}\" / {bar_s:?}) as bigint) as bar, count(*) from catalog");
        let bars = self.rows(&bars, &known, " group by bar order by bar")?;
        let bars = bars.iter().map(|row| {
            let bar: f64 = parsed(row.first())?;
            Ok((bar * bar_s, parsed(row.get(1))?))
        });
        Ok(Some(Lengths {
            known: known_clips,
            seconds: parsed(Some(seconds))?,
            shortest_s: parsed(Some(shortest))?,
            longest_s,
            bar_s,
            bars: bars.collect::<Outcome<_>>()?,
        }))
    }

    /// Returns audio clips and seconds by a column's value, the largest group first; empty if the data set lacks the
    /// column.
    fn groups(&self, column: &str) -> Outcome<Vec<Group>> {
        if !self.has(column) {
            return Ok(Vec::new());
        }
        let seconds =
            if self.has(DURATION) { format!("coalesce(sum(\"{DURATION}\"), 0.0)") } else { "0.0".to_owned() };
        let query = format!(
            "select coalesce(\"{column}\", '') as value, count(*) as n, {seconds} as seconds from catalog"
        );
        let rows = self.rows(&query, "", " group by value order by n desc, value")?;
        let group = |row: &Vec<String>| {
            let value = row.first().cloned().unwrap_or_default();
            Ok(Group { value, count: parsed(row.get(1))?, seconds: parsed(row.get(2))? })
        };
        rows.iter().map(group).collect()
    }
}

fn parsed<T: std::str::FromStr>(text: Option<&String>) -> Outcome<T> {
    let text = text.map_or("", String::as_str);
    text.parse().map_err(|_| Failure::bug(format!("a query returned '{text}', which is not a number")))
}
