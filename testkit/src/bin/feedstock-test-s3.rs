//! `feedstock-test-s3 ROOT`: serves the sub-folders of ROOT as buckets, prints its endpoint and ends with
//! its standard input.

use feedstock_testkit::S3Server;
use std::io::{self, Read, Write};

fn main() -> io::Result<()> {
    let root = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: feedstock-test-s3 ROOT"))?;
    let server = S3Server::start(root)?;
    let mut out = io::stdout();
    writeln!(out, "{}", server.endpoint())?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
