//! `feedstock-test-http [--profile NAME] [--seed N] [--requests-per-s N] FOLDER` serves the files of FOLDER over
//! HTTP/1.1. It prints its endpoint and exits at the end of its standard input.
//!
//! With a profile (`s3`, `express`, `far`), requests are as late, slow and lost as in a real store.

use feedstock_testkit::{ProfileArguments, StaticServer};
use std::io::{self, Read, Write};

const USAGE: &str =
    "usage: feedstock-test-http [--profile s3|express|far] [--seed N] [--requests-per-s N] FOLDER";

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let usage = || io::Error::other(USAGE);
    let profile =
        ProfileArguments::take(&mut arguments).map_err(|e| io::Error::other(format!("{e}\n{USAGE}")))?;
    let (Some(folder), None) = (arguments.next(), arguments.next()) else { return Err(usage()) };
    let server = match profile {
        Some(of) => StaticServer::start_profiled(folder, of.profile, of.seed)?,
        None => StaticServer::start(folder)?,
    };
    let mut out = io::stdout();
    writeln!(out, "{}", server.endpoint())?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
