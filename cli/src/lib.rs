//! The program `feedstock`: one file for each subcommand, and shared code.
//!
//! Results go to standard output, with `--json` as JSON, one value per line. Progress and errors go to standard
//! error. An error is one sentence, and its kind determines the exit code (`failure.rs`). The Python package runs
//! [`main`] for `python -m feedstock`.
//!
//! ```
//! assert_eq!(feedstock_cli::main(["feedstock", "--version"].map(Into::into)), 0);
//! ```

mod bench;
mod bucket;
mod catalog;
mod chains;
mod common;
mod cursor;
mod doctor;
mod failure;
mod inspect;
mod log;
mod medium;
mod memory;
mod ops;
mod output;
mod plan;
mod preview;
mod progress;
mod quality;
mod shard;
mod simulate;
mod source;
mod spelling;
mod storage;
mod synth;
mod usage;
mod verdict;
mod worker;
mod workers;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use common::Common;
use failure::Failure;
use feedstock_ingest::RowExecutor;
use std::ffi::OsString;
use std::sync::Arc;

const EXAMPLES: &str = "\
Try it without any data:
  feedstock synth imagenet /tmp/images --samples 4000        # or: synth common-voice /tmp/speech
  feedstock inspect /tmp/images
  feedstock doctor /tmp/images                               # does every sample decode?
  feedstock plan /tmp/images --seed 7 --global-batch 256 --world-size 8 | head
  feedstock preview /tmp/images --out /tmp/page.html
  feedstock bench /tmp/images --ops 'decode_image,random_resized_crop:224,horizontal_flip' --batch-size 64

A URI names a folder, a file or a pattern: /data/imagenet, s3://bucket/train, 's3://bucket/train-{000..099}.tar',
gs://…, az://…, https://…/train.parquet. feedstock detects the layout; --layout overrides it.

Exit codes: 0 done · 1 defect in feedstock · 2 wrong option, filter or data set · 3 access denied · 4 object missing or
changed · 5 unusable sample · 6 storage failed; a retry may succeed";

/// Streams training data from object storage, decoded and augmented, in an order that is a pure function of (data
/// set, seed, epoch).
#[derive(Parser)]
#[command(name = "feedstock", version, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum Command {
    Synth(synth::Command),
    Inspect(inspect::Command),
    Catalog(catalog::Command),
    Doctor(doctor::Command),
    Cursor(cursor::Command),
    Plan(plan::Command),
    Ops(ops::Command),
    Simulate(Box<simulate::Command>),
    Bench(Box<bench::Command>),
    Preview(preview::Command),
    Shard(shard::Command),
    Worker(worker::Command),
}

/// Makes what runs Python functions for `feedstock worker --allow-code`, given the bytes of memory that each of its processes may
/// take.
pub type CodeRunner = fn(u64) -> Arc<dyn RowExecutor>;

/// Runs the subcommand that `arguments` name, prints its error if there is one, and returns the exit code.
///
/// The first argument is the program's name. `--help` lists the exit codes.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    main_with(arguments, None)
}

/// As [`main`], in a program that has an interpreter.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>, code: Option<CodeRunner>) -> u8 {
    let mut described = Cli::command();
    let parsed = described.try_get_matches_from_mut(arguments);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches).map(|cli| (cli, matches)));
    let (Cli { command, common }, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let printed = error.print();
            return if error.use_stderr() || printed.is_err() { failure::BAD_CONFIG } else { 0 };
        }
    };
    match &command {
        Command::Worker(_) => log::of_server(),
        _ => log::warnings(),
    }
    let done = match &command {
        Command::Synth(command) => command.run(&common),
        Command::Inspect(command) => command.run(&common),
        Command::Catalog(command) => command.run(&common),
        Command::Doctor(command) => command.run(&common),
        Command::Cursor(command) => command.run(&common),
        Command::Plan(command) => command.run(&common),
        Command::Ops(command) => command.run(common.json),
        Command::Simulate(command) => command.run(&common),
        Command::Bench(command) => command.run(&common),
        Command::Preview(command) => command.run(&common),
        Command::Shard(command) => command.run(&common),
        Command::Worker(command) => command.run(&common, code),
    };
    match done {
        Ok(()) => 0,
        Err(Failure::ReaderLeft) => 0, // `feedstock plan … | head`
        Err(Failure::Told { code, message }) => {
            output::complain(&spelling::with_flags(&message, &mut described, &matches));
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Cli::command().debug_assert();
    }

    /// `--help` is for people: every subcommand has examples, and every option has a description.
    #[test]
    fn every_option_is_explained_and_every_subcommand_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let (name, leaf) = (command.get_name(), command.get_subcommands().next().unwrap_or(command));
            let help = leaf.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("feedstock {name}")), "{name} has no example");
            for option in leaf.get_arguments() {
                assert!(option.get_help().is_some(), "{name}: {} is not explained", option.get_id());
            }
        }
    }
}
