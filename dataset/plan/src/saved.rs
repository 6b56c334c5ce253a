//! A shuffle that goes on as it was saved.

use crate::cursor::Fingerprint;
use crate::shuffle::{BLOCKS_VERSION, Shuffle, ShuffleKind, Unit};

impl Shuffle {
    /// Returns this shuffle with what it leaves open set as in a cursor's order: what is permuted, window and lanes. An order then
    /// stays as it was saved, even if this release, this storage or this copy of the data would choose otherwise.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Shuffle};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let block_starts = [0, 4, 8].into();
    /// let local = PlanInput { access: Access::Samples, block_starts, selection: None, data, filter: None, encoded_bytes: 8_000 };
    /// let remote = PlanInput { access: Access::Ranges, ..local.clone() }; // a copy on object storage
    /// let shuffle = Shuffle::seeded(7);
    /// let saved = Plan::new(local, &shuffle)?.cursor(0, Position(4));
    /// assert!(Plan::new(remote.clone(), &shuffle)?.check(&saved).is_err());
    /// Plan::new(remote, &shuffle.as_saved(&saved.fingerprint))?.check(&saved)?;
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    #[must_use]
    pub fn as_saved(&self, saved: &Fingerprint) -> Self {
        if self.kind != ShuffleKind::Window || self.unit != Unit::Auto || self.window.is_some() {
            return self.clone();
        }
        let is_mix = saved.mixing.is_some(); // its window and lanes are sums over its parts
        let unit = match (saved.shuffle, saved.piece.map(u32::try_from)) {
            (ShuffleKind::None, _) => return self.clone(),
            (ShuffleKind::Full, _) => Unit::Auto,
            (ShuffleKind::Window, Some(Ok(samples))) => Unit::Pieces(samples),
            (ShuffleKind::Window, _) if saved.version == BLOCKS_VERSION => Unit::Blocks,
            (ShuffleKind::Window, _) => Unit::Auto,
        };
        let window = (saved.shuffle == ShuffleKind::Window && !is_mix).then_some(saved.window);
        let lanes = self.lanes.or((!is_mix).then_some(saved.lanes));
        Self { kind: saved.shuffle, unit, window, lanes, ..self.clone() }
    }
}
