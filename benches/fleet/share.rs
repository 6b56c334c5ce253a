//! Shares of the CPU: a control group for this process, and one with a quota for each worker.
//!
//! Version 1 has a hierarchy for the CPU (`cpu.cfs_quota_us`, `cpu.shares`), version 2 one for everything (`cpu.max`,
//! `cpu.weight`). In version 2 only leaves may contain processes, so this process is in a separate leaf.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The shortest period of quotas: far shorter than a batch takes.
const PERIOD_US: f64 = 10_000.0;

/// The kernel takes no shorter quota.
const LEAST_QUOTA_US: f64 = 1_000.0;

/// Weights with which this process has precedence over all other work of the machine.
const PRECEDENCE_V1: &str = "262144"; // the maximum; 1024 is usual
const PRECEDENCE_V2: &str = "10000"; // the maximum; 100 is usual

/// Wait between attempts to remove a group: the kernel takes a moment after its processes have ended.
const REMOVAL: Duration = Duration::from_millis(10);
const REMOVAL_TRIES: usize = 200;

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V1,
    V2,
}

/// The group of this process and its workers. Dropping it moves this process back.
pub(super) struct Group {
    version: Version,
    root: PathBuf,
    own: Share,
    all: Share,
}

/// One group. Dropping it removes it.
pub(super) struct Share(PathBuf);

impl Group {
    /// Moves this process into a new group below the root.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let (root, version) = hierarchy()?;
        let all = Share::make(root.join(name))?;
        match version {
            Version::V1 => write(&all.0.join("cpu.shares"), PRECEDENCE_V1)?,
            Version::V2 => {
                write(&root.join("cgroup.subtree_control"), "+cpu")?;
                write(&all.0.join("cpu.weight"), PRECEDENCE_V2)?;
                write(&all.0.join("cgroup.subtree_control"), "+cpu")?;
            }
        }
        let own = Share::make(all.0.join("rank"))?;
        own.adopt(std::process::id())?;
        let group = Self { version, root, own, all };
        group.share("trial", 0.5)?; // fails now rather than in the middle of a run
        Ok(group)
    }

    /// Creates a group whose processes together may use this number of cores.
    pub(super) fn share(&self, name: &str, cores: f64) -> Result<Share, String> {
        let share = Share::make(self.all.0.join(name))?;
        let period_us = PERIOD_US.max(LEAST_QUOTA_US / cores).round();
        let quota_us = (period_us * cores).round();
        match self.version {
            Version::V1 => {
                write(&share.0.join("cpu.cfs_period_us"), &period_us.to_string())?;
                write(&share.0.join("cpu.cfs_quota_us"), &quota_us.to_string())?;
            }
            Version::V2 => write(&share.0.join("cpu.max"), &format!("{quota_us} {period_us}"))?,
        }
        Ok(share)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group with processes cannot be removed. Where this process ends does not matter.
        let _left = write(&self.root.join("cgroup.procs"), &std::process::id().to_string());
        self.own.remove();
        self.all.remove();
    }
}

impl Share {
    fn make(folder: PathBuf) -> Result<Self, String> {
        fs::create_dir(&folder).map_err(|e| said(&folder, &e))?;
        Ok(Self(folder))
    }

    /// Limits a process, with all of its threads, to this share.
    pub(super) fn adopt(&self, process: u32) -> Result<(), String> {
        write(&self.0.join("cgroup.procs"), &process.to_string())
    }

    fn remove(&self) {
        for _ in 0..REMOVAL_TRIES {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(REMOVAL),
                _ => return,
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.remove();
    }
}

fn hierarchy() -> Result<(PathBuf, Version), String> {
    let v1 = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].map(PathBuf::from);
    if let Some(root) = v1.into_iter().find(|root| root.join("cpu.cfs_quota_us").exists()) {
        return Ok((root, Version::V1));
    }
    let root = PathBuf::from("/sys/fs/cgroup");
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    match controllers.split_whitespace().any(|controller| controller == "cpu") {
        true => Ok((root, Version::V2)),
        false => Err("no cgroup hierarchy for the CPU is mounted below /sys/fs/cgroup".to_owned()),
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| said(file, &e))
}

fn said(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}; run it as root, where cgroups may be written", path.display())
}
