//! MCUs by tables of single symbols, in full size: what small images pay for.

use super::bits::Bits;
use super::frame::{Component, Frame, Window};
use super::huffman::{self, Huffman, Tables};
use super::idct::{self, Transform};
use super::outcome::Declined;
use super::walk::{Mcus, Run};
use crate::image::buffer::Buffer;

/// Decodes and passes over MCUs.
pub(super) struct Singly<'a, T> {
    pub(super) frame: &'a Frame,
    pub(super) window: Window,
    pub(super) tables: &'a Tables,
    pub(super) planes: &'a mut [Buffer; 3],
    pub(super) transform: T,
}

impl<T: Transform> Mcus for Singly<'_, T> {
    #[inline(always)]
    fn skip(&mut self, mcus: usize, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined> {
        for _ in 0..mcus {
            for (index, component) in self.frame.components().iter().enumerate() {
                let Huffman { dc, ac } = self.tables.of(component.dc, component.ac);
                for _ in 0..component.h * component.v {
                    predictions[index] = predictions[index].wrapping_add(huffman::dc(bits, dc)?);
                    huffman::skip_ac(bits, ac)?;
                }
            }
            bits.check()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn decode(
        &mut self,
        Run { row, column, mcus }: Run,
        bits: &mut Bits<'_>,
        predictions: &mut [i32; 3],
    ) -> Result<(), Declined> {
        for mcu in column..column + mcus {
            for (index, component) in self.frame.components().iter().enumerate() {
                let Huffman { dc, ac } = self.tables.of(component.dc, component.ac);
                let Component { h, v, .. } = *component;
                let stride = self.window.columns() * h * 8;
                let plane = self.planes[index].bytes_mut();
                for (block_y, block_x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                    let mut block = [0_i16; 64];
                    predictions[index] = predictions[index].wrapping_add(huffman::dc(bits, dc)?);
                    component.places.put(0, predictions[index], &mut block);
                    let flat = huffman::ac(bits, ac, &component.places, &mut block)?;
                    let start = ((row * v + block_y) * stride + mcu * h + block_x) * 8;
                    let target = &mut plane[start..start + 7 * stride + 8];
                    if flat {
                        idct::flat::<8>(block[0], target, stride);
                    } else {
                        self.transform.block::<8>(&block, target, stride);
                    }
                }
            }
            bits.check()?;
        }
        Ok(())
    }
}
