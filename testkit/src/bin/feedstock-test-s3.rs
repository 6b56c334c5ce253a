//! `feedstock-test-s3 [--profile NAME] [--seed N] [--requests-per-s N] ROOT [BUCKET/PREFIX=FOLDER]…` serves the
//! sub-folders of ROOT as buckets. It prints its endpoint and exits at the end of its standard input. Each FOLDER's
//! files are first stored in the bucket under the prefix.
//!
//! With a profile (`s3`, `express`, `far`), requests are as late, slow and lost as in a real store.

use feedstock_testkit::{ProfileArguments, S3Server};
use std::io::{self, Read, Write};
use std::path::Path;

const USAGE: &str = "usage: feedstock-test-s3 [--profile s3|express|far] [--seed N] [--requests-per-s N] ROOT \
                     [BUCKET/PREFIX=FOLDER]…";

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let usage = || io::Error::other(USAGE);
    let profile =
        ProfileArguments::take(&mut arguments).map_err(|e| io::Error::other(format!("{e}\n{USAGE}")))?;
    let root = arguments.next().ok_or_else(usage)?;
    let server = match profile {
        Some(of) => S3Server::start_profiled(root, of.profile, of.seed)?,
        None => S3Server::start(root)?,
    };
    for argument in arguments {
        let (place, folder) = argument.split_once('=').ok_or_else(usage)?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        server.import(bucket, prefix, Path::new(folder))?;
    }
    let mut out = io::stdout();
    writeln!(out, "{}", server.endpoint())?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
