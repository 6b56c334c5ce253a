//! `feedstock cursor`: explains a saved state, and checks whether it fits a data set.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, count};
use super::source::OpenArgs;
use clap::Args;
use feedstock_dataset::{Cursor, Dataset, Fingerprint, Plan, Shuffle, ShuffleKind, StepSize};
use futures::executor::block_on;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  feedstock cursor state.json                      # show what was saved: epoch, position, order
  feedstock cursor state.json /data/imagenet       # check that it fits this copy of the data
  feedstock cursor state.json s3://bucket/train --filter 'label < 100' --json

FILE holds a loader's state as JSON: the value of state_dict() (json.dump(loader.state_dict(), file)), or only the cursor
in it. --rename, --join, --with-column, --filter, --skip and --take must be as they were when the state was saved. The state of a mix is explained, but
fits no single URI. Exit codes: 0 it fits, or no URI was given · 2 it does not fit, or FILE is not a state.";

/// Explain a saved state, and check whether it fits a data set.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    /// The file with the state, as JSON.
    file: PathBuf,
    /// The data set to check the state against: a folder, a file or a pattern.
    uri: Option<String>,
    #[command(flatten)]
    how: OpenArgs,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let cursor = read(&self.file)?;
        let dataset = self.uri.as_ref().map(|uri| self.how.open(uri, common, false)).transpose()?;
        let fit = dataset.as_ref().map(|dataset| Fit::of(dataset, &cursor)).transpose()?;
        let mut output = Output::new();
        match common.json {
            true => output.json(&as_json(&cursor, fit.as_ref())?)?,
            false => print(&mut output, &cursor, fit.as_ref())?,
        }
        output.end()?;
        match fit.and_then(|fit| fit.differs) {
            Some(differs) => Err(Failure::config(differs)),
            None => Ok(()),
        }
    }
}

/// Reads the cursor from a state of `state_dict`, or from a file that holds only the cursor.
fn read(path: &Path) -> Outcome<Cursor> {
    let named = |why: String| Failure::config(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| named(format!("cannot be read: {e}")))?;
    let no_state = |e: serde_json::Error| {
        named(format!(
            "not a state of a feedstock loader ({e}); write one with json.dump(loader.state_dict(), file)"
        ))
    };
    let state: Value = serde_json::from_str(&text).map_err(no_state)?;
    match state.get("cursor").and_then(Value::as_str) {
        Some(cursor) => serde_json::from_str(cursor).map_err(no_state),
        None => serde_json::from_value(state).map_err(no_state),
    }
}

/// Whether a cursor fits a data set.
struct Fit {
    samples: u64,
    /// Why it does not fit.
    differs: Option<String>,
}

impl Fit {
    fn of(dataset: &Dataset, cursor: &Cursor) -> Outcome<Self> {
        let plan = plan(dataset, &cursor.fingerprint)?;
        let bare = Cursor { carried: Vec::new(), ..cursor.clone() }; // data sets that the epoch began with are not checked
        let differs = plan.check(&bare).err().map(|error| {
            let changes = (!plan.is_of_same_data(cursor))
                .then(|| block_on(dataset.changes_since(&cursor.fingerprint)))
                .flatten();
            changes.map_or_else(|| error.to_string(), |changes| format!("{error} ({changes})"))
        });
        Ok(Self { samples: plan.len(), differs })
    }
}

/// Returns the plan over this data set with the order of the fingerprint.
fn plan(dataset: &Dataset, print: &Fingerprint) -> Outcome<Plan> {
    let shuffle = match print.shuffle {
        ShuffleKind::None => Shuffle::none().lanes(print.lanes),
        ShuffleKind::Window | ShuffleKind::Full => Shuffle::seeded(print.seed).as_saved(print),
    };
    let plan = dataset.plan(&shuffle)?;
    let Some(bucketing) = &print.bucketing else { return Ok(plan) };
    let lengths = block_on(dataset.lengths(&bucketing.column))?;
    Ok(plan.bucketed(&lengths, Some(bucketing.window), bucketing.group)?)
}

fn as_json(cursor: &Cursor, fit: Option<&Fit>) -> Outcome<Value> {
    let bug = |e| Failure::bug(format!("a cursor cannot be written as JSON: {e}"));
    let mut value = json!({ "cursor": serde_json::to_value(cursor).map_err(bug)? });
    if let Some(fit) = fit {
        value["samples"] = json!(fit.samples);
        value["fits"] = json!(fit.differs.is_none());
        value["differs"] = json!(fit.differs);
    }
    Ok(value)
}

fn print(output: &mut Output, cursor: &Cursor, fit: Option<&Fit>) -> Outcome {
    let print = &cursor.fingerprint;
    output.fact("epoch", count(cursor.epoch))?;
    let position = count(cursor.position.0);
    output.fact(
        "position",
        match fit {
            Some(fit) if fit.differs.is_none() => format!("{position} of {} samples", count(fit.samples)),
            _ => format!("{position} samples of the epoch were delivered before it"),
        },
    )?;
    for begun in &cursor.carried {
        output.fact(
            "began with",
            format!(
                "identity {:016x}, up to position {}; then the data changed, and the remaining samples followed",
                begun.fingerprint.catalog,
                count(begun.position.0)
            ),
        )?;
    }
    let identity = format!("{:016x}", print.catalog);
    match print.blocks {
        Some(blocks) => output.fact("data set", format!("identity {identity}, blocks {blocks:016x}"))?,
        None => output.fact("data set", format!("{identity}, saved by a release before 0.2"))?,
    }
    if let Some(steps) = &print.selection {
        output.fact("selection", steps)?;
    }
    if print.filter != 0 {
        output.fact("filter", format!("{:016x}", print.filter))?;
    }
    let order = print.describe_shuffle();
    output.fact("order", format!("{order}, seed {} (plan version {})", print.seed, print.version))?;
    if let Some(bucketing) = &print.bucketing {
        let group = match bucketing.group {
            StepSize::Rows(rows) => format!("{} rows", count(rows)),
            StepSize::Total { total, .. } => format!("a total of {total}"),
        };
        let (column, window) = (&bucketing.column, count(bucketing.window));
        output.fact(
            "bucketing",
            format!("by {column}, groups of {group}, macro-windows of {window} samples"),
        )?;
    }
    if let Some(mixing) = &print.mixing {
        output.fact("mix", format!("of {} data sets, quotas {:?}", mixing.quotas.len(), mixing.quotas))?;
    }
    if let Some(ops) = cursor.ops {
        output.fact("ops", format!("{ops:016x}"))?;
    }
    if fit.is_some_and(|fit| fit.differs.is_none()) {
        output.fact("fits", "yes: a loader of this data set resumes at this position")?;
    }
    Ok(())
}
