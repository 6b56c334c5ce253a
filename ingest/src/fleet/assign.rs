//! Which worker serves which strand: rendezvous hashing with bounded loads, a pure function of the workers' names and capacities.
//!
//! ```text
//! part ─▶ the worker that ranks first ─▶ once that one has its share: what is left of the part to the next one
//! ```
//! Every rank computes the same, so that one worker fetches a strand's blocks for all ranks. With a worker more or less, up to an
//! eighth of the strands move besides those that were its own; since all shares change, all streams are opened again. Each whole part
//! has nearly the same number of rows of each step, but each strand has not, so workers get whole parts where their shares allow it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

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

/// By strand, which of `members`, given with the units of their capacities, serves it. Each member's number of strands is in
/// proportion to its units, to within one.
///
/// Each part ranks the members by a hash of both (highest random weight, Thaler and Ravishankar 1998) and takes the first ones that
/// have room left (bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
pub(super) fn assign<'a>(members: &BTreeMap<&'a str, u32>, parts: &Parts) -> Vec<&'a str> {
    if members.is_empty() {
        return Vec::new();
    }
    let rooms = rooms(members.values().copied(), parts.strands);
    let mut shares: Vec<Share<'a>> =
        members.keys().zip(rooms).map(|(name, room)| Share::of(name, room)).collect();
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

/// Returns the number of strands of each member: the whole part of its quota, and one more for the members whose quotas lose
/// most by that (largest remainders, Hamilton 1792), the first ones among equals.
fn rooms(units: impl Iterator<Item = u32> + Clone, strands: usize) -> Vec<usize> {
    let total = units.clone().map(u64::from).sum::<u64>().max(1);
    let quota = |units: u32| u64::from(units) * strands as u64; // of this, one strand is `total`
    let mut rooms: Vec<usize> =
        units.clone().map(|units| usize::try_from(quota(units) / total).unwrap_or(strands)).collect();
    let left = strands.saturating_sub(rooms.iter().sum());
    let mut lost: Vec<(Reverse<u64>, usize)> =
        units.enumerate().map(|(at, units)| (Reverse(quota(units) % total), at)).collect();
    lost.sort_unstable();
    for (_, at) in lost.into_iter().take(left) {
        rooms[at] += 1;
    }
    rooms
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
        Self { name, hash: hash_of(name), room }
    }

    /// A hash of the member and a part.
    fn weight(&self, part: u64) -> u64 {
        mixed(self.hash, part)
    }
}

/// A hash of a member's name.
pub(super) fn hash_of(name: &str) -> u64 {
    twox_hash::XxHash64::oneshot(0, name.as_bytes())
}

/// A hash of a member's hash and a number: a step of splitmix64.
pub(super) fn mixed(hash: u64, number: u64) -> u64 {
    let mut z = hash.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: u32 = 64;
    const OF_PART: u32 = 256;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("10.0.0.{i}:7117")).collect()
    }

    fn parts() -> Parts {
        Parts::of((0..PARTS * OF_PART).map(|strand| strand % PARTS))
    }

    fn of(names: &[String]) -> Vec<&str> {
        assign(&names.iter().map(|name| (name.as_str(), 8)).collect(), &parts())
    }

    /// The number of strands of each member.
    fn counts<'a>(chosen: &[&'a str]) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        chosen.iter().for_each(|name| *counts.entry(*name).or_default() += 1);
        counts
    }

    fn moved(before: &[&str], after: &[&str]) -> usize {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    }

    #[test]
    fn shares_are_in_proportion_to_capacities() {
        let all = names(300);
        for units in [[1, 1, 1, 1], [8, 8, 8, 8], [4, 8, 16, 32], [3, 5, 7, 96]] {
            let members: BTreeMap<&str, u32> =
                all.iter().enumerate().map(|(at, name)| (name.as_str(), units[at % 4])).collect();
            let total: u32 = members.values().sum();
            let chosen = assign(&members, &parts());
            let counts = counts(&chosen);
            for (name, units) in members {
                let quota = f64::from(PARTS * OF_PART) * f64::from(units) / f64::from(total);
                let own = counts.get(name).copied().unwrap_or(0) as f64;
                assert!((own - quota).abs() < 1.0, "{name} has {own} strands, not {quota:.2}");
            }
        }
        // Only ratios count, so equal capacities are no capacities.
        let one: BTreeMap<&str, u32> = all.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(assign(&one, &parts()), of(&all));
    }

    #[test]
    fn few_strands_move_when_a_capacity_changes() {
        for n in [2_usize, 5, 24, 70, 1000] {
            let all = names(n);
            let mut members: BTreeMap<&str, u32> = all.iter().map(|name| (name.as_str(), 8)).collect();
            let before = assign(&members, &parts());
            members.insert(&all[n / 2], 4);
            let after = assign(&members, &parts());
            let least = counts(&before)[&*all[n / 2]] - counts(&after)[&*all[n / 2]];
            let most = least + before.len() / 8;
            assert!(
                moved(&before, &after) <= most,
                "{} of {n} moved, {least} had to",
                moved(&before, &after)
            );
        }
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
        assert!(assign(&BTreeMap::new(), &Parts::of([0])).is_empty());
    }

    #[test]
    fn few_strands_move_when_a_worker_joins() {
        for n in 1..80 {
            let (before, after) = (names(n), names(n + 1));
            let moved = moved(&of(&before), &of(&after));
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
        let chosen = assign(&all.iter().map(|name| (name.as_str(), 8)).collect(), &Parts::of(0..16));
        let mut loads: Vec<usize> =
            all.iter().map(|name| chosen.iter().filter(|member| *member == name).count()).collect();
        loads.sort_unstable();
        assert_eq!(loads, [5, 5, 6]);
    }
}
