//! The layout of a batch in a device buffer, the kernels that run on it, and the inputs that the host prepares for them.
//!
//! ```text
//! | unused | small columns, plans, masks (one copy from staging memory) | mapped columns | finished ones | kernels' memory |
//! ```
//! Offsets are stored in place of addresses until the buffer is known ([`BufferLayout::launches`]). The first bytes are unused,
//! so that no offset is 0, which means no address.

mod finishing;
mod names;
mod parts;
mod plain;
mod splitting;

pub(crate) use names::{MIX_WEIGHT, SAMPLE_IDS, VALID, no_labels, partner_column};
pub(crate) use parts::{Copied, CopySource};

use super::decoding::{Deferred, Undecoded};
use crate::numbers::Numbers;
use crate::sink::Assembled;
use crate::{Error, Result};
use feedstock_device::Element;
use feedstock_device::driver::ALIGN_BYTES;
use feedstock_device::finish::Compiled;
use feedstock_device::handles::Address;
use feedstock_device::kernels::{CropArguments, FeatureArguments, Launch};
use feedstock_device::tensor::Column;
use parts::{KernelInputs, MappedRows, SplitRows, row_major, too_large};
use plain::{Plain, bytes_of};

/// The layout of a batch.
pub(crate) struct BufferLayout {
    pub(crate) columns: Vec<Column>,
    pub(crate) copies: Vec<Copied>,
    /// The bytes at `staged_from` in the buffer.
    pub(crate) staged: Vec<u8>,
    pub(crate) staged_from: usize,
    /// The bytes of the whole buffer.
    pub(crate) bytes: usize,
    /// The images that the device decodes, and the memory that they need there.
    pub(crate) undecoded: Vec<Undecoded>,
    pub(crate) arena_bytes: usize,
    /// The arguments of the kernels that crop rows from them.
    crops: Vec<CropArguments>,
    launches: Vec<Launch>,
}

impl BufferLayout {
    /// Lays out a batch whose mapped columns have these finishes and leave these images to the device. `seed` is the ops' seed.
    pub(crate) fn new(
        assembled: &Assembled,
        finishes: &[Option<Compiled>],
        deferred: &[Option<Deferred>],
        seed: u64,
    ) -> Result<Self> {
        let staged_from = ALIGN_BYTES;
        let mut layout = Self {
            columns: Vec::new(),
            copies: Vec::new(),
            staged: Vec::new(),
            staged_from,
            bytes: 0,
            undecoded: Vec::new(),
            arena_bytes: 0,
            crops: Vec::new(),
            launches: Vec::new(),
        };
        layout.stage_columns(assembled)?;
        let prepared: Vec<KernelInputs> = assembled
            .batch
            .tensors
            .iter()
            .zip(finishes)
            .map(|(tensor, finish)| layout.prepare(assembled, tensor, finish.as_ref(), seed))
            .collect::<Result<_>>()?;
        let split: Vec<Option<SplitRows>> = assembled
            .batch
            .tensors
            .iter()
            .zip(deferred)
            .map(|(tensor, deferred)| {
                deferred.as_ref().map(|deferred| layout.split(tensor, &deferred.spec)).transpose()
            })
            .collect::<Result<_>>()?;
        layout.bytes = staged_from + layout.staged.len(); // nothing is staged after this
        let staged = layout.columns.len();
        let tensors = assembled.batch.tensors.iter().zip(finishes).zip(prepared).zip(split);
        for (index, (((tensor, finish), prepared), split)) in tensors.enumerate() {
            let (rows, offset) = match split {
                None => {
                    let bytes = tensor.byte_len();
                    // Lists may have no images; their column has another offset than the next one all the same.
                    let offset = layout.reserve(bytes.max(1))?;
                    layout.copies.push(Copied { from: CopySource::Column(index, 0), offset, bytes });
                    (MappedRows::new(tensor), offset)
                }
                Some(split) => (MappedRows::pixels(tensor, &split.spec), layout.place_split(index, split)?),
            };
            match (finish, prepared) {
                (Some(Compiled::Picture(finish)), KernelInputs::Picture { plan }) => {
                    layout.finish_pictures(&rows, finish, offset, plan)?;
                }
                (Some(Compiled::Features(finish)), KernelInputs::Features { lengths, scales, masks }) => {
                    layout.finish_features(&rows, finish, offset, [lengths, scales, masks])?;
                }
                _ => layout.push_tensor(&rows, offset)?,
            }
        }
        layout.columns.rotate_left(staged); // mapped columns first, as in a batch without a device
        Ok(layout)
    }

    /// Whether kernels run at all.
    pub(crate) fn has_launches(&self) -> bool {
        !(self.crops.is_empty() && self.launches.is_empty())
    }

    /// Returns the kernels that crop rows from decoded images, which are stored from `arena` on.
    pub(crate) fn crops(&self, base: Address, arena: Address) -> impl Iterator<Item = Launch> {
        let placed = move |a: &CropArguments| CropArguments {
            arena,
            crops: Address(a.crops.0 + base.0),
            output: Address(a.output.0 + base.0),
            ..*a
        };
        self.crops.iter().map(move |arguments| Launch::Crops(placed(arguments)))
    }

    /// Returns the kernels for a buffer that begins at `base`.
    pub(crate) fn launches(&self, base: Address) -> impl Iterator<Item = Launch> {
        let place = move |address: &mut Address| {
            if *address != Address::NULL {
                address.0 += base.0;
            }
        };
        self.launches.iter().map(move |launch| {
            let mut launch = *launch;
            match &mut launch {
                Launch::Crops(_) => {} // placed by `crops`
                Launch::Pictures { arguments: a, .. } => {
                    [&mut a.input, &mut a.output, &mut a.plan].into_iter().for_each(place);
                }
                Launch::FeatureChunks(a)
                | Launch::FeatureStatistics(a)
                | Launch::FeatureRowMeans(a)
                | Launch::Features { arguments: a, .. } => {
                    let FeatureArguments {
                        input,
                        output,
                        lengths,
                        chunks,
                        stats,
                        row_means,
                        scales,
                        masks,
                        ..
                    } = a;
                    [input, output, lengths, chunks, stats, row_means, scales, masks]
                        .into_iter()
                        .for_each(place);
                }
            }
            launch
        })
    }

    /// Reserves `bytes` bytes of the buffer, and returns their offset.
    fn reserve(&mut self, bytes: usize) -> Result<usize> {
        let offset = self.bytes.checked_next_multiple_of(ALIGN_BYTES).ok_or_else(too_large)?;
        self.bytes = offset.checked_add(bytes).ok_or_else(too_large)?;
        Ok(offset)
    }

    /// Adds bytes to those that are staged, and returns their offset in the buffer.
    fn stage(&mut self, bytes: &[u8]) -> usize {
        self.staged.resize(self.staged.len().next_multiple_of(ALIGN_BYTES), 0);
        let offset = self.staged_from + self.staged.len();
        self.staged.extend_from_slice(bytes);
        offset
    }

    /// As [`stage`](Self::stage), but returns an address, which is null for no values.
    fn stage_values<T: Plain>(&mut self, values: &[T]) -> Address {
        match values.is_empty() {
            true => Address::NULL,
            false => Address(self.stage(bytes_of(values)) as u64),
        }
    }

    fn push_staged(&mut self, name: &str, element: Element, shape: Vec<usize>, bytes: &[u8]) {
        let offset = self.stage(bytes);
        let strides = row_major(&shape);
        let (name, lengths, padded_axis) = (name.to_owned(), None, None);
        self.columns.push(Column { name, element, shape, strides, lengths, padded_axis, offset });
    }

    /// Stages the unmapped columns of numbers, the sample ids and the flags of valid rows.
    fn stage_columns(&mut self, assembled: &Assembled) -> Result<()> {
        let batch = &assembled.batch;
        let schema = batch.columns.schema();
        for (field, array) in schema.fields().iter().zip(batch.columns.columns()) {
            if let Some(numbers) = Numbers::of(field, array) {
                self.push_staged(field.name(), numbers.element(), numbers.shape().to_vec(), &numbers.bytes());
            }
        }
        let rows = batch.len();
        let ids: Vec<i64> = batch.sample_ids.iter().map(|id| id.0.cast_signed()).collect();
        self.push_staged(SAMPLE_IDS, Element::I64, vec![rows], bytes_of(&ids));
        let valid: Vec<u8> = batch.valid.iter().map(|valid| u8::from(*valid)).collect();
        self.push_staged(VALID, Element::Bool, vec![rows], &valid);
        Ok(())
    }

    fn push_tensor(&mut self, tensor: &MappedRows<'_>, offset: usize) -> Result<()> {
        let bug = || Error::bug(format!("no device tensors of {:?}", tensor.dtype));
        let element = Element::of_mapped(tensor.dtype).ok_or_else(bug)?;
        self.push_rows(tensor, element, offset);
        Ok(())
    }

    /// Adds a mapped column, row by row as in its slot.
    fn push_rows(&mut self, tensor: &MappedRows<'_>, element: Element, offset: usize) {
        self.columns.push(Column {
            name: tensor.name.to_owned(),
            element,
            strides: row_major(&tensor.shape),
            shape: tensor.shape.clone(),
            lengths: tensor.lengths.map(Into::into),
            padded_axis: tensor.padded_axis,
            offset,
        });
    }
}
