//! A finished batch, viewed in place.

use crate::numbers::Numbers;
use crate::slots::{Lease, PlacedColumn};
use crate::{Error, ErrorKind, Result};
use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, ListArray, UInt8Array,
    UInt16Array, UInt64Array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float32Type, Int64Type, Schema, UInt8Type, UInt16Type,
};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Position, SampleId};
use feedstock_device::tensor::{DeviceBatch, DeviceTensor, StreamHandle};
use feedstock_ops::DType;
use std::collections::HashMap;
use std::fmt;
use std::ops::Index;
use std::ptr::NonNull;
use std::sync::Arc;

/// One rank's share of one global step.
///
/// Mapped columns are [`Tensor`]s in the batch's slot (`batch["image"]`); all others are Arrow arrays
/// ([`Batch::columns`]). Dropping the batch, and every view taken from it, frees the slot.
///
/// If the pipeline has a device, mapped columns and all columns of numbers are [`DeviceTensor`]s
/// ([`Batch::device_tensor`]) instead. The Arrow arrays also stay in host memory.
///
/// ```
/// use arrow::array::AsArray;
/// use arrow::datatypes::Int64Type;
/// use feedstock_dataset::Rank;
/// use feedstock_ops::{decode_image, resize};
/// use feedstock_trainer_bridge::{BatchSize, Dataset};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
/// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
/// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
/// assert_eq!(batch["image"].as_u8().unwrap().len(), 4 * 32 * 32 * 3);
/// assert_eq!(batch.column("label").unwrap().as_primitive::<Int64Type>().len(), 4);
/// assert!(batch.tensor("mask").is_none());
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
pub struct Batch {
    pub(crate) epoch: u64,
    pub(crate) position: Position,
    pub(crate) next: Position,
    pub(crate) sample_ids: Vec<SampleId>,
    pub(crate) padding: Vec<bool>,
    pub(crate) valid: Vec<bool>,
    /// In order.
    pub(crate) substitutes: Vec<usize>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) columns: RecordBatch,
    /// By mapped column, the elements along the padded axis: those of samples, and all.
    pub(crate) padded: Vec<(u64, u64)>,
    /// Held even if nothing is mapped, since a batch is the credit for one step. `None` once the batch is on a device.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) device: Option<Box<DeviceBatch>>,
}

impl Batch {
    /// Returns the number of rows, including padding and substitutes.
    #[expect(clippy::len_without_is_empty, reason = "a batch has at least one row")]
    pub fn len(&self) -> usize {
        self.sample_ids.len()
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the first global position of its step.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the first global position of the next step.
    pub fn next_position(&self) -> Position {
        self.next
    }

    /// Returns the sample that each row represents, in row order.
    pub fn sample_ids(&self) -> &[SampleId] {
        &self.sample_ids
    }

    /// Returns a flag for each row. It is false for padding and for substitutes of unusable samples: leave such rows out of
    /// losses and counts.
    pub fn valid(&self) -> &[bool] {
        &self.valid
    }

    /// Returns the rows, in order, whose sample is unusable, also among those of padding. They have the content of the nearest
    /// row that is not one of them.
    pub fn substitutes(&self) -> &[usize] {
        &self.substitutes
    }

    /// Returns the mapped column `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Returns the column `name` on the device: a mapped column, a column of numbers, `sample_ids` (i64) or `valid` (bool).
    pub fn device_tensor(&self, name: &str) -> Option<&DeviceTensor> {
        self.device_tensors().iter().find(|tensor| tensor.name() == name)
    }

    /// Returns all columns on the device; none if the pipeline has no device.
    pub fn device_tensors(&self) -> &[DeviceTensor] {
        self.device.as_ref().map_or(&[], |device| device.tensors())
    }

    /// Prepares `stream` for work that uses the batch: see [`DeviceTensor::use_on`]. Does nothing if the pipeline has no
    /// device.
    ///
    /// # Errors
    /// As [`DeviceTensor::use_on`].
    pub fn use_on(&self, stream: StreamHandle) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| device.use_on(stream))
    }

    /// As [`use_on`](Self::use_on). With [fixed addresses](crate::DeviceOptions::fixed_addresses), it also copies the batch
    /// over the previous one, in the order of `stream`. Call it once per batch, before taking its tensors.
    ///
    /// # Errors
    /// As `use_on`. `BadConfig` if addresses are fixed and the shapes differ from the first batch's.
    pub fn settle(&mut self, stream: StreamHandle) -> Result<()> {
        self.device.as_mut().map_or(Ok(()), |device| device.settle(stream))
    }

    /// Returns all mapped columns, in the order of the maps; none if the pipeline has a device.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the unmapped columns of the data set, such as labels and paths.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// Returns the unmapped column `name`.
    pub fn column(&self, name: &str) -> Option<&ArrayRef> {
        self.columns.column_by_name(name)
    }

    /// Returns the unmapped column `name` in the form of a tensor, or `None` if it is a list or does not exist.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset, Element};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let batch = dataset.batch(BatchSize::per_rank(4)).rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// let label = batch.numbers("label").unwrap();
    /// assert_eq!((label.element(), label.shape(), label.bytes().len()), (Element::I64, &[4][..], 32));
    /// assert!(batch.numbers("image").is_none());
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn numbers(&self, name: &str) -> Option<Numbers> {
        let (place, field) = self.columns.schema_ref().column_with_name(name)?;
        Numbers::of(field, self.columns.column(place))
    }

    /// Returns the batch as Arrow: `sample_id` (UInt64), `valid` (Boolean), the tensors as `arrow.fixed_shape_tensor`
    /// columns (lists of images as lists of such tensors), then the unmapped columns. The tensors are views of the slot, without a
    /// copy.
    ///
    /// The views keep the slot busy until they are dropped.
    ///
    /// ```
    /// use arrow::datatypes::DataType;
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_image, resize};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
    /// let rows = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?.to_record_batch()?;
    /// assert_eq!((rows.num_rows(), rows.schema().field(0).name().as_str()), (4, "sample_id"));
    /// assert!(matches!(rows["image"].data_type(), DataType::FixedSizeList(_, 3_072))); // 32 × 32 × 3
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if the data set has a column of one of those names, or the pipeline has a device.
    pub fn to_record_batch(&self) -> Result<RecordBatch> {
        if self.device.is_some() {
            let message = "the batch is on a device, and Arrow batches are in host memory: take its columns (device_tensor, \
                           columns), or make the loader without a device";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let taken = |name: &&str| self.column(name).is_some() || self.tensor(name).is_some();
        if let Some(name) = ["sample_id", "valid"].iter().find(|name| taken(name)) {
            let message = format!(
                "the data set has a column '{name}', a name that Arrow batches of feedstock need; leave it out with \
                 Dataset::columns, or give the map's result another name"
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let ids: UInt64Array = self.sample_ids.iter().map(|id| id.0).collect();
        let mut fields = vec![
            Arc::new(Field::new("sample_id", DataType::UInt64, false)),
            Arc::new(Field::new("valid", DataType::Boolean, false)),
        ];
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(BooleanArray::from(self.valid.clone()))];
        for tensor in &self.tensors {
            let array = tensor.to_arrow()?;
            fields.push(Arc::new(tensor.field(array.data_type())));
            arrays.push(array);
        }
        fields.extend(self.columns.schema().fields().iter().cloned());
        arrays.extend(self.columns.columns().iter().cloned());
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot view the batch as Arrow: {e}")))
    }
}

impl Index<&str> for Batch {
    type Output = Tensor;

    /// Returns the mapped column `name`.
    ///
    /// # Panics
    /// If no map has that name. [`Batch::tensor`] does not panic.
    fn index(&self, name: &str) -> &Tensor {
        match self.tensor(name) {
            Some(tensor) => tensor,
            #[expect(clippy::panic, reason = "indexing panics, as in std")]
            None => panic!(
                "no mapped column '{name}' in the slot of {self:?} (device_tensor has those of devices)"
            ),
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> = self.columns.schema().fields().iter().map(|f| f.name().clone()).collect();
        write!(f, "Batch(epoch {}, position {}, {} rows, ", self.epoch, self.position, self.len())?;
        match &self.device {
            None => write!(f, "{:?}, columns {columns:?})", self.tensors),
            Some(device) => write!(f, "{:?}, columns {columns:?})", device.tensors()),
        }
    }
}

/// A mapped column of a batch: rows × the shape of one row, row-major, contiguous, the first row on a page.
///
/// Rows of different lengths (waveforms, features, tokens) are padded to the longest of the batch.
/// [`lengths`](Self::lengths) returns their lengths. Lists of images are not padded: the tensor has the images of all rows, one
/// after another, and `lengths` returns the number of images of each row.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) ragged_axis: Option<usize>,
    pub(crate) is_list: bool,
    /// The length of the first axis: see [`PlacedColumn::rows`].
    pub(crate) rows: usize,
    pub(crate) placed: Arc<PlacedColumn>,
    pub(crate) lease: Arc<Lease>,
}

impl Tensor {
    /// Returns the column's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns its shape, rows first: `[256, 224, 224, 3]`, or `[32, 512, 80]` if the batch's longest row has 512 frames. For
    /// lists of images, the first axis counts the images of all rows. It is 0 if no row has one.
    pub fn shape(&self) -> Vec<usize> {
        std::iter::once(self.rows).chain(self.placed.shape.iter().copied()).collect()
    }

    /// Returns the length of each row along [`padded_axis`](Self::padded_axis) (samples, frames, tokens), or its number of images
    /// ([`is_list`](Self::is_list)). `None` if all rows have a fixed length. The batch's column `<name>_length` has them, too.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_audio, log_mel, resample};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    /// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    /// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
    /// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
    /// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
    /// # }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, samples) in [("1.wav", 4_000), ("2.wav", 16_000), ("3.wav", 4_000), ("4.wav", 16_000)] {
    /// #     std::fs::write(folder.path().join(name), wav(16_000, &vec![0; samples])).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // WAVs of 0.25, 1, 0.25 and 1 s
    /// let pipeline = dataset.map("audio", [decode_audio(), resample(16_000), log_mel(80)]).batch(BatchSize::per_rank(2));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// let features = &batch["audio"];
    /// assert_eq!((features.shape(), features.padded_axis()), (vec![2, 100, 80], Some(1)));
    /// assert_eq!(features.lengths().unwrap(), [25, 100]);
    /// assert_eq!(batch.numbers("audio_length").unwrap().shape(), [2]); // the same, as a column
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn lengths(&self) -> Option<&[usize]> {
        self.placed.lengths.as_deref()
    }

    /// Returns true if each row has a list of images. The first axis then has the images of row 0, those of row 1 and so on.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// Returns the axis of [`shape`](Self::shape) along which short rows are padded; `None` for lists of images.
    pub fn padded_axis(&self) -> Option<usize> {
        self.ragged_axis.filter(|_| !self.is_list).map(|axis| axis + 1)
    }

    /// Returns all bytes, row-major, in the machine's byte order.
    pub fn bytes(&self) -> &[u8] {
        let start = self.lease.at(self.placed.part, self.placed.offset);
        // SAFETY: the lease holds a finished slot, whose rows no task writes, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.rows * self.row_bytes()) }
    }

    /// Returns the start of its memory: `rows × bytes of a row` bytes. The slot lends them to this batch alone while a clone
    /// of the tensor lives. While anything writes there, do not use [`bytes`](Self::bytes) or the other views.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.lease.at(self.placed.part, self.placed.offset)
    }

    /// Returns the bytes of one row, including padding; for a list, those of all its images.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        let (first, count) = match self.lengths().filter(|_| self.is_list) {
            Some(lengths) => (lengths[..row].iter().sum(), lengths[row]),
            None => (row, 1),
        };
        &self.bytes()[first * bytes..(first + count) * bytes]
    }

    /// Returns the elements, if they are `u8`.
    pub fn as_u8(&self) -> Option<&[u8]> {
        (self.dtype == DType::U8).then(|| self.bytes())
    }

    /// Returns the elements, if they are `u16`.
    pub fn as_u16(&self) -> Option<&[u16]> {
        let bytes = self.bytes();
        // SAFETY: page-aligned, initialised by the ops, and any bits are a u16.
        let integers = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u16>(), bytes.len() / 2) };
        (self.dtype == DType::U16).then_some(integers)
    }

    /// Returns the elements, if they are `f32`.
    pub fn as_f32(&self) -> Option<&[f32]> {
        let bytes = self.bytes();
        // SAFETY: page-aligned, initialised by the ops, and any bits are an f32.
        let floats = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<f32>(), bytes.len() / 4) };
        (self.dtype == DType::F32).then_some(floats)
    }

    /// Returns the elements, if they are `i64`.
    pub fn as_i64(&self) -> Option<&[i64]> {
        let bytes = self.bytes();
        // SAFETY: page-aligned, initialised by the ops, and any bits are an i64.
        let integers = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<i64>(), bytes.len() / 8) };
        (self.dtype == DType::I64).then_some(integers)
    }

    /// Copies to each row the content and length of the row that `sources` names for it. A row without one becomes zeros, or
    /// empty if it is ragged.
    ///
    /// # Safety
    /// Nothing else uses the slot.
    ///
    /// # Panics
    /// If rows are lists of images: they differ in size.
    pub(crate) unsafe fn copy_rows(&mut self, sources: &[Option<usize>]) {
        assert!(!self.is_list, "lists of images are joined, so their rows cannot be copied in place");
        let (start, bytes) = (self.as_ptr(), self.row_bytes());
        for (row, from) in sources.iter().enumerate().filter(|(row, from)| **from != Some(*row)) {
            // SAFETY: the caller's contract. Two rows of the slot do not overlap.
            unsafe {
                let target = start.add(row * bytes).as_ptr();
                match from {
                    Some(from) => {
                        std::ptr::copy_nonoverlapping(start.add(from * bytes).as_ptr(), target, bytes);
                    }
                    None => std::ptr::write_bytes(target, 0, bytes),
                }
            }
            if let Some(lengths) = &mut Arc::make_mut(&mut self.placed).lengths {
                lengths[row] = from.map_or(0, |from| lengths[from]);
            }
        }
    }

    /// Returns the bytes of all rows.
    pub(crate) fn byte_len(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Returns the elements along the padded axis: those of samples, and all.
    pub(crate) fn padding(&self) -> (u64, u64) {
        match (self.lengths(), self.padded_axis()) {
            (Some(lengths), Some(axis)) => {
                let own = lengths.iter().map(|&length| length as u64).sum();
                (own, (self.rows * self.shape()[axis]) as u64)
            }
            _ => (0, 0),
        }
    }

    fn row_elements(&self) -> usize {
        self.placed.shape.iter().product()
    }

    fn row_bytes(&self) -> usize {
        self.row_elements() * self.dtype.bytes()
    }

    /// Returns the column as a `FixedSizeList`, or for lists of images as a `List` of them: a view of the slot.
    fn to_arrow(&self) -> Result<ArrayRef> {
        match self.dtype {
            DType::U8 => self.list::<UInt8Type>(|values| Arc::new(UInt8Array::new(values, None))),
            DType::U16 => self.list::<UInt16Type>(|values| Arc::new(UInt16Array::new(values, None))),
            DType::F32 => self.list::<Float32Type>(|values| Arc::new(Float32Array::new(values, None))),
            DType::I64 => self.list::<Int64Type>(|values| Arc::new(Int64Array::new(values, None))),
            other => Err(Error::new(ErrorKind::Bug, format!("no Arrow view for {other:?} tensors"))),
        }
    }

    fn list<T: ArrowPrimitiveType>(
        &self,
        array: impl Fn(ScalarBuffer<T::Native>) -> ArrayRef,
    ) -> Result<ArrayRef> {
        let bytes = self.rows * self.row_bytes();
        let start = self.lease.at(self.placed.part, self.placed.offset);
        // SAFETY: `bytes` bytes at `start` are initialised and stay so while the lease, which Arrow now owns, lives.
        let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, self.lease.clone()) };
        let values = array(ScalarBuffer::from(buffer));
        let item = Arc::new(Field::new("item", T::DATA_TYPE, false));
        let bug =
            |what: String| Error::new(ErrorKind::Bug, format!("cannot view {} as Arrow: {what}", self.name));
        let width = i32::try_from(self.row_elements()).map_err(|e| bug(e.to_string()))?;
        let list = FixedSizeListArray::try_new(item, width, values, None).map_err(|e| bug(e.to_string()))?;
        let Some(lengths) = self.lengths().filter(|_| self.is_list) else { return Ok(Arc::new(list)) };
        if i32::try_from(self.rows).is_err() {
            return Err(bug(format!("it has {} images, over 2^31", self.rows)));
        }
        let image = Arc::new(self.tensor_field("item", list.data_type()));
        let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
        let lists =
            ListArray::try_new(image, offsets, Arc::new(list), None).map_err(|e| bug(e.to_string()))?;
        Ok(Arc::new(lists))
    }

    fn field(&self, data_type: &DataType) -> Field {
        match self.is_list {
            true => Field::new(&self.name, data_type.clone(), false),
            false => self.tensor_field(&self.name, data_type),
        }
    }

    /// Returns the field of tensors of the shape of one row, or of one image.
    fn tensor_field(&self, name: &str, data_type: &DataType) -> Field {
        let shape = serde_json::json!({ "shape": self.placed.shape }).to_string();
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), shape),
        ]);
        Field::new(name, data_type.clone(), false).with_metadata(metadata)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} {:?}", self.name, self.dtype, self.shape())
    }
}
