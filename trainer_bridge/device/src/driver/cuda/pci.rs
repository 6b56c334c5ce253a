//! The machine node that a GPU is attached to, by its PCI bus id.

use crate::numa::Node;
use std::path::Path;

/// Returns the node of the PCI device with this bus id (`0000:3b:00.0`), or `None` if the machine has a single node or does not
/// report nodes.
pub(super) fn node_of(bus_id: &str) -> Option<Node> {
    let system = Path::new("/sys");
    let device = system.join("bus/pci/devices").join(bus_id.to_ascii_lowercase());
    let number: u32 = std::fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()?; // −1: unknown
    let list = system.join(format!("devices/system/node/node{number}/cpulist"));
    let cpus = parse_cpus(std::fs::read_to_string(list).ok()?.trim())?;
    (!cpus.is_empty()).then_some(Node { cpus })
}

/// Parses a list of CPUs such as `0-3,8,10-11`.
fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_cpus("0-3,8,10-11").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpus("").unwrap(), [0usize; 0]);
        assert_eq!(parse_cpus("0-x"), None);
        assert_eq!(node_of("ffff:ff:1f.7"), None);
    }
}
