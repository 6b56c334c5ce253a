//! Machine nodes: page-locked memory belongs on the node that the GPU hangs on, or every copy crosses the machine.
//!
//! The thread that allocates moves to a CPU of that node meanwhile, since the system takes a page from the node of the CPU
//! that first asks for it. A memory policy would say it more directly, but containers commonly forbid setting one.

use std::path::Path;

/// A node, by its CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    cpus: Vec<usize>,
}

/// The node of the PCI device with this bus id (`0000:3b:00.0`); `None` where the machine has but one, or does not say.
pub(crate) fn of_pci_device(bus_id: &str) -> Option<Node> {
    let system = Path::new("/sys");
    let device = system.join("bus/pci/devices").join(bus_id.to_ascii_lowercase());
    let number: u32 = std::fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()?; // −1: unknown
    let list = system.join(format!("devices/system/node/node{number}/cpulist"));
    let cpus = parse_cpus(std::fs::read_to_string(list).ok()?.trim())?;
    (!cpus.is_empty()).then_some(Node { cpus })
}

/// `0-3,8,10-11` as numbers.
fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

/// The thread's CPUs as they were, to go back to.
#[cfg(target_os = "linux")]
pub(crate) struct OnNode(libc::cpu_set_t);

/// Moves this thread to the node until the guard is dropped; `None` where it may not run there.
#[cfg(target_os = "linux")]
pub(crate) fn run_on(node: &Node) -> Option<OnNode> {
    // SAFETY: sets of CPUs are plain bits, made and read by the system's own macros; 0 is this thread.
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
        // SAFETY: as above. A thread that cannot go back stays on the node, which is no harm.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

/// Elsewhere memory comes from wherever the system takes it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run_on(_: &Node) -> Option<()> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_cpus("0-3,8,10-11").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpus("").unwrap(), [0usize; 0]);
        assert_eq!(parse_cpus("0-x"), None);
        assert_eq!(of_pci_device("ffff:ff:1f.7"), None);
    }

    #[cfg(target_os = "linux")]
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
