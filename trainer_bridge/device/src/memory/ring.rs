//! Which device buffer may be written, and after which events: a state machine without a device.
//!
//! ```text
//! draining ──take──▶ copying ──copied──▶ ready ──lend──▶ lent ──give_back(events)──▶ draining
//!    ▲                  └──give_back──▶ draining   └──give_back──┘                      │
//!    └── a new buffer: no events                          retire: never taken again ◀───┘ (from copying, ready or lent)
//! ```
//! A draining buffer may be written after its events: the copy stream waits for them, no thread does. Buffers are taken in the
//! order of their return, so the one that has drained longest comes first.

use std::collections::VecDeque;

/// A buffer's place in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index(pub(crate) usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BufferState {
    Draining,
    Copying,
    Ready,
    Lent,
    Retired,
}

/// The buffers' states; `E` is an event.
#[derive(Debug)]
pub(crate) struct Ring<E> {
    states: Vec<BufferState>,
    /// Draining buffers, and the events that must pass before they are written.
    draining: VecDeque<(Index, Vec<E>)>,
}

impl<E> Ring<E> {
    /// Makes a ring of `buffers` new buffers.
    pub(crate) fn new(buffers: usize) -> Self {
        let draining = (0..buffers).map(|index| (Index(index), Vec::new())).collect();
        Self { states: vec![BufferState::Draining; buffers], draining }
    }

    /// Takes a buffer, to be written after these events.
    pub(crate) fn take(&mut self) -> Option<(Index, Vec<E>)> {
        let (index, behind) = self.draining.pop_front()?;
        self.change(index, &[BufferState::Draining], BufferState::Copying);
        Some((index, behind))
    }

    /// Notes that all work that fills the buffer was submitted.
    pub(crate) fn copied(&mut self, index: Index) {
        self.change(index, &[BufferState::Copying], BufferState::Ready);
    }

    /// Notes that the caller has the buffer.
    pub(crate) fn lend(&mut self, index: Index) {
        self.change(index, &[BufferState::Ready], BufferState::Lent);
    }

    /// Returns the buffer to the ring. No work uses it after the events `behind`.
    pub(crate) fn give_back(&mut self, index: Index, behind: Vec<E>) {
        self.change(
            index,
            &[BufferState::Copying, BufferState::Ready, BufferState::Lent],
            BufferState::Draining,
        );
        self.draining.push_back((index, behind));
    }

    /// Excludes the buffer from further use, because its remaining users are unknown.
    pub(crate) fn retire(&mut self, index: Index) {
        self.change(
            index,
            &[BufferState::Copying, BufferState::Ready, BufferState::Lent],
            BufferState::Retired,
        );
    }

    /// Returns the number of buffers that the caller has.
    pub(crate) fn lent(&self) -> usize {
        self.states.iter().filter(|state| **state == BufferState::Lent).count()
    }

    /// Returns the number of buffers that are not retired.
    pub(crate) fn usable(&self) -> usize {
        self.states.iter().filter(|state| **state != BufferState::Retired).count()
    }

    /// Takes all draining buffers, and returns their events.
    pub(crate) fn drain(&mut self) -> Vec<E> {
        self.draining.drain(..).flat_map(|(_, behind)| behind).collect()
    }

    fn change(&mut self, index: Index, from: &[BufferState], to: BufferState) {
        let state = &mut self.states[index.0];
        assert!(from.contains(state), "buffer {} is {state:?} and cannot become {to:?}", index.0);
        *state = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_go_round_in_the_order_they_came_back() {
        let mut ring = Ring::new(2);
        let (a, none) = ring.take().unwrap();
        assert!(none.is_empty(), "a new buffer waits for nothing");
        ring.copied(a);
        let (b, _) = ring.take().unwrap();
        assert!(ring.take().is_none(), "both are in use");
        ring.lend(a);
        assert_eq!((ring.lent(), ring.usable()), (1, 2));
        ring.copied(b);
        ring.lend(b);
        ring.give_back(b, vec!['b']);
        ring.give_back(a, vec!['a', 'A']);
        assert_eq!(ring.take().unwrap(), (b, vec!['b']));
        assert_eq!(ring.take().unwrap(), (a, vec!['a', 'A']));
    }

    #[test]
    fn what_was_never_delivered_or_failed_comes_back_too() {
        let mut ring = Ring::<()>::new(2);
        let (a, _) = ring.take().unwrap();
        let (b, _) = ring.take().unwrap();
        ring.give_back(a, vec![]);
        ring.copied(b);
        ring.give_back(b, vec![()]);
        assert_eq!(ring.take().unwrap().0, a);
        ring.retire(a);
        assert_eq!(ring.usable(), 1);
        assert_eq!(ring.drain().len(), 1);
    }

    #[test]
    #[should_panic(expected = "is Draining and cannot become Lent")]
    fn nothing_is_lent_that_was_not_copied() {
        Ring::<()>::new(1).lend(Index(0));
    }

    #[test]
    #[should_panic(expected = "cannot become Draining")]
    fn nothing_comes_back_twice() {
        let mut ring = Ring::<()>::new(1);
        let (a, _) = ring.take().unwrap();
        ring.copied(a);
        ring.lend(a);
        ring.give_back(a, vec![]);
        ring.give_back(a, vec![]);
    }
}
