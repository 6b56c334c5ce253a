//! The kernels that finish columns, and their inputs.

use super::BufferLayout;
use super::names::{MIX_WEIGHT, no_labels, partner_column};
use super::parts::{KernelInputs, MappedRows, frames_of, narrow, row_major, too_large};
use super::plain::bytes_of;
use crate::Result;
use crate::batch::Tensor;
use crate::sink::Assembled;
use feedstock_device::Element;
use feedstock_device::finish::{Compiled, CompiledFeatures, CompiledPicture, Drawn, PictureLayout};
use feedstock_device::handles::Address;
use feedstock_device::kernels::{BY_UTTERANCE, CHUNK_FRAMES, FeatureArguments, Launch, PictureArguments};
use feedstock_device::tensor::Column;

impl BufferLayout {
    /// Draws and stages the inputs of a column's kernels.
    pub(super) fn prepare(
        &mut self,
        assembled: &Assembled,
        tensor: &Tensor,
        finish: Option<&Compiled>,
        seed: u64,
    ) -> Result<KernelInputs> {
        let batch = &assembled.batch;
        let rows = narrow(tensor.rows)?;
        match finish {
            None => Ok(KernelInputs::Nothing),
            Some(Compiled::Picture(finish)) => {
                let drawn = finish.mixing.as_ref().map(|mix| mix.draw(seed, batch.epoch, batch.position.0));
                // Views of a row follow each other; rows that are mixed have one image each.
                let images = assembled.seeds.iter().take(tensor.rows).flat_map(|seed| finish.mirrored(*seed));
                let plan: Vec<_> = (0..u32::MAX)
                    .zip(images)
                    .map(|(image, mirrored)| {
                        drawn.map_or_else(
                            || Drawn::plain(image, mirrored),
                            |drawn| drawn.row(image, rows, mirrored),
                        )
                    })
                    .collect();
                if let (Some(mix), Some(drawn)) = (&finish.mixing, drawn) {
                    self.stage_partners(mix.labels(), drawn, rows)?;
                }
                Ok(KernelInputs::Picture { plan: self.stage_values(&plan) })
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
                Ok(KernelInputs::Features {
                    lengths: self.stage_values(&lengths),
                    scales: self.stage_values(&scales),
                    masks: self.stage_values(&masks),
                })
            }
        }
    }

    /// Stages the labels of the rows that were mixed in, and the weight of each row's own label.
    pub(super) fn stage_partners(&mut self, labels: &str, drawn: Drawn, rows: u32) -> Result<()> {
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

    pub(super) fn finish_pictures(
        &mut self,
        tensor: &MappedRows<'_>,
        finish: &CompiledPicture,
        input: usize,
        plan: Address,
    ) -> Result<()> {
        let CompiledPicture { real, height, width, scale, bias, .. } = *finish;
        let (rows, image) = (tensor.shape[0], height * width * 3);
        let shape: Vec<usize> = [rows].into_iter().chain(finish.views).chain([3, height, width]).collect();
        let offset = self.reserve(shape.iter().product::<usize>() * real.bytes())?;
        let planes = finish.layout == PictureLayout::Planes;
        let strides = match (planes, finish.views) {
            (true, _) => row_major(&shape),
            (false, None) => vec![image, 1, width * 3, 3],
            (false, Some(views)) => vec![views * image, image, 1, width * 3, 3],
        };
        narrow(image)?; // elements of an image
        let rows = narrow(rows.checked_mul(finish.views.unwrap_or(1)).ok_or_else(too_large)?)?;
        let (height, width) = (narrow(height)?, narrow(width)?);
        let (input, output) = (Address(input as u64), Address(offset as u64));
        let mixes = u32::from(finish.mixing.is_some());
        let arguments = PictureArguments { input, output, plan, rows, height, width, mixes, scale, bias };
        self.launches.push(Launch::Pictures { real, planes, arguments });
        let (name, element) = (tensor.name.to_owned(), real.into());
        self.columns.push(Column { name, element, shape, strides, lengths: None, padded_axis: None, offset });
        Ok(())
    }

    pub(super) fn finish_features(
        &mut self,
        tensor: &MappedRows<'_>,
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
