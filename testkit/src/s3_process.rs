//! The same S3 server as a process of its own, so that its CPU time can be told from feedstock's.

use crate::S3Server;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "feedstock-test-s3";

/// A running `feedstock-test-s3`; dropping it ends the process.
pub struct S3Process {
    child: Child,
    endpoint: String,
}

impl S3Process {
    /// Starts the program beside the running one (`target/debug`), building it first when it is not there.
    ///
    /// # Errors
    /// When it can neither be found nor built, or does not start.
    pub fn start(root: &Path) -> io::Result<Self> {
        let mut child = Command::new(program()?)
            .arg(root)
            .stdin(Stdio::piped()) // its end tells the child that we are gone
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        let mut endpoint = String::new();
        BufReader::new(stdout).read_line(&mut endpoint)?;
        let endpoint = endpoint.trim().to_owned();
        if endpoint.is_empty() {
            return Err(io::Error::other(format!("{PROGRAM} ended at once: {}", child.wait()?)));
        }
        Ok(Self { child, endpoint })
    }

    /// `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The options, by object_store's names, that reach this server with the right key.
    pub fn config(&self) -> Vec<(String, String)> {
        S3Server::config_at(&self.endpoint)
    }

    /// The process's id, for those who read its CPU time.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for S3Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

fn program() -> io::Result<PathBuf> {
    let me = std::env::current_exe()?;
    // target/debug/deps/test-1234, target/debug/examples/x or target/debug/feedstock
    let mut folders =
        me.ancestors().skip(1).skip_while(|dir| dir.ends_with("deps") || dir.ends_with("examples"));
    let (Some(profile), Some(target)) = (folders.next(), folders.next()) else {
        return Err(io::Error::other(format!("{} lies in no target folder", me.display())));
    };
    let program = profile.join(PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "feedstock-testkit", "--bin", PROGRAM, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    match program.is_file() {
        true => Ok(program),
        false => Err(io::Error::other(format!("{PROGRAM} is not beside {} ({built})", me.display()))),
    }
}
