//! What a Flight client asks for.

use crate::wire::PlanId;
use serde::{Deserialize, Serialize};

/// Which samples a Flight client asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneTicket {
    pub(crate) plan: PlanId,
    /// Which lane, below the number of endpoints; ignored in a flight's descriptor.
    #[serde(default)]
    pub(crate) lane: u32,
    #[serde(default)]
    pub(crate) epoch: u64,
    /// Of the epoch's order.
    #[serde(default)]
    pub(crate) position: u64,
    /// Positions of all lanes whose samples make one batch; 0, the default: 32 for each lane.
    #[serde(default)]
    pub(crate) rows: u64,
}
