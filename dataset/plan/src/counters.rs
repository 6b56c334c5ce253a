//! Orders whose steps were walked, kept for counting steps again.

use crate::facts::Facts;
use crate::order::EpochOrder;
use crate::size::StepSize;
use crate::step::StepShape;
use feedstock_base::Position;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Orders kept: those of the current epoch and of the next.
const COUNTERS: usize = 2;

/// Epochs whose steps were counted, shared by the clones of a plan.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<VecDeque<EpochOrder>>);

impl Counters {
    /// See [`EpochOrder::steps_left`].
    pub(crate) fn steps_left(
        &self,
        facts: &Arc<Facts>,
        epoch: u64,
        position: Position,
        shape: &StepShape,
    ) -> u64 {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner); // only a cache
        if let Some(order) = orders.iter_mut().find(|order| order.epoch() == epoch) {
            return order.steps_left(position, shape);
        }
        let mut order = EpochOrder::new(facts.clone(), epoch);
        let steps = order.steps_left(position, shape);
        if matches!(shape.size, StepSize::Total { .. }) {
            if orders.len() == COUNTERS {
                orders.pop_front();
            }
            orders.push_back(order);
        }
        steps
    }
}
