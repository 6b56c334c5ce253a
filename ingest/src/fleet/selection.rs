//! Which workers of a large fleet a job uses: every one is a connection of the ranks that have rows of its strands.
//!
//! ```text
//! workers ─▶ the first ones by a hash of name and job ─▶ strands ─▶ a rank's rows: about 32 workers
//! ```
//! All ranks of a job select the same ones, so that still one worker reads a block for all of them. A rank's rows are on a few
//! neighbouring lanes, and each part of the order is served by few workers, so the number of workers that suffices grows with the
//! number of ranks.

use super::assign::{hash_of, mixed};
use std::collections::BTreeSet;

/// Workers of a rank, about: more than one rank can use, since 32 workers of 8 threads decode some 80,000 images a second.
const OF_RANK: usize = 32;

/// Which workers of a fleet a job uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    most: usize,
    salt: u64,
}

impl Selection {
    /// All of them.
    pub(super) fn all() -> Self {
        Self { most: usize::MAX, salt: 0 }
    }

    /// Returns the selection of a job: at most 32 × parts / (parts of a rank) workers, for its number of ranks and of its order's parts.
    /// Jobs with another `salt` use other workers.
    pub(crate) fn of_job(world_size: u32, parts: u32, salt: u64) -> Self {
        // A rank's rows lie on its share of the lanes, and on one more, since its share may begin within a lane. An order of
        // fewer lanes than ranks deals each lane out to several parts; its ranks have more workers.
        let parts = (parts as usize).max(1);
        let of_rank = (parts.div_ceil((world_size as usize).max(1)) + 1).min(parts);
        Self { most: OF_RANK * parts / of_rank, salt }
    }

    /// Returns the number of workers that the job uses at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    #[cfg(test)]
    pub(super) fn at_most(most: usize) -> Self {
        Self { most, salt: 0 }
    }

    /// Returns those of `members` that the job uses.
    pub(super) fn of<'a>(&self, members: BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        self.first(members, self.most)
    }

    /// Returns those of `members` that the job uses, and `others` in the places that are left.
    pub(super) fn of_both<'a>(
        &self,
        members: BTreeSet<&'a str>,
        others: BTreeSet<&'a str>,
    ) -> BTreeSet<&'a str> {
        let mut chosen = self.of(members);
        chosen.extend(self.first(others, self.most - chosen.len()));
        chosen
    }

    /// The first `most` of `members`.
    fn first<'a>(&self, members: BTreeSet<&'a str>, most: usize) -> BTreeSet<&'a str> {
        if members.len() <= most {
            return members;
        }
        let ranked = members.into_iter().map(|name| (mixed(hash_of(name), self.salt), name));
        let mut ranked: Vec<(u64, &str)> = ranked.collect();
        ranked.sort_unstable();
        ranked.into_iter().take(most).map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_workers_grows_with_the_number_of_ranks() {
        let most = |world_size, parts| Selection::of_job(world_size, parts, 0).most;
        assert_eq!([1, 2, 8, 64, 1000].map(|ranks| most(ranks, 64)), [32, 62, 227, 1024, 1024]);
        assert_eq!([1, 1000].map(|ranks| most(ranks, 4096)), [32, 32 * 4096 / 6]);
        assert_eq!(most(1, 1), 32);
    }

    #[test]
    fn few_workers_are_exchanged_when_one_leaves_and_jobs_use_different_ones() {
        let names: Vec<String> = (0..1000).map(|nth| format!("10.0.{nth}.1:7117")).collect();
        let all: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let selection = Selection::of_job(1, 64, 7);
        let chosen = selection.of(all.clone());
        assert_eq!(chosen.len(), 32);
        let gone = *chosen.first().unwrap();
        let mut left = all.clone();
        left.remove(gone);
        assert_eq!(chosen.difference(&selection.of(left)).collect::<Vec<_>>(), [&gone]);
        let other = Selection::of_job(1, 64, 8).of(all.clone());
        assert!(chosen.intersection(&other).count() < 8, "of another job");
        let few: BTreeSet<&str> = names[..32].iter().map(String::as_str).collect();
        assert_eq!(selection.of(few.clone()), few);
        let ready: BTreeSet<&str> = names[..20].iter().map(String::as_str).collect();
        let others = all.difference(&ready).copied().collect();
        let both = selection.of_both(ready.clone(), others);
        assert!(both.len() == 32 && both.is_superset(&ready), "those that are ready come first");
        assert_eq!(selection.of_both(few.clone(), ready), few);
    }
}
