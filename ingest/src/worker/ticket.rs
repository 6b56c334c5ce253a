//! What a Flight client asks for.

use crate::wire::PlanId;
use crate::{Error, Result};
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
    /// CRC-32 (IEEE 802.3) of the JSON without this field. The tickets that a worker gives out have it; a client that writes
    /// its own tickets may leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc: Option<u32>,
}

impl LaneTicket {
    /// Returns the ticket of a lane of the epoch's order from its start, without a checksum.
    pub(crate) fn new(plan: PlanId) -> LaneTicket {
        LaneTicket { plan, lane: 0, epoch: 0, position: 0, rows: 0, crc: None }
    }

    /// Returns the ticket of another lane, with a checksum.
    pub(crate) fn sealed(&self, lane: u32) -> Result<LaneTicket> {
        let ticket = LaneTicket { lane, crc: None, ..self.clone() };
        Ok(LaneTicket { crc: Some(ticket.checksum()?), ..ticket })
    }

    /// Checks that no number of the ticket has changed on its way, if it has a checksum.
    pub(crate) fn check(&self) -> Result<()> {
        match self.crc {
            Some(crc) if crc != self.checksum()? => Err(Error::config(
                "the ticket is damaged: its checksum does not match; ask for the flight's endpoints again",
            )),
            _ => Ok(()),
        }
    }

    fn checksum(&self) -> Result<u32> {
        let json = serde_json::to_vec(&LaneTicket { crc: None, ..self.clone() });
        json.map(|json| crc32fast::hash(&json))
            .map_err(|e| Error::bug(format!("a ticket is not written: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_digit_of_a_sealed_ticket_is_noticed() {
        let ticket: LaneTicket =
            serde_json::from_str(r#"{"plan": "a1b2", "epoch": 1, "position": 2048, "rows": 512}"#).unwrap();
        let json = serde_json::to_string(&ticket.sealed(3).unwrap()).unwrap();
        let digits: Vec<usize> = json.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
        let mut noticed = 0;
        for at in digits {
            let mut damaged = json.clone().into_bytes();
            damaged[at] ^= 1;
            let Ok(damaged) = serde_json::from_slice::<LaneTicket>(&damaged) else { continue }; // such as 01
            assert!(damaged.check().unwrap_err().to_string().contains("damaged"), "byte {at} of {json}");
            noticed += 1;
        }
        assert!(noticed > 10, "{noticed} in {json}");
        serde_json::from_str::<LaneTicket>(&json).unwrap().check().unwrap();
    }

    #[test]
    fn a_client_may_write_a_ticket_without_a_checksum() {
        let ticket: LaneTicket = serde_json::from_str(r#"{"plan": "a1b2", "lane": 3}"#).unwrap();
        ticket.check().unwrap();
    }
}
