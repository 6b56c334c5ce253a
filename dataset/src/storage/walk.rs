//! Walks through folders of this machine: several threads, in bytewise order, with visible progress.
//!
//! A network file system answers a `stat` in about a millisecond, so one thread finds 1,000 files a second. A walk of all
//! files therefore has up to [`WALKERS`] threads, which take folders and runs of names from one queue. Whether a link leads to
//! a folder is checked when its turn comes. A walk of the first few files has one thread, because it must not read the others.

use super::failure::Fault;
use super::local::{Found, found};
use super::walk_step::{Above, There, Watch, below, enter, read};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of one walk: they wait for the file system, so their number does not follow the CPUs.
pub(crate) const WALKERS: usize = 8;
/// Names that one thread checks in a row.
const RUN_NAMES: usize = 256;

/// Lists the files below `root`, or `root` itself if it is one; at most `limit`, in bytewise order of their paths.
pub(crate) fn list(root: &str, limit: usize, watch: &Watch) -> Result<Vec<Found>, Fault> {
    let meta = fs::metadata(root)?;
    if !meta.is_dir() {
        return Ok(if root.ends_with('/') { Vec::new() } else { vec![found(root.to_owned(), &meta)] });
    }
    let base = root.trim_end_matches('/');
    let base = if base.is_empty() { "/" } else { base };
    if limit == usize::MAX {
        return all(base, watch);
    }
    let mut out = Vec::new();
    first(base, limit, None, watch, &mut out)?;
    Ok(out)
}

/// Walks depth first and sorts each folder as if its subfolders' names ended with `/`, which makes the whole sorted. A link to
/// a folder is recognised when its turn comes, and gets another turn as a folder.
fn first(
    folder: &str,
    limit: usize,
    above: Option<Arc<Above>>,
    watch: &Watch,
    out: &mut Vec<Found>,
) -> Result<(), Fault> {
    let here = enter(folder, above)?;
    let mut names = BinaryHeap::new();
    read(folder, watch, |name, is_folder| names.push(Reverse(if is_folder { name + "/" } else { name })))?;
    while out.len() < limit
        && let Some(Reverse(name)) = names.pop()
    {
        if let Some(name) = name.strip_suffix('/') {
            first(&below(folder, name), limit, Some(Arc::clone(&here)), watch, out)?;
            continue;
        }
        match watch.look(below(folder, &name))? {
            There::File(file) => out.push(file),
            There::Folder => names.push(Reverse(name + "/")),
            There::Nothing => {}
        }
    }
    Ok(())
}

/// What one thread does at a time.
enum Work {
    Folder(String, Option<Arc<Above>>),
    /// Files and links of one folder.
    Names(Vec<String>, Arc<Above>),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    /// Work that is queued or being done.
    pending: usize,
    out: Vec<Found>,
    failed: Option<Fault>,
}

#[derive(Default)]
struct Walk {
    state: Mutex<State>,
    changed: Condvar,
}

/// Lists all files with up to [`WALKERS`] threads.
fn all(folder: &str, watch: &Watch) -> Result<Vec<Found>, Fault> {
    let walk = Walk::default();
    walk.add(Work::Folder(folder.to_owned(), None));
    std::thread::scope(|scope| {
        let mut walkers = 1;
        while let Some(work) = walk.next() {
            walk.take(work, watch);
            // Small folders need no other thread.
            while walkers < WALKERS && walk.queued() >= walkers {
                let name = std::thread::Builder::new().name("feedstock-walk".into());
                let walker = || {
                    while let Some(work) = walk.next() {
                        walk.take(work, watch);
                    }
                };
                match name.spawn_scoped(scope, walker) {
                    Ok(_) => walkers += 1,
                    Err(_) => break, // the system has no thread left: the running ones do the work
                }
            }
        }
    });
    let state = walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(fault) = state.failed {
        return Err(fault);
    }
    let mut out = state.out;
    out.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

impl Walk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // a walker that panics ends the walk
    }

    fn add(&self, work: Work) {
        let mut state = self.lock();
        state.queue.push_back(work);
        state.pending += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Does one item of work.
    fn take(&self, work: Work, watch: &Watch) {
        let unfinished = Unfinished(self);
        let result = self.step(work, watch);
        std::mem::forget(unfinished);
        self.done(result);
    }

    fn queued(&self) -> usize {
        self.lock().queue.len()
    }

    /// Waits for work; `None` if there will be none.
    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() || state.pending == 0 {
                return None;
            }
            if let Some(work) = state.queue.pop_front() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records that one item of work is done.
    fn done(&self, result: Result<Vec<Found>, Fault>) {
        let mut state = self.lock();
        assert!(state.pending > 0, "work was done twice");
        state.pending -= 1;
        match result {
            Ok(found) => state.out.extend(found),
            Err(fault) => {
                state.failed.get_or_insert(fault);
            }
        }
        let is_over = state.pending == 0 || state.failed.is_some();
        drop(state);
        if is_over {
            self.changed.notify_all();
        }
    }

    fn step(&self, work: Work, watch: &Watch) -> Result<Vec<Found>, Fault> {
        match work {
            Work::Names(paths, here) => self.look(paths, &here, watch),
            Work::Folder(folder, above) => {
                let here = enter(&folder, above)?;
                let mut paths = Vec::new();
                read(&folder, watch, |name, is_folder| {
                    let path = below(&folder, &name);
                    if is_folder {
                        self.add(Work::Folder(path, Some(Arc::clone(&here))));
                        return;
                    }
                    paths.push(path);
                    if paths.len() == RUN_NAMES {
                        self.add(Work::Names(std::mem::take(&mut paths), Arc::clone(&here)));
                    }
                })?;
                self.look(paths, &here, watch)
            }
        }
    }

    fn look(&self, paths: Vec<String>, here: &Arc<Above>, watch: &Watch) -> Result<Vec<Found>, Fault> {
        let mut files = Vec::new();
        for path in paths {
            match watch.look(path.clone())? {
                There::File(file) => files.push(file),
                There::Folder => self.add(Work::Folder(path, Some(Arc::clone(here)))), // the target of a link
                There::Nothing => {}
            }
        }
        Ok(files)
    }
}

/// Ends the walk if its walker panics; otherwise the others would wait for its work for ever.
struct Unfinished<'a>(&'a Walk);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.done(Err(Fault::Refused("a thread of the walk panicked".into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limiter::Limiter;
    use super::super::local::write;
    use super::super::progress::Progress;
    use super::super::retry::{Shared, until_done};
    use super::super::secret::Cleaner;
    use super::super::seen::Seen;
    use super::super::walk_step::StatFn;
    use super::*;
    use std::fs::Metadata;
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    fn watch(stat: StatFn) -> Watch {
        Watch {
            progress: Arc::new(Progress::files()),
            seen: Seen::new("x", None),
            is_abandoned: Arc::default(),
            stat,
        }
    }

    fn listed(root: &str, limit: usize) -> Result<Vec<Found>, Fault> {
        list(root, limit, &watch(|path| fs::metadata(path)))
    }

    fn names(root: &str, limit: usize) -> Vec<String> {
        listed(root, limit).unwrap().into_iter().map(|f| f.path[root.len()..].to_owned()).collect()
    }

    #[test]
    fn odd_names_are_listed_in_bytewise_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let mut all = ["/a/x", "/a-b", "/a.b/#1%20 ü", "/a#1", "/b", "/a/y z", "/~", "/A"].map(String::from);
        for name in &all {
            write(&format!("{root}{name}"), name.as_bytes()).unwrap();
        }
        all.sort_unstable();
        assert_eq!(names(root, usize::MAX), all);
        assert_eq!(names(root, 1_000), all);
        assert_eq!(names(root, 3), all[..3]);
    }

    #[test]
    fn a_half_written_file_is_never_listed_and_a_link_loop_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        fs::write(dir.path().join(".x.feedstock-tmp-1-2"), b"half").unwrap();
        assert!(names(root, usize::MAX).is_empty());
        fs::create_dir(dir.path().join("below")).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("below/up")).unwrap();
        for limit in [10, usize::MAX] {
            assert!(matches!(listed(root, limit), Err(Fault::Refused(_))));
        }
    }

    /// The denied access is simulated: root may read every file.
    #[test]
    fn the_path_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.path().join("closed")).unwrap();
        let denied: StatFn = |_| Err(io::ErrorKind::PermissionDenied.into());
        for limit in [10, usize::MAX] {
            match list(dir.path().to_str().unwrap(), limit, &watch(denied)) {
                Err(Fault::Io(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                    assert!(error.to_string().contains("/closed: "), "{error}");
                }
                _ => panic!("a file without access was listed"),
            }
        }
    }

    static AT_ONCE: AtomicUsize = AtomicUsize::new(0);
    static PEAK: AtomicUsize = AtomicUsize::new(0);

    fn slow(path: &str) -> io::Result<Metadata> {
        PEAK.fetch_max(AT_ONCE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        AT_ONCE.fetch_sub(1, Ordering::SeqCst);
        fs::metadata(path)
    }

    /// In sequence, the files take at least 6 s; the deadline is 0.6 s.
    #[tokio::test]
    async fn a_walk_that_makes_progress_outlasts_its_deadline_and_has_several_threads() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..2_000 {
            if i % 500 == 0 {
                fs::create_dir(dir.path().join(format!("{}", i / 500))).unwrap();
            }
            fs::write(dir.path().join(format!("{}/{i:04}", i / 500)), b"").unwrap();
        }
        let root = dir.path().to_str().unwrap().to_owned();
        let shared = Shared::new(Duration::from_millis(600), Duration::from_secs(20), Cleaner::default());
        let watch = watch(slow);
        let began = std::time::Instant::now();
        let found = until_done(&shared, &Limiter::new(1, 1, Duration::ZERO), &watch.progress, |_| {
            let (root, watch) = (root.clone(), watch.clone());
            super::super::fetch::blocking(move || list(&root, usize::MAX, &watch))
        })
        .await
        .unwrap();
        let took = began.elapsed();
        assert_eq!((found.len(), watch.progress.done()), (2_000, 2_004));
        assert!(found.is_sorted_by(|a, b| a.path < b.path));
        let peak = PEAK.load(Ordering::SeqCst);
        assert!((2..=WALKERS).contains(&peak), "{peak} threads");
        assert!(
            took > Duration::from_millis(600),
            "{took:?}: this does not prove that the walk outlasts the deadline"
        );
    }

    #[test]
    fn an_abandoned_walk_stops() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..10 {
            fs::create_dir(dir.path().join(i.to_string())).unwrap(); // no file is ever read
        }
        for limit in [10, usize::MAX] {
            let watch = watch(|path| fs::metadata(path));
            watch.is_abandoned.store(true, Ordering::Relaxed);
            assert!(list(dir.path().to_str().unwrap(), limit, &watch).is_err());
            assert_eq!(watch.progress.done(), 1, "the first name ends it");
        }
    }

    /// So that a folder that takes minutes to read shows progress.
    #[test]
    fn names_count_when_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..500 {
            fs::write(dir.path().join(i.to_string()), b"").unwrap();
        }
        let watch = watch(|path| fs::metadata(path));
        assert_eq!(list(dir.path().to_str().unwrap(), 1, &watch).unwrap().len(), 1);
        assert_eq!(watch.progress.done(), 500);
    }

    static LINKS_AT_ONCE: AtomicUsize = AtomicUsize::new(0);
    static LINKS_PEAK: AtomicUsize = AtomicUsize::new(0);

    fn slow_link(path: &str) -> io::Result<Metadata> {
        LINKS_PEAK.fetch_max(LINKS_AT_ONCE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        LINKS_AT_ONCE.fetch_sub(1, Ordering::SeqCst);
        fs::metadata(path)
    }

    #[test]
    fn links_are_looked_at_by_several_threads_and_lead_to_folders_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (data, links) = (dir.path().join("data"), dir.path().join("links"));
        fs::create_dir_all(data.join("folder")).unwrap();
        fs::create_dir(&links).unwrap();
        for name in ["x", "folder/y", "folder/z"] {
            fs::write(data.join(name), b"1").unwrap();
        }
        let link =
            |to: &str, name: &str| std::os::unix::fs::symlink(data.join(to), links.join(name)).unwrap();
        for i in 0..1_000 {
            link("x", &format!("f{i:04}"));
        }
        link("folder", "a");
        link("x", "a-b");
        link("x", "a.b");
        link("nowhere", "b");
        let root = links.to_str().unwrap();
        let mut expected = ["/a-b", "/a.b", "/a/y", "/a/z"].map(String::from).to_vec();
        expected.extend((0..1_000).map(|i| format!("/f{i:04}")));
        let found = list(root, usize::MAX, &watch(slow_link)).unwrap();
        let found: Vec<_> = found.into_iter().map(|file| file.path[root.len()..].to_owned()).collect();
        assert_eq!(found, expected);
        assert!(LINKS_PEAK.load(Ordering::SeqCst) >= 2, "one thread checked all links");
        assert_eq!(names(root, 1_010), expected);
        assert_eq!(names(root, 3), expected[..3]);
    }

    fn panics_once(path: &str) -> io::Result<Metadata> {
        static ONCE: AtomicBool = AtomicBool::new(false);
        std::thread::sleep(Duration::from_millis(1));
        assert!(ONCE.swap(true, Ordering::SeqCst), "a walker panics");
        fs::metadata(path)
    }

    #[test]
    fn a_walker_that_panics_does_not_hang_the_others() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..8 {
            fs::create_dir(dir.path().join(i.to_string())).unwrap();
            for j in 0..300 {
                fs::write(dir.path().join(format!("{i}/{j}")), b"").unwrap();
            }
        }
        let root = dir.path().to_str().unwrap().to_owned();
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let walked = std::panic::catch_unwind(|| list(&root, usize::MAX, &watch(panics_once)).is_ok());
            let _ = send.send(walked.unwrap_or(false));
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(false), "it ended with an error");
    }
}
