//! What of a batch goes where in a device buffer, which kernels run on it, and what the host prepares for them.
//!
//! ```text
//! | nothing | small columns, plans, masks (one copy from staging memory) | mapped columns | finished ones | kernels' own |
//! ```
//! Offsets stand where addresses belong until the buffer is known ([`Layout::launches`]); the first bytes are left free, so
//! that no offset is 0, which means no address.

use super::decoding::{Deferred, Undecoded};
use crate::batch::Tensor;
use crate::numbers::Numbers;
use crate::sink::Assembled;
use crate::{Error, ErrorKind, Result};
use feedstock_device::Element;
use feedstock_device::driver::ALIGN_BYTES;
use feedstock_device::finish::{Compiled, CompiledFeatures, CompiledPicture, Drawn, PictureLayout};
use feedstock_device::handles::Address;
use feedstock_device::kernels::{
    BY_UTTERANCE, CHUNK_FRAMES, CropArguments, CropRow, FeatureArguments, Launch, Mask, PictureArguments,
    PictureRow,
};
use feedstock_device::tensor::Column;
use feedstock_ops::image::{DeferredRow, Rect, Size};
use feedstock_ops::{DType, TensorSpec};

/// What lines of decoded pictures begin on.
const PITCH_BYTES: usize = 32;

/// Where a copy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A mapped column, by its index in the batch, and bytes of it.
    Column(usize, usize),
    /// Bytes of what is staged.
    Staged(usize),
}

/// A copy of (part of) a mapped column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) from: Source,
    /// In the buffer.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// A batch, laid out.
pub(crate) struct Layout {
    pub(crate) columns: Vec<Column>,
    pub(crate) copies: Vec<Copied>,
    /// What stands at `staged_from` in the buffer.
    pub(crate) staged: Vec<u8>,
    pub(crate) staged_from: usize,
    /// Bytes of the whole buffer.
    pub(crate) bytes: usize,
    /// Pictures that are decoded on the device, and the room that they need there.
    pub(crate) undecoded: Vec<Undecoded>,
    pub(crate) arena_bytes: usize,
    /// What cuts rows out of them.
    crops: Vec<CropArguments>,
    launches: Vec<Launch>,
}

/// Plain numbers without padding, as the kernels' structures are.
///
/// # Safety
/// Every byte of a value is initialised.
unsafe trait Plain: Copy {}
// SAFETY: numbers, and structures of numbers of four bytes each.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for [f32; 2] {}
// SAFETY: as above.
unsafe impl Plain for PictureRow {}
// SAFETY: as above.
unsafe impl Plain for Mask {}
// SAFETY: numbers of eight and of four bytes, the latter an even number of them.
unsafe impl Plain for CropRow {}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain`'s contract.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

fn too_large() -> Error {
    Error::new(ErrorKind::BadConfig, "a batch is too large for the device's kernels; lower the batch size")
}

fn narrow(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| too_large())
}

impl Layout {
    /// Lays out a batch whose mapped columns have these finishes, and leave so much to the device; `seed` is that of the ops.
    pub(crate) fn of(
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
        let prepared: Vec<Prepared> = assembled
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
        layout.bytes = staged_from + layout.staged.len(); // nothing is staged behind this
        let staged = layout.columns.len();
        let tensors = assembled.batch.tensors.iter().zip(finishes).zip(prepared).zip(split);
        for (index, (((tensor, finish), prepared), split)) in tensors.enumerate() {
            let (rows, offset) = match split {
                None => {
                    let bytes = tensor.byte_len();
                    let offset = layout.reserve(bytes)?;
                    layout.copies.push(Copied { from: Source::Column(index, 0), offset, bytes });
                    (Rows::of(tensor), offset)
                }
                Some(split) => (Rows::pixels(tensor, &split.spec), layout.place_split(index, split)?),
            };
            match (finish, prepared) {
                (Some(Compiled::Picture(finish)), Prepared::Picture { plan }) => {
                    layout.finish_pictures(&rows, finish, offset, plan)?;
                }
                (Some(Compiled::Features(finish)), Prepared::Features { lengths, scales, masks }) => {
                    layout.finish_features(&rows, finish, offset, [lengths, scales, masks])?;
                }
                _ => layout.push_tensor(&rows, offset)?,
            }
        }
        layout.columns.rotate_left(staged); // the mapped ones first, as in a batch without a device
        Ok(layout)
    }

    /// Whether kernels run at all.
    pub(crate) fn has_launches(&self) -> bool {
        !(self.crops.is_empty() && self.launches.is_empty())
    }

    /// The kernels that cut rows out of decoded pictures, which lie from `arena` on.
    pub(crate) fn crops(&self, base: Address, arena: Address) -> impl Iterator<Item = Launch> {
        let placed = move |a: &CropArguments| CropArguments {
            arena,
            crops: Address(a.crops.0 + base.0),
            output: Address(a.output.0 + base.0),
            ..*a
        };
        self.crops.iter().map(move |arguments| Launch::Crops(placed(arguments)))
    }

    /// The kernels, for a buffer that begins at `base`.
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

    /// Room in the buffer for `bytes` bytes.
    fn reserve(&mut self, bytes: usize) -> Result<usize> {
        let offset = self.bytes.checked_next_multiple_of(ALIGN_BYTES).ok_or_else(too_large)?;
        self.bytes = offset.checked_add(bytes).ok_or_else(too_large)?;
        Ok(offset)
    }

    /// Adds to what is staged; where it will stand.
    fn stage(&mut self, bytes: &[u8]) -> usize {
        self.staged.resize(self.staged.len().next_multiple_of(ALIGN_BYTES), 0);
        let offset = self.staged_from + self.staged.len();
        self.staged.extend_from_slice(bytes);
        offset
    }

    /// As [`stage`](Self::stage), as an address; none of what is empty.
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

    /// The numeric columns that ride along, the samples' ids and which rows are valid.
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

    /// Draws and stages what the kernels of a column need.
    fn prepare(
        &mut self,
        assembled: &Assembled,
        tensor: &Tensor,
        finish: Option<&Compiled>,
        seed: u64,
    ) -> Result<Prepared> {
        let batch = &assembled.batch;
        let rows = narrow(tensor.rows)?;
        match finish {
            None => Ok(Prepared::Nothing),
            Some(Compiled::Picture(finish)) => {
                let drawn = finish.mixing.as_ref().map(|mix| mix.draw(seed, batch.epoch, batch.position.0));
                let plan: Vec<_> = (0..rows)
                    .zip(&assembled.seeds)
                    .map(|(row, seed)| {
                        let mirrored = finish.is_mirrored(*seed);
                        drawn.map_or_else(
                            || Drawn::plain(row, mirrored),
                            |drawn| drawn.row(row, rows, mirrored),
                        )
                    })
                    .collect();
                if let (Some(mix), Some(drawn)) = (&finish.mixing, drawn) {
                    self.stage_partners(mix.labels(), drawn, rows)?;
                }
                Ok(Prepared::Picture { plan: self.stage_values(&plan) })
            }
            Some(Compiled::Features(finish)) => {
                let frames = narrow(frames_of(&tensor.shape(), finish))?;
                let lengths: Vec<u32> = match tensor.lengths() {
                    Some(lengths) => lengths.iter().map(|length| narrow(*length)).collect::<Result<_>>()?,
                    None => vec![frames; tensor.rows],
                };
                let masks: Vec<_> = lengths
                    .iter()
                    .zip(&assembled.seeds)
                    .flat_map(|(length, seed)| finish.masks(*seed, *length))
                    .collect();
                let scales: Vec<[f32; 2]> =
                    finish.scales.iter().map(|&(scale, bias)| [scale, bias]).collect();
                Ok(Prepared::Features {
                    lengths: self.stage_values(&lengths),
                    scales: self.stage_values(&scales),
                    masks: self.stage_values(&masks),
                })
            }
        }
    }

    /// The labels of the rows that were mixed in, and the weight of the rows' own.
    fn stage_partners(&mut self, labels: &str, drawn: Drawn, rows: u32) -> Result<()> {
        let column = self.columns.iter().find(|column| column.name == labels).cloned();
        let Some(Column { element, shape, offset, .. }) = column else { return Err(no_labels(labels)) };
        let row_bytes = shape[1..].iter().product::<usize>() * element.bytes();
        let from = offset - self.staged_from;
        let of = |row: u32| {
            let start = from + drawn.partner(row, rows) as usize * row_bytes;
            self.staged[start..start + row_bytes].to_vec()
        };
        let partners: Vec<u8> = (0..rows).flat_map(of).collect();
        self.push_staged(&partner_column(labels), element, shape, &partners);
        let weights = vec![drawn.label_weight; rows as usize];
        self.push_staged(MIX_WEIGHT, Element::F32, vec![rows as usize], bytes_of(&weights));
        Ok(())
    }

    /// Tells pixels from JPEGs in the rows of a column that is left to the device in part, and stages what cuts them out.
    fn split(&mut self, tensor: &Tensor, spec: &TensorSpec) -> Result<SplitRows> {
        let bug = |what: &str| Error::new(ErrorKind::Bug, format!("a column that the device decodes {what}"));
        let row_bytes = tensor.byte_len() / tensor.rows;
        let (mut pixels, mut undecoded, mut crops) = (Vec::new(), Vec::new(), Vec::new());
        let mut black = None;
        for (row, length) in tensor.lengths().ok_or_else(|| bug("has no lengths"))?.iter().enumerate() {
            let from = row * row_bytes;
            if *length == 0 {
                // A row without a good source.
                let staged = *black.get_or_insert_with(|| self.stage(&vec![0; spec.bytes()]));
                pixels.push((row, Source::Staged(staged - self.staged_from)));
                continue;
            }
            match DeferredRow::read(&tensor.row(row)[..*length])? {
                DeferredRow::Pixels(content) if content.len() != spec.bytes() => {
                    return Err(bug("has a row of another size"));
                }
                DeferredRow::Pixels(_) => pixels.push((row, Source::Column(0, from))),
                DeferredRow::Jpeg(bytes, shown) => {
                    let Size { height, width } = shown.picture;
                    let Rect { x, y, width: across, height: down } = shown.view;
                    let is_inside = |first: u32, length: u32, limit: u32| {
                        length > 0 && first.checked_add(length).is_some_and(|end| end <= limit)
                    };
                    if !(is_inside(x, across, width) && is_inside(y, down, height)) {
                        return Err(bug("shows what is not in the picture"));
                    }
                    let pitch = (width as usize * 3).next_multiple_of(PITCH_BYTES);
                    let at = self.arena_bytes.next_multiple_of(ALIGN_BYTES);
                    let end = pitch.checked_mul(height as usize).and_then(|bytes| at.checked_add(bytes));
                    self.arena_bytes = end.ok_or_else(too_large)?;
                    let mirrored = u32::from(shown.mirrored);
                    let (row_number, stride) = (narrow(row)?, narrow(pitch)?);
                    crops.push(CropRow {
                        source: at as u64,
                        row: row_number,
                        mirrored,
                        stride,
                        view: [x, y, across, down],
                        unused: 0,
                        window: shown.window,
                    });
                    let (length, size) = (bytes.len(), (width, height));
                    undecoded.push(Undecoded { tensor: 0, from, length, size, at, pitch, row, offset: 0 });
                }
            }
        }
        let (table, count) = (self.stage_values(&crops), narrow(crops.len())?);
        Ok(SplitRows { spec: spec.clone(), rows: tensor.rows, pixels, undecoded, table, count })
    }

    /// Room for the rows of column `tensor`, and the ways that lead there; where they begin.
    fn place_split(&mut self, tensor: usize, split: SplitRows) -> Result<usize> {
        let SplitRows { spec, rows, pixels, undecoded, table, count } = split;
        let bytes = spec.bytes();
        let start = self.reserve(rows.checked_mul(bytes).ok_or_else(too_large)?)?;
        let place = |row: usize| start + row * bytes;
        let of_column = |from: Source| match from {
            Source::Column(_, from) => Source::Column(tensor, from),
            Source::Staged(_) => from,
        };
        let copies = pixels.into_iter();
        self.copies.extend(copies.map(|(row, from)| Copied {
            from: of_column(from),
            offset: place(row),
            bytes,
        }));
        let undecoded = undecoded.into_iter();
        self.undecoded.extend(undecoded.map(|one| Undecoded { tensor, offset: place(one.row), ..one }));
        if count > 0 {
            let (height, width) = (narrow(spec.shape[0])?, narrow(spec.shape[1])?);
            narrow(spec.shape[0] * spec.shape[1])?; // threads of a row
            let (arena, output) = (Address::NULL, Address(start as u64));
            self.crops.push(CropArguments { arena, crops: table, output, count, height, width, unused: 0 });
        }
        Ok(start)
    }

    fn push_tensor(&mut self, tensor: &Rows<'_>, offset: usize) -> Result<()> {
        let bug = || Error::new(ErrorKind::Bug, format!("no device tensors of {:?}", tensor.dtype));
        let element = Element::of_mapped(tensor.dtype).ok_or_else(bug)?;
        self.push_rows(tensor, element, offset);
        Ok(())
    }

    /// A mapped column, row by row as in its slot.
    fn push_rows(&mut self, tensor: &Rows<'_>, element: Element, offset: usize) {
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

    fn finish_pictures(
        &mut self,
        tensor: &Rows<'_>,
        finish: &CompiledPicture,
        input: usize,
        plan: Address,
    ) -> Result<()> {
        let CompiledPicture { real, height, width, scale, bias, .. } = *finish;
        let shape = vec![tensor.shape[0], 3, height, width];
        let offset = self.reserve(shape.iter().product::<usize>() * real.bytes())?;
        let planes = finish.layout == PictureLayout::Planes;
        let strides = if planes { row_major(&shape) } else { vec![height * width * 3, 1, width * 3, 3] };
        narrow(height * width * 3)?; // elements of a row
        let (rows, height, width) = (narrow(tensor.shape[0])?, narrow(height)?, narrow(width)?);
        let (input, output) = (Address(input as u64), Address(offset as u64));
        let mixes = u32::from(finish.mixing.is_some());
        let arguments = PictureArguments { input, output, plan, rows, height, width, mixes, scale, bias };
        self.launches.push(Launch::Pictures { real, planes, arguments });
        let (name, element) = (tensor.name.to_owned(), real.into());
        self.columns.push(Column { name, element, shape, strides, lengths: None, padded_axis: None, offset });
        Ok(())
    }

    fn finish_features(
        &mut self,
        tensor: &Rows<'_>,
        finish: &CompiledFeatures,
        input: usize,
        [lengths, scales, masks]: [Address; 3],
    ) -> Result<()> {
        let (rows, frames) = (tensor.shape[0], frames_of(&tensor.shape, finish));
        narrow(frames * finish.features)?; // threads of a row
        let chunk_count = frames.div_ceil(CHUNK_FRAMES as usize);
        let with_mean = finish.masks_per_row() > 0 && finish.mask_value().is_none();
        let with_stats = with_mean || finish.normalize == BY_UTTERANCE;
        let mut room = |bytes: usize| self.reserve(bytes).map(|offset| Address(offset as u64));
        let output = room(tensor.shape.iter().product::<usize>() * finish.real.bytes())?;
        let mut arguments = FeatureArguments {
            input: Address(input as u64),
            output,
            lengths,
            chunks: Address::NULL,
            stats: Address::NULL,
            row_means: Address::NULL,
            scales,
            masks,
            rows: narrow(rows)?,
            frames: narrow(frames)?,
            features: narrow(finish.features)?,
            feature_major: u32::from(finish.feature_major),
            chunk_count: narrow(chunk_count)?,
            masks_per_row: finish.masks_per_row(),
            normalize: finish.normalize,
            normalize_vars: u32::from(finish.normalize_vars),
            epsilon: finish.epsilon,
            mask_value: finish.mask_value().unwrap_or(0.0),
            mask_with_mean: u32::from(with_mean),
        };
        if with_stats {
            arguments.chunks = room(rows * chunk_count * finish.features * 16)?;
            arguments.stats = room(rows * finish.features * 16)?;
            arguments.row_means = room(rows * 4)?;
            self.launches.push(Launch::FeatureChunks(arguments));
            self.launches.push(Launch::FeatureStatistics(arguments));
            if with_mean {
                self.launches.push(Launch::FeatureRowMeans(arguments));
            }
        }
        self.launches.push(Launch::Features { real: finish.real, arguments });
        #[expect(clippy::cast_possible_truncation, reason = "an offset that was a usize before")]
        let offset = output.0 as usize;
        self.push_rows(tensor, finish.real.into(), offset);
        Ok(())
    }
}

/// feedstock's own columns beside the data set's.
pub(crate) const SAMPLE_IDS: &str = "sample_ids";
pub(crate) const VALID: &str = "valid";
pub(crate) const MIX_WEIGHT: &str = "mix_weight";

/// The column of labels that were mixed in.
pub(crate) fn partner_column(labels: &str) -> String {
    format!("{labels}_partner")
}

pub(crate) fn no_labels(labels: &str) -> Error {
    let message = format!("mix: the batch has no column '{labels}' of numbers; name it with mix.labels");
    Error::new(ErrorKind::BadConfig, message)
}

/// Where what a column's kernels need is staged.
enum Prepared {
    Nothing,
    Picture { plan: Address },
    Features { lengths: Address, scales: Address, masks: Address },
}

/// The rows of a column that is left to the device in part.
struct SplitRows {
    /// Of a row, as pixels.
    spec: TensorSpec,
    rows: usize,
    /// Rows that are pixels, and where they are.
    pixels: Vec<(usize, Source)>,
    undecoded: Vec<Undecoded>,
    /// [`CropRow`] × `count`.
    table: Address,
    count: u32,
}

/// A mapped column as it will be, whatever its slot holds: rows first.
struct Rows<'a> {
    name: &'a str,
    dtype: DType,
    shape: Vec<usize>,
    lengths: Option<&'a [usize]>,
    padded_axis: Option<usize>,
}

impl<'a> Rows<'a> {
    fn of(tensor: &'a Tensor) -> Self {
        let (lengths, padded_axis) = (tensor.lengths(), tensor.padded_axis());
        Self { name: tensor.name(), dtype: tensor.dtype, shape: tensor.shape(), lengths, padded_axis }
    }

    /// Of pictures that are not decoded yet.
    fn pixels(tensor: &'a Tensor, spec: &TensorSpec) -> Self {
        let shape = std::iter::once(tensor.rows).chain(spec.shape.iter().copied()).collect();
        Self { name: tensor.name(), dtype: spec.dtype, shape, lengths: None, padded_axis: None }
    }
}

fn frames_of(shape: &[usize], finish: &CompiledFeatures) -> usize {
    shape[1 + usize::from(finish.feature_major)]
}
