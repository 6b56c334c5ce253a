//! The same S3 server in a separate process, so that its CPU time is not counted as feedstock's.

use crate::S3Server;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "feedstock-test-s3";

/// A running `feedstock-test-s3`. Dropping it ends the process.
pub struct S3Process {
    child: Child,
    endpoint: String,
}

impl S3Process {
    /// Starts the program next to the running one (`target/debug`), and builds it first if it does not exist.
    ///
    /// # Errors
    /// If it can neither be found nor built, or does not start.
    pub fn start(root: &Path) -> io::Result<Self> {
        Self::start_with(root, &[])
    }

    /// As [`start`](Self::start), with options before the folder, such as `--profile`, `s3`.
    pub fn start_with(root: &Path, options: &[&str]) -> io::Result<Self> {
        let mut child = Command::new(program()?)
            .args(options)
            .arg(root)
            .stdin(Stdio::piped()) // its end signals the child that this process has ended
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

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the options, under object_store's names, to connect to this server with the right key.
    pub fn config(&self) -> Vec<(String, String)> {
        S3Server::config_at(&self.endpoint)
    }

    /// Returns the process's id, for reading its CPU time.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for S3Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

fn program() -> io::Result<PathBuf> {
    let me = std::env::current_exe()?;
    // target/debug/deps/test-1234, target/debug/examples/x or target/debug/feedstock
    let mut folders =
        me.ancestors().skip(1).skip_while(|dir| dir.ends_with("deps") || dir.ends_with("examples"));
    let (Some(profile), Some(target)) = (folders.next(), folders.next()) else {
        return Err(io::Error::other(format!("{} is not in a target folder", me.display())));
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
        false => Err(io::Error::other(format!("{PROGRAM} is not next to {} ({built})", me.display()))),
    }
}
