//! Which worker serves which strand: rendezvous hashing with bounded loads, a pure function of the workers' names.
//!
//! ```text
//! part ─▶ the worker that ranks first ─▶ once that one has its share: what is left of the part to the next one
//! ```
//! Every rank computes the same, so that one worker fetches a strand's blocks for all ranks. With a worker more or less, up to an
//! eighth of the strands move besides those that were its own; since all shares change, all streams are opened again. Each whole part
//! has nearly the same number of rows of each step, but each strand has not, so workers get whole parts where their shares allow it.

use std::collections::{BTreeMap, BTreeSet};

/// The strands of each part, in the order in which they are given away. The blocks of a window are on neighbouring strands, so the
/// order is that of the reversed bits of their numbers in the part: the first few are spread over all.
#[derive(Debug)]
pub(super) struct Parts {
    of_parts: Vec<Vec<usize>>,
    strands: usize,
}

impl Parts {
    /// Returns the parts of an order; `parts` has the part of each strand.
    pub(super) fn of(parts: impl IntoIterator<Item = u32>) -> Self {
        let (mut of_parts, mut strands) = (Vec::<Vec<usize>>::new(), 0);
        for part in parts {
            let part = part as usize;
            of_parts.resize(of_parts.len().max(part + 1), Vec::new());
            of_parts[part].push(strands);
            strands += 1;
        }
        for of_part in &mut of_parts {
            let numbered = (0_u32..).map(u32::reverse_bits).zip(std::mem::take(of_part));
            let spread: BTreeMap<u32, usize> = numbered.collect();
            of_part.extend(spread.into_values());
        }
        Self { of_parts, strands }
    }

    /// Returns the number of strands.
    pub(super) fn strands(&self) -> usize {
        self.strands
    }
}

/// By strand, which of `members` serves it. The same members in any order give the same answer, and
/// their numbers of strands differ by at most one.
///
/// Each part ranks the members by a hash of both (highest random weight, Thaler and Ravishankar 1998) and takes the first ones that
/// have room left (bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
pub(super) fn assign<'a>(members: &BTreeSet<&'a str>, parts: &Parts) -> Vec<&'a str> {
    if members.is_empty() {
        return Vec::new();
    }
    let (equal, more) = (parts.strands / members.len(), parts.strands % members.len());
    let share = |(at, name): (usize, &&'a str)| Share::of(name, equal + usize::from(at < more));
    let mut shares: Vec<Share<'a>> = members.iter().enumerate().map(share).collect();
    let mut chosen = vec![""; parts.strands];
    for (part, strands) in (0..).zip(&parts.of_parts) {
        let mut left = strands.as_slice();
        while !left.is_empty()
            && let Some(at) = first_with_room(&shares, part)
        {
            let (own, others) = left.split_at(left.len().min(shares[at].room));
            own.iter().for_each(|&strand| chosen[strand] = shares[at].name);
            shares[at].room -= own.len();
            left = others;
        }
    }
    chosen
}

/// Returns which of the members that have room ranks first for a part.
fn first_with_room(shares: &[Share<'_>], part: u64) -> Option<usize> {
    let fit = shares.iter().enumerate().filter(|(_, share)| share.room > 0);
    fit.max_by_key(|(_, share)| share.weight(part)).map(|(at, _)| at)
}

/// A member, and how many more strands it serves.
struct Share<'a> {
    name: &'a str,
    hash: u64,
    room: usize,
}

impl<'a> Share<'a> {
    fn of(name: &'a str, room: usize) -> Self {
        Self { name, hash: twox_hash::XxHash64::oneshot(0, name.as_bytes()), room }
    }

    /// A hash of the member and a part: a step of splitmix64.
    fn weight(&self, part: u64) -> u64 {
        let mut z = self.hash.wrapping_add(part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: u32 = 64;
    const OF_PART: u32 = 64;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("10.0.0.{i}:7117")).collect()
    }

    fn of(names: &[String]) -> Vec<&str> {
        let parts = Parts::of((0..PARTS * OF_PART).map(|strand| strand % PARTS));
        assign(&names.iter().map(String::as_str).collect(), &parts)
    }

    #[test]
    fn shares_are_equal_and_mostly_of_whole_parts() {
        for n in [1, 2, 5, 11, 24, 40, 64, 70, 500] {
            let all = names(n);
            let chosen = of(&all);
            for name in &all {
                let own = (0..chosen.len()).filter(|&strand| chosen[strand] == name).count();
                let equal = chosen.len() / n;
                assert!(own == equal || own == equal + 1, "{name} of {n} has {own} strands");
            }
            let of_part = |part: usize| chosen.iter().skip(part).step_by(PARTS as usize);
            let split = (0..PARTS as usize).filter(|&part| of_part(part).any(|name| *name != chosen[part]));
            // A member whose share is full leaves the rest of one part.
            assert!(split.count() <= n, "too many parts are split among {n}");
        }
        assert!(assign(&BTreeSet::new(), &Parts::of([0])).is_empty());
    }

    #[test]
    fn few_strands_move_when_a_worker_joins() {
        for n in 1..80 {
            let (before, after) = (names(n), names(n + 1));
            let moved =
                of(&before).iter().zip(of(&after)).filter(|(before, after)| **before != *after).count();
            let strands = (PARTS * OF_PART) as usize;
            let least = strands / (n + 1);
            assert!(moved <= least + strands / 8, "{moved} moved from {n} to {}, {least} had to", n + 1);
        }
    }

    /// A lane's window spans a few blocks, which are on neighbouring strands of each part.
    #[test]
    fn what_is_split_is_spread_over_the_strands_of_a_part() {
        for (n, most) in [(5, 1.1), (24, 1.35), (70, 2.6)] {
            let all = names(n);
            let chosen = of(&all);
            for first in (0..OF_PART as usize).step_by(4) {
                let window = first * PARTS as usize..(first + 4) * PARTS as usize;
                let equal = window.len() as f64 / n as f64;
                for name in &all {
                    let own = window.clone().filter(|&strand| chosen[strand] == name).count() as f64;
                    assert!(
                        own <= equal * most,
                        "{name} of {n} has {own} strands of a window, not {equal:.1}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_strand_each_is_a_part_each() {
        let all = names(3);
        let chosen = assign(&all.iter().map(String::as_str).collect(), &Parts::of(0..16));
        let mut loads: Vec<usize> =
            all.iter().map(|name| chosen.iter().filter(|member| *member == name).count()).collect();
        loads.sort_unstable();
        assert_eq!(loads, [5, 5, 6]);
    }
}
