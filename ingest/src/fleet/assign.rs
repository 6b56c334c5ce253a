//! Which worker serves which strand: rendezvous hashing with bounded loads, a pure function of the workers' names.
//!
//! Every rank computes the same, so that one worker fetches a strand's blocks for all ranks. A worker more or less
//! moves few strands but those that were its own; no worker has more than its equal share, rounded up.

use std::collections::BTreeSet;

/// By strand, which of `members` serves it. The same members in any order give the same answer.
///
/// Each strand ranks the members by a hash of both (highest random weight, Thaler and Ravishankar 1998) and takes the first
/// one that has room left (bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
pub(super) fn assign<'a>(members: &BTreeSet<&'a str>, strands: u32) -> Vec<&'a str> {
    if members.is_empty() {
        return Vec::new();
    }
    let members: Vec<&str> = members.iter().copied().collect();
    let room = strands.div_ceil(u32::try_from(members.len()).unwrap_or(u32::MAX));
    let mut loads = vec![0; members.len()];
    let choose = |strand: u32| {
        let mut ranked: Vec<usize> = (0..members.len()).collect();
        ranked.sort_by_key(|&member| std::cmp::Reverse(weight(members[member], strand)));
        let chosen = ranked.iter().copied().find(|&member| loads[member] < room).unwrap_or(ranked[0]);
        loads[chosen] += 1;
        members[chosen]
    };
    (0..strands).map(choose).collect()
}

fn weight(member: &str, strand: u32) -> u64 {
    twox_hash::XxHash64::oneshot(u64::from(strand), member.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("10.0.0.{i}:7117")).collect()
    }

    fn of(names: &[String]) -> Vec<&str> {
        assign(&names.iter().map(String::as_str).collect(), 64)
    }

    #[test]
    fn shares_are_equal_and_few_strands_move() {
        for n in 1..12 {
            let all = names(n);
            let chosen = of(&all);
            for name in &all {
                let load = chosen.iter().filter(|member| **member == name).count();
                assert!(load <= 64usize.div_ceil(n), "{load} of 64 for one of {n}");
            }
            let more = names(n + 1);
            let moved = chosen.iter().zip(of(&more)).filter(|(before, after)| **before != *after).count();
            assert!(moved <= 64 / (n + 1) + 24, "{moved} moved from {n} to {}", n + 1);
        }
        assert!(assign(&BTreeSet::new(), 4).is_empty());
    }
}
