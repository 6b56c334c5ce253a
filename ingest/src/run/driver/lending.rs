//! Room in the budget for rows that need more working memory than their threads have; `large.rs` states the rules.

use super::{Active, Admitted, Driver};
use crate::ErrorKind;
use crate::run::job::Destination;
use crate::run::large::{Extension, Loan, Spare, advice, no_room};
use crate::run::planner::PlannedStep;
use crate::run::residency::PlanTime;
use crate::run::running::Event;
use std::time::Instant;

impl<D: Destination> Driver<D> {
    /// Lends room to rows that wait for it, in plan order.
    pub(super) fn lend(&mut self) {
        if !self.parked.is_empty() {
            let asked = self.residency.lent_bytes().saturating_add(self.parked.bytes());
            self.loan_room.asked(asked.min(self.budget_bytes / 2));
        }
        while let Some((index, bytes, _)) = self.parked.first() {
            let Some(active) = self.active.get(&index) else { return };
            let (turn, now) = (active.turn, self.planner.time(&active.planned.step));
            if let Some(evicted) = self.residency.lend(bytes, now) {
                for extent in evicted {
                    self.loaded.remove(&extent);
                }
                self.context.shared.set_resident(self.residency.used_bytes());
                if let Some(parked) = self.parked.pop() {
                    let events = self.context.events.clone();
                    let loan = Loan::new(bytes, move |bytes| {
                        // No driver listens once the run is dropped.
                        let _unheard = events.send(Event::Returned(bytes));
                    });
                    self.turns.submit(turn, parked.task(loan));
                }
            } else if !self.make_room(index, bytes) {
                return;
            }
        }
    }

    /// Gives up one thing that the oldest step does not need. Returns false where something must come to its end first, or
    /// the run has failed.
    fn make_room(&mut self, index: u64, bytes: u64) -> bool {
        let lent = self.residency.lent_bytes();
        // A step without rows left is done, and its event on the way.
        let is_stalled = |(index, active): (&u64, &Active<D>)| {
            let left = active.running.rows_left();
            active.waiting.is_empty() && left > 0 && left == self.parked.count_in(*index)
        };
        let is_stalled = lent == 0 && self.active.iter().all(is_stalled);
        if !self.ahead.is_empty() {
            let may = is_stalled || lent.saturating_add(bytes) <= self.budget_bytes / 2;
            return may && self.give_up_ahead();
        }
        if !is_stalled {
            return false;
        }
        let youngest = self.active.last_key_value().map(|(youngest, _)| *youngest);
        if let Some(youngest) = youngest.filter(|youngest| *youngest > index) {
            self.withdraw(youngest);
            return true;
        }
        // Where the budget is smaller than the reserve, all of it is the reserve's.
        let lacking =
            self.residency.lacking_bytes(bytes) + self.reserve_bytes.saturating_sub(self.budget_bytes);
        match self.extend(lacking) {
            Extension::Taken => return true,
            Extension::Soon => {}
            Extension::Later => self.end_without_room(index, ErrorKind::Retryable),
            Extension::Never => self.end_without_room(index, ErrorKind::BadConfig),
        }
        false
    }

    /// Takes memory beyond the budget.
    pub(super) fn extend(&mut self, bytes: u64) -> Extension {
        let extended =
            self.spare.as_mut().map_or(Extension::Never, |spare| spare.extend(bytes, Instant::now()));
        if extended == Extension::Taken {
            self.budget_bytes += bytes;
            self.residency.extend_to(self.budget_bytes.saturating_sub(self.reserve_bytes));
        }
        extended
    }

    /// Returns the budget and what the run may have beyond it.
    pub(super) fn most_budget_bytes(&self) -> u64 {
        let beyond = self.spare.as_ref().map_or(0, |spare| spare.most_bytes() - spare.taken_bytes());
        self.budget_bytes.saturating_add(beyond)
    }

    /// Whether another run lacks the memory beyond the budget.
    pub(super) fn is_memory_wanted(&self) -> bool {
        self.spare.as_ref().is_some_and(Spare::is_wanted)
    }

    /// Gives the memory beyond the budget back once no recent step needed it, or another run lacks it.
    pub(super) fn shrink(&mut self, now: PlanTime) {
        if self.loan_room.bytes() == 0 || self.is_memory_wanted() {
            self.give_back(now);
        }
    }

    /// Gives the memory beyond the budget back that another run lacks, and the steps ahead that need it. The run may have stopped
    /// because its rank waits for the rank of that run.
    pub(super) fn release(&mut self) {
        if !self.is_memory_wanted() {
            return;
        }
        let oldest = self.active.first_key_value().map(|(_, active)| &active.planned);
        let oldest = oldest.or_else(|| self.ahead.front().map(|admitted| &admitted.planned));
        let now = oldest.map_or(0, |planned| self.planner.time(&planned.step));
        while !self.give_back(now) && self.give_up_ahead() {}
    }

    /// Returns false if rows or steps need the memory, or there is none beyond the budget.
    fn give_back(&mut self, now: PlanTime) -> bool {
        let Some(spare) = self.spare.as_mut().filter(|spare| spare.taken_bytes() > 0) else { return false };
        if !self.parked.is_empty() {
            return false;
        }
        let budget_bytes = self.budget_bytes - spare.taken_bytes();
        let blocks_bytes = budget_bytes.saturating_sub(self.reserve_bytes);
        let Some(evicted) = self.residency.shrink_to(blocks_bytes, now) else { return false };
        self.budget_bytes = budget_bytes;
        spare.give_back();
        for extent in evicted {
            self.loaded.remove(&extent);
        }
        true
    }

    /// Gives up the last of the steps ahead. Returns false if there is none, or blocks of it load: they would come without room.
    fn give_up_ahead(&mut self) -> bool {
        let is_loading = |admitted: &mut Admitted| {
            admitted.planned.needs.iter().any(|need| self.loading.contains_key(&need.extent))
        };
        let Some(admitted) = self.ahead.pop_back_if(|admitted| !is_loading(admitted)) else { return false };
        self.give_up(admitted.index, admitted.planned);
        true
    }

    /// Takes back a running step, all of whose rows wait.
    fn withdraw(&mut self, index: u64) {
        let rows = self.parked.split_off(index);
        let Some(Active { planned, running, .. }) = self.active.remove(&index) else { return };
        if let Some(place) = running.withdraw(rows) {
            self.places.push_front(place);
        }
        self.give_up(index, planned);
    }

    /// Lets go of the blocks of a step, which is admitted again later.
    fn give_up(&mut self, index: u64, planned: PlannedStep) {
        let time = self.planner.time(&planned.step);
        for need in &planned.needs {
            if let Some(extent) = self.residency.unpin(need.extent, time) {
                self.loaded.remove(&extent);
            }
        }
        self.refused.insert(index, planned);
    }

    /// Ends the run: its budget cannot hold the blocks of the step `index` with what a sample of it borrows.
    fn end_without_room(&mut self, index: u64, kind: ErrorKind) {
        let Some((_, bytes, parked)) = self.parked.first() else { return };
        let Some(active) = self.active.get(&index) else { return };
        let blocks: u64 = active.planned.needs.iter().map(|need| need.bytes).sum();
        let blocks = blocks + self.reserve_bytes;
        let sizes = [self.context.decoder_memory, blocks, self.most_budget_bytes()];
        let own = "raise budget_bytes or decoder_memory";
        let advice = advice(kind, self.spare.as_ref(), blocks.saturating_add(bytes), own);
        let error = no_room(kind, &parked.name(), bytes, sizes, &advice);
        self.fail_from(index, error);
    }
}
