//! Spans of virtual time in which something is busy, of which some are still to come.

/// Nanoseconds of virtual time.
pub(super) type Nanos = u64;

/// Spans that may overlap, and how much of them has passed.
#[derive(Debug, Default)]
pub(super) struct Spans {
    over: Nanos,
    open: Vec<(Nanos, Nanos)>,
}

impl Spans {
    pub(super) fn add(&mut self, begin: Nanos, end: Nanos) {
        self.open.push((begin, end));
    }

    /// Returns how much of the spans has passed by `now`, which is never earlier than in the call before.
    pub(super) fn until(&mut self, now: Nanos) -> Nanos {
        let over = &mut self.over;
        self.open.retain(|(begin, end)| {
            let is_open = *end > now;
            *over += if is_open { 0 } else { end - begin };
            is_open
        });
        self.over + self.open.iter().map(|(begin, _)| now.saturating_sub(*begin)).sum::<Nanos>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_passed_counts() {
        let mut spans = Spans::default();
        spans.add(10, 20);
        spans.add(15, 40);
        spans.add(50, 60);
        assert_eq!([0, 12, 18, 30, 55, 100].map(|now| spans.until(now)), [0, 2, 11, 25, 40, 45]);
    }
}
