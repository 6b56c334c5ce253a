//! Reads rows of an uncompressed record batch by the ranges of its buffers that they need.
//!
//! `datasets` writes batches of up to 1,000 rows: 110 MB of images. A batch's message states where each buffer is.
//! Fixed-width buffers, validity bits and offsets are cut by arithmetic. The places of the values of a run of rows are read
//! from the offsets once, when the catalog is built. So a block is one coalesced read, of the requested columns only.

use super::super::sides::Side;
use crate::cache::RangeReader;
use crate::catalog::columns::Origin;
use crate::{Error, ObjectRef, Result, Storage};
use arrow::array::{ArrayData, ArrayDataBuilder, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

type Span = Range<u64>;

/// Most bytes a row of a small buffer: numbers, offsets, file names.
const SMALL_ROW_BYTES: u64 = 64;
/// Buffers end at a multiple of it.
const PADDING_BYTES: u64 = 64;

/// A run of rows that is one block: from `row` to the next cut.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cut {
    pub(super) row: u64,
    pub(super) bytes: u64,
    /// For each variable-width column, in the schema's order: where its values are in their buffer.
    extents: Vec<Span>,
}

/// Where the buffers of one column are, relative to the batch's body.
enum Shape {
    Null,
    Bits { validity: Option<Span>, bits: Span },
    Fixed { validity: Option<Span>, data: Span, width: u64 },
    Variable { validity: Option<Span>, offsets: Span, values: Span, width: u64, index: usize },
    Struct { validity: Option<Span>, children: Vec<Shape> },
}

/// The columns of one batch.
pub(super) struct Shapes(Vec<Shape>);

impl Shapes {
    /// Returns `None` if the batch cannot be cut: it is compressed, or has lists, dictionaries, views or unions.
    pub(super) fn of(schema: &Schema, batch: &arrow_ipc::RecordBatch<'_>) -> Result<Option<Self>, String> {
        if batch.compression().is_some() || !schema.fields().iter().all(|f| width_of(f.data_type()).is_some())
        {
            return Ok(None);
        }
        let span = |offset: i64, length: i64| {
            let start = u64::try_from(offset).ok()?;
            Some(start..start.checked_add(u64::try_from(length).ok()?)?)
        };
        let buffers: Option<Vec<Span>> =
            batch.buffers().unwrap_or_default().iter().map(|b| span(b.offset(), b.length())).collect();
        let mut walk = Walk {
            nulls: batch
                .nodes()
                .unwrap_or_default()
                .iter()
                .map(|n| n.null_count())
                .collect::<Vec<_>>()
                .into_iter(),
            buffers: buffers.ok_or("a negative buffer")?.into_iter(),
            variable: 0,
        };
        let shapes: Option<Vec<Shape>> = schema.fields().iter().map(|f| walk.shape(f.data_type())).collect();
        shapes.map(|s| Some(Self(s))).ok_or_else(|| "fewer buffers than its schema needs".to_owned())
    }

    fn variables(&self) -> Vec<(&Span, &Span, u64)> {
        self.0.iter().flat_map(variables_of).collect()
    }

    /// Reads where the values of `rows` are from the offsets of the columns that `origins` need: for rows that are not a
    /// run of cuts, such as a single sample. They are in the schema's order; columns that are not needed have no values.
    pub(super) async fn extents(
        &self,
        origins: &[Origin],
        rows: &Span,
        body: u64,
        object: &ObjectRef,
        (side, reader): (&Side, &RangeReader),
    ) -> Result<Vec<Span>> {
        let bad = |what: &str| Error::damage(format!("{}: {what}; the file is damaged", object.uri));
        let mut wanted: Vec<(usize, Span, &Span, u64)> = Vec::new();
        let mut index = 0;
        for (i, shape) in self.0.iter().enumerate() {
            for (offsets, values, width) in variables_of(shape) {
                if origins.iter().any(|o| o.top_level() == i) {
                    let span = offsets.start + rows.start * width..offsets.start + (rows.end + 1) * width;
                    if span.end > offsets.end {
                        return Err(bad("offsets shorter than the batch"));
                    }
                    wanted.push((index, body + span.start..body + span.end, values, width));
                }
                index += 1;
            }
        }
        let spans: Vec<Span> = wanted.iter().map(|(_, span, ..)| span.clone()).collect();
        let bytes = side.read_ranges(object, &spans, reader).await?;
        let mut extents = vec![0..0; index];
        for ((index, _, values, width), bytes) in wanted.into_iter().zip(bytes) {
            let offsets = if width == 4 { offsets_of::<4>(&bytes) } else { offsets_of::<8>(&bytes) };
            let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { continue };
            if first > last || last > values.end - values.start {
                return Err(bad("offsets that decrease, or are past their values"));
            }
            extents[index] = first..last;
        }
        Ok(extents)
    }

    /// Returns where the small buffers of the columns that `origins` need are in the object, whose batch has its body at `body`:
    /// all but payloads and long texts.
    pub(super) fn small(&self, origins: &[Origin], rows: u64, body: Span) -> Result<Vec<Span>, String> {
        let most = rows.saturating_mul(SMALL_ROW_BYTES).saturating_add(PADDING_BYTES);
        let needed = self.0.iter().enumerate().filter(|(i, _)| origins.iter().any(|o| o.top_level() == *i));
        let buffers = needed.flat_map(|(_, shape)| buffers_of(shape));
        let small = buffers.filter(|span| !span.is_empty() && span.end - span.start <= most).map(|span| {
            let in_object = body.start.checked_add(span.start)?..body.start.checked_add(span.end)?;
            (in_object.end <= body.end).then_some(in_object)
        });
        small.collect::<Option<_>>().ok_or_else(|| "a buffer is outside its batch".to_owned())
    }

    /// Returns the spans of the body that `origins` need for `rows`, whose values are at `extents`, and how to make columns
    /// of them.
    pub(super) fn plan(
        &self,
        origins: &[Origin],
        rows: &Span,
        extents: &[Span],
    ) -> Result<(Vec<Span>, Pieces), String> {
        let mut plan = Plan { spans: Vec::new(), rows, extents };
        let mut columns = Vec::new();
        for (i, shape) in self.0.iter().enumerate() {
            let of_this = origins.iter().filter(|o| o.top_level() == i);
            let children: Vec<Option<usize>> = of_this.map(|o| o.child()).collect();
            if children.is_empty() {
                continue;
            }
            let wanted =
                (!children.contains(&None)).then(|| children.into_iter().flatten().collect::<Vec<_>>());
            columns.push((i, plan.piece(shape, wanted.as_deref())?));
        }
        Ok((plan.spans, Pieces(columns)))
    }
}

/// Returns all buffers of a shape.
fn buffers_of(shape: &Shape) -> Vec<&Span> {
    match shape {
        Shape::Null => Vec::new(),
        Shape::Bits { validity, bits } => validity.iter().chain([bits]).collect(),
        Shape::Fixed { validity, data, .. } => validity.iter().chain([data]).collect(),
        Shape::Variable { validity, offsets, values, .. } => {
            validity.iter().chain([offsets, values]).collect()
        }
        Shape::Struct { validity, children } => {
            validity.iter().chain(children.iter().flat_map(buffers_of)).collect()
        }
    }
}

/// Returns offsets, values and the offsets' width of a shape's columns of variable width, in the schema's order.
fn variables_of(shape: &Shape) -> Vec<(&Span, &Span, u64)> {
    match shape {
        Shape::Variable { offsets, values, width, .. } => vec![(offsets, values, *width)],
        Shape::Struct { children, .. } => children.iter().flat_map(variables_of).collect(),
        _ => Vec::new(),
    }
}

/// Returns where the values of `rows` are, if these are a run of cuts of a batch of `batch_rows`.
pub(super) fn extents_of_cuts(rows: &Span, cuts: &[Cut], batch_rows: u64) -> Option<Vec<Span>> {
    let first = cuts.iter().find(|c| c.row == rows.start)?;
    let last = cuts.iter().rev().find(|c| c.row < rows.end)?;
    let end = cuts.iter().find(|c| c.row > last.row).map_or(batch_rows, |next| next.row);
    (end == rows.end).then(|| first.extents.iter().zip(&last.extents).map(|(a, b)| a.start..b.end).collect())
}

/// Returns the bytes a row of a fixed-width type; 0 for types that are cut otherwise; `None` for types that are not cut.
fn width_of(kind: &DataType) -> Option<u64> {
    match kind {
        DataType::Null
        | DataType::Boolean
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary => Some(0),
        DataType::FixedSizeBinary(width) => u64::try_from(*width).ok(),
        DataType::Struct(children) => children.iter().all(|c| width_of(c.data_type()).is_some()).then_some(0),
        other => other.primitive_width().map(|w| w as u64),
    }
}

struct Walk<N, B> {
    nulls: N,
    buffers: B,
    variable: usize,
}

impl<N: Iterator<Item = i64>, B: Iterator<Item = Span>> Walk<N, B> {
    fn shape(&mut self, kind: &DataType) -> Option<Shape> {
        let nulls = self.nulls.next()?;
        if *kind == DataType::Null {
            return Some(Shape::Null);
        }
        let validity = self.buffers.next()?;
        let validity = (nulls > 0 && validity.start < validity.end).then_some(validity);
        Some(match kind {
            DataType::Boolean => Shape::Bits { validity, bits: self.buffers.next()? },
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
                let width = if matches!(kind, DataType::Utf8 | DataType::Binary) { 4 } else { 8 };
                let (offsets, values) = (self.buffers.next()?, self.buffers.next()?);
                self.variable += 1;
                Shape::Variable { validity, offsets, values, width, index: self.variable - 1 }
            }
            DataType::Struct(children) => {
                let children: Option<Vec<Shape>> =
                    children.iter().map(|c| self.shape(c.data_type())).collect();
                Shape::Struct { validity, children: children? }
            }
            other => Shape::Fixed { validity, data: self.buffers.next()?, width: width_of(other)? },
        })
    }
}

/// Cuts the rows of a batch into blocks of at most `target` bytes, or of one row. Reads the offsets of its variable-width
/// columns, unless all of it is one block.
pub(super) async fn cuts(
    shapes: &Shapes,
    rows: u64,
    body: u64,
    target: u64,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<Vec<Cut>> {
    let variables = shapes.variables();
    if target == u64::MAX {
        let extents = variables.iter().map(|(_, values, _)| 0..values.end - values.start).collect();
        return Ok(vec![Cut { row: 0, bytes: 0, extents }]);
    }
    let bad = |what: &str| Error::damage(format!("{}: {what}; the file is damaged", object.uri));
    let wanted: Vec<Span> = variables
        .iter()
        .map(|(offsets, _, width)| {
            let end = offsets.start + (rows + 1) * width;
            (end <= offsets.end).then(|| body + offsets.start..body + end)
        })
        .collect::<Option<_>>()
        .ok_or_else(|| bad("offsets shorter than the batch"))?;
    let bytes = storage.read_ranges(object, &wanted).await?;
    let mut columns: Vec<Vec<u64>> = Vec::with_capacity(variables.len());
    for (bytes, (_, values, width)) in bytes.iter().zip(&variables) {
        let offsets = if *width == 4 { offsets_of::<4>(bytes) } else { offsets_of::<8>(bytes) };
        if !offsets.is_sorted() || offsets.last().is_some_and(|&end| end > values.end - values.start) {
            return Err(bad("offsets that decrease, or are past their values"));
        }
        columns.push(offsets);
    }
    let fixed = shapes.0.iter().map(fixed_bytes).sum::<u64>();
    let values = |row: usize| columns.iter().map(|offsets| offsets[row]).sum::<u64>();
    let rows = usize::try_from(rows).map_err(|_| bad("more rows than this machine can address"))?;
    let cut = |from: usize, to: usize| Cut {
        row: from as u64,
        bytes: values(to) - values(from) + fixed * (to - from) as u64,
        extents: columns.iter().map(|offsets| offsets[from]..offsets[to]).collect(),
    };
    let mut cuts = Vec::new();
    let mut start = 0;
    for row in 1..=rows {
        let full = row < rows && values(row + 1) - values(start) + fixed * (row + 1 - start) as u64 > target;
        if row == rows || full {
            cuts.push(cut(start, row));
            start = row;
        }
    }
    Ok(cuts)
}

fn offsets_of<const W: usize>(bytes: &Bytes) -> Vec<u64> {
    bytes
        .chunks_exact(W)
        .map(|b| {
            let mut wide = [0; 8];
            wide[..W].copy_from_slice(b); // a negative offset becomes huge and is rejected
            u64::from_le_bytes(wide)
        })
        .collect()
}

/// Returns the bytes a row in addition to variable-width values: offsets and fixed widths.
fn fixed_bytes(shape: &Shape) -> u64 {
    match shape {
        Shape::Null | Shape::Bits { .. } => 0,
        Shape::Fixed { width, .. } | Shape::Variable { width, .. } => *width,
        Shape::Struct { children, .. } => children.iter().map(fixed_bytes).sum(),
    }
}

/// How to make columns of the bytes that were read.
pub(super) struct Pieces(Vec<(usize, Piece)>);

/// One column; numbers are indices into the spans that were read.
struct Piece {
    validity: Option<usize>,
    body: Vec<usize>,
    /// Where the values that were read begin in their buffer; offsets are rebased to it.
    base: u64,
    /// The children of a struct that were read.
    children: Option<Vec<(usize, Piece)>>,
}

struct Plan<'a> {
    spans: Vec<Span>,
    rows: &'a Span,
    extents: &'a [Span],
}

impl Plan<'_> {
    fn need(&mut self, within: &Span, from: u64, to: u64) -> Result<usize, String> {
        let span = within.start + from..within.start + to;
        if span.start > span.end || span.end > within.end {
            return Err(format!(
                "a buffer of {} bytes, where byte {to} is needed",
                within.end - within.start
            ));
        }
        self.spans.push(span);
        Ok(self.spans.len() - 1)
    }

    fn bits(&mut self, within: &Span) -> Result<usize, String> {
        self.need(within, self.rows.start / 8, self.rows.end.div_ceil(8))
    }

    fn piece(&mut self, shape: &Shape, wanted: Option<&[usize]>) -> Result<Piece, String> {
        let validity = match shape {
            Shape::Null => None,
            Shape::Bits { validity, .. }
            | Shape::Fixed { validity, .. }
            | Shape::Variable { validity, .. }
            | Shape::Struct { validity, .. } => validity.as_ref(),
        };
        let validity = validity.map(|v| self.bits(v)).transpose()?;
        let mut children = None;
        let mut base = 0;
        let body = match shape {
            Shape::Null => Vec::new(),
            Shape::Bits { bits, .. } => vec![self.bits(bits)?],
            Shape::Fixed { data, width, .. } => {
                vec![self.need(data, self.rows.start * width, self.rows.end * width)?]
            }
            Shape::Variable { offsets, values, width, index, .. } => {
                let extent = self.extents.get(*index).ok_or("a column without extents")?.clone();
                base = extent.start;
                let offsets = self.need(offsets, self.rows.start * width, (self.rows.end + 1) * width)?;
                vec![offsets, self.need(values, extent.start, extent.end)?]
            }
            Shape::Struct { children: shapes, .. } => {
                let mut pieces = Vec::new();
                for (i, child) in shapes.iter().enumerate() {
                    if wanted.is_none_or(|w| w.contains(&i)) {
                        pieces.push((i, self.piece(child, None)?));
                    }
                }
                children = Some(pieces);
                Vec::new()
            }
        };
        Ok(Piece { validity, body, base, children })
    }
}

/// Builds a batch of the planned columns; a struct holds its planned children.
pub(super) fn build(
    schema: &Schema,
    pieces: &Pieces,
    bytes: &[Bytes],
    rows: &Span,
) -> Result<RecordBatch, String> {
    let count = usize::try_from(rows.end - rows.start).map_err(|e| e.to_string())?;
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    for (i, piece) in &pieces.0 {
        let data = array(schema.field(*i).data_type(), piece, bytes, rows, count)?;
        fields.push(Field::new(schema.field(*i).name(), data.data_type().clone(), true));
        columns.push(make_array(data));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|e| e.to_string())
}

fn array(
    kind: &DataType,
    piece: &Piece,
    bytes: &[Bytes],
    rows: &Span,
    count: usize,
) -> Result<ArrayData, String> {
    let bit = usize::try_from(rows.start % 8).map_err(|e| e.to_string())?;
    let nulls = piece
        .validity
        .map(|v| NullBuffer::new(BooleanBuffer::new(Buffer::from(bytes[v].clone()), bit, count)));
    let body = |i: usize| Buffer::from(bytes[piece.body[i]].clone());
    let mut kind = kind.clone();
    let mut builder = ArrayDataBuilder::new(kind.clone()).len(count).nulls(nulls).align_buffers(true);
    match &kind {
        DataType::Null => {}
        DataType::Boolean => {
            let bits = BooleanBuffer::new(body(0), bit, count);
            builder = builder.add_buffer(bits.sliced());
        }
        DataType::Utf8 | DataType::Binary => {
            let base = i32::try_from(piece.base).map_err(|_| "offsets past 2 GiB")?;
            let words = bytes[piece.body[0]].chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let rebased = words.map(|b| i32::from_le_bytes(b).wrapping_sub(base)).collect();
            builder = builder.add_buffer(rebased).add_buffer(body(1));
        }
        DataType::LargeUtf8 | DataType::LargeBinary => {
            let base = i64::try_from(piece.base).map_err(|_| "offsets past 2^63")?;
            let words = bytes[piece.body[0]].chunks_exact(8);
            let words = words.map(|b| [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
            let rebased = words.map(|b| i64::from_le_bytes(b).wrapping_sub(base)).collect();
            builder = builder.add_buffer(rebased).add_buffer(body(1));
        }
        DataType::Struct(fields) => {
            let mut kept = Vec::new();
            for (i, child) in piece.children.iter().flatten() {
                let data = array(fields[*i].data_type(), child, bytes, rows, count)?;
                kept.push(fields[*i].as_ref().clone().with_nullable(true));
                builder = builder.add_child_data(data);
            }
            kind = DataType::Struct(Fields::from(kept));
            builder = builder.data_type(kind);
        }
        _ => builder = builder.add_buffer(body(0)),
    }
    // Checks lengths, offsets and UTF-8: these bytes come from outside.
    builder.build().and_then(|data| data.validate_full().map(|()| data)).map_err(|e| e.to_string())
}
