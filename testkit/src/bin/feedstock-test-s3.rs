//! `feedstock-test-s3 ROOT [BUCKET/PREFIX=FOLDER]…` serves the sub-folders of ROOT as buckets. It prints its endpoint
//! and exits at the end of its standard input. Each FOLDER's files are first stored in the bucket under the prefix.

use feedstock_testkit::S3Server;
use std::io::{self, Read, Write};
use std::path::Path;

const USAGE: &str = "usage: feedstock-test-s3 ROOT [BUCKET/PREFIX=FOLDER]…";

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().ok_or_else(|| io::Error::other(USAGE))?;
    let server = S3Server::start(root)?;
    for argument in arguments {
        let (place, folder) = argument.split_once('=').ok_or_else(|| io::Error::other(USAGE))?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        server.import(bucket, prefix, Path::new(folder))?;
    }
    let mut out = io::stdout();
    writeln!(out, "{}", server.endpoint())?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
