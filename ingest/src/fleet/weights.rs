//! The capacities that are in force, and news that are not yet.

use std::collections::BTreeMap;
use std::time::Duration;

/// Strands move this long after the last news. Workers of a fleet that starts publish their capacities within it, so streams are opened
/// again once, not for each worker. A worker that joins alone serves at the next step, one of two within a second.
const SETTLE: Duration = Duration::from_millis(750);

/// Strands do not wait longer than this for more news, so that a ready worker serves soon while others join.
pub(super) const SETTLE_MOST: Duration = Duration::from_secs(1);

/// Units of members by name, as the table of strands has them.
#[derive(Debug, Default)]
pub(super) struct Weights {
    units: BTreeMap<String, u32>,
    /// When news came that are not in force: the first and the last of them.
    news: Option<(Duration, Duration)>,
    /// When strands last followed members that have joined, or news.
    moved: Option<Duration>,
}

impl Weights {
    /// Returns the units of a member; `None` if it has published nothing.
    pub(super) fn of(&self, name: &str) -> Option<u32> {
        self.units.get(name).copied()
    }

    /// Something has changed that strands are to follow.
    pub(super) fn note(&mut self, now: Duration) {
        let first = self.news.map_or(now, |(first, _)| first);
        self.news = Some((first, now));
    }

    /// Whether something has changed that is not in force.
    pub(super) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Whether strands are to follow the news now.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        self.news.is_some_and(|(first, last)| now >= last + SETTLE || now >= first + SETTLE_MOST)
    }

    /// These are in force from now on.
    pub(super) fn adopt(&mut self, units: BTreeMap<String, u32>) {
        (self.units, self.news) = (units, None);
    }

    /// Strands move now.
    pub(super) fn moves(&mut self, now: Duration) {
        self.moved = Some(now);
    }

    /// Whether strands may move now for something that can wait. If they have just moved, it is noted.
    pub(super) fn may_move(&mut self, now: Duration) -> bool {
        let may = self.moved.is_none_or(|moved| now >= moved + SETTLE);
        match may {
            true => self.moves(now),
            false => self.note(now),
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_that_keep_coming_are_in_force_after_a_second() {
        let at = Duration::from_millis;
        let mut weights = Weights::default();
        for now in (0..=900).step_by(100) {
            weights.note(at(now));
            assert!(!weights.is_settled(at(now)));
        }
        assert!(!weights.is_settled(at(999)) && weights.is_settled(at(1000)));
        weights.adopt(BTreeMap::new());
        weights.note(at(2000));
        assert!(!weights.is_settled(at(2749)) && weights.is_settled(at(2750)), "nothing came after it");
    }
}
