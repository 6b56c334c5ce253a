//! Machine nodes. Page-locked memory belongs on the node that the GPU is attached to, or every copy crosses the machine.
//!
//! The allocating thread moves to a CPU of that node meanwhile, since the system takes a page from the node of the CPU that
//! first requests it. A memory policy would be more direct, but containers commonly forbid it.

/// A node, by its CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) cpus: Vec<usize>,
}

/// Restores the thread's previous CPUs when dropped.
#[cfg(target_os = "linux")]
pub(crate) struct OnNode(libc::cpu_set_t);

/// Moves this thread to the node until the guard is dropped. Returns `None` if the thread may not run there.
#[cfg(target_os = "linux")]
pub(crate) fn run_on(node: &Node) -> Option<OnNode> {
    // SAFETY: sets of CPUs are plain bits, made and read by the system's macros. 0 is this thread.
    unsafe {
        let size = size_of::<libc::cpu_set_t>();
        let (mut before, mut chosen): (libc::cpu_set_t, libc::cpu_set_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        if libc::sched_getaffinity(0, size, &raw mut before) != 0 {
            return None;
        }
        let most = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        let allowed = node.cpus.iter().filter(|cpu| **cpu < most && libc::CPU_ISSET(**cpu, &before));
        allowed.for_each(|cpu| libc::CPU_SET(*cpu, &mut chosen));
        let moved = libc::CPU_COUNT(&chosen) > 0 && libc::sched_setaffinity(0, size, &raw const chosen) == 0;
        moved.then_some(OnNode(before))
    }
}

#[cfg(target_os = "linux")]
impl Drop for OnNode {
    fn drop(&mut self) {
        // SAFETY: as above. A thread that cannot move back stays on the node, which does no harm.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

/// On other systems, the system chooses the node.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run_on(_: &Node) -> Option<()> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_thread_moves_and_goes_back() {
        let cpus = || {
            // SAFETY: as in `run_on`.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
                (0..1024).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect::<Vec<usize>>()
            }
        };
        let before = cpus();
        let guard = run_on(&Node { cpus: vec![before[0]] });
        assert_eq!(cpus(), [before[0]]);
        drop(guard);
        assert_eq!(cpus(), before);
        assert!(run_on(&Node { cpus: vec![1_000_000] }).is_none());
    }
}
