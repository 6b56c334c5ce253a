//! Assignment of audio clips to shards.

use super::super::writer::Shards;
use crate::speech::{Locale, Split};
use std::collections::BTreeMap;

/// The number of audio clips of each group, divided into shards.
pub(super) struct ShardPlan<G> {
    groups: BTreeMap<G, Shards>,
}

impl<G: Ord> ShardPlan<G> {
    pub(super) fn new(groups: impl Iterator<Item = G>, per_shard: u64) -> Self {
        let mut counts: BTreeMap<G, u64> = BTreeMap::new();
        for group in groups {
            *counts.entry(group).or_default() += 1;
        }
        let groups = counts.into_iter().map(|(group, count)| (group, Shards::new(count, per_shard)));
        Self { groups: groups.collect() }
    }

    /// Returns the groups that have audio clips, in order.
    pub(super) fn groups(&self) -> impl Iterator<Item = &G> {
        self.groups.keys()
    }

    /// Returns the shards of a group; `None` if it has no audio clip.
    pub(super) fn of(&self, group: &G) -> Option<Shards> {
        self.groups.get(group).copied()
    }
}

/// Position of the next audio clip: its group, its shard, and the number of audio clips that the shard still takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<G> {
    pub(super) group: G,
    pub(super) shard: u64,
    pub(super) left: u64,
}

impl<G: Ord + Copy> Place<G> {
    /// Returns the position of an audio clip of `group` after `last`. The plan counted every audio clip, so it knows
    /// the group.
    pub(super) fn next(last: Option<Self>, group: G, plan: &ShardPlan<G>) -> Self {
        let shards = plan.of(&group).unwrap_or(Shards::new(1, 1));
        match last {
            Some(place) if place.group == group && place.left > 0 => place,
            Some(place) if place.group == group => {
                Self { group, shard: place.shard + 1, left: shards.len(place.shard + 1) }
            }
            _ => Self { group, shard: 0, left: shards.len(0) },
        }
    }
}

/// Returns the name of a split in Hugging Face `datasets`.
pub(super) fn hf_split(split: Split) -> &'static str {
    match split {
        Split::Dev => "validation",
        other => other.name(),
    }
}

/// The group in layouts that separate languages.
pub(super) type Group = (Locale, Split);
