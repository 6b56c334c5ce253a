//! Several maps of one image, which is decoded once.

use crate::memory::row::{RowMemory, RowPlace};
use crate::{Error, Result};
use feedstock_ops::image::{ViewRows, Views};
use feedstock_ops::{Chain, SampleSeed, Scratch};

/// Maps whose results are views of one image, which is decoded once.
pub struct MapViews {
    /// The chains.
    pub(crate) views: Views,
    /// The index of the map of each view.
    pub(crate) maps: Vec<usize>,
}

impl MapViews {
    /// Returns the chain of the map `map` alone.
    ///
    /// # Errors
    /// `Bug` if it is not one of them.
    pub(crate) fn chain(&self, map: usize) -> Result<Chain> {
        match self.maps.iter().position(|own| *own == map) {
            Some(view) => Ok(self.views.chain(view)),
            None => Err(Error::bug(format!("map {map} is not one of the views {:?}", self.maps))),
        }
    }

    /// Returns true for the map with which all of them are made.
    pub(crate) fn begins(&self, map: usize) -> bool {
        self.maps.first() == Some(&map)
    }

    /// Makes the rows of all of them.
    ///
    /// # Errors
    /// As [`Views::apply`].
    pub(crate) fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        memory: &mut RowMemory,
    ) -> Result<()> {
        self.views.apply(encoded, seed, scratch, &mut Rows { memory, maps: &self.maps })
    }
}

/// The places of views in the memory of a row.
struct Rows<'a> {
    memory: &'a mut RowMemory,
    maps: &'a [usize],
}

impl ViewRows for Rows<'_> {
    fn row(&mut self, view: usize) -> Result<&mut [u8]> {
        match self.memory.column(self.maps[view])? {
            RowPlace::Fixed(out) => Ok(out),
            RowPlace::Ragged(_) => Err(Error::bug("the rows of a view have no fixed place")),
        }
    }
}
