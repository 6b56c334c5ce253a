//! Loads what ops refer to by URI: tokenizers, noise to mix into speech, and impulse responses of rooms.

use crate::raw::{RawBatches, RawOptions};
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, AsArray};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, OpenOptions, SampleId, Shuffle, Storage};
use feedstock_ops::audio::check_impulse_response;
use feedstock_ops::{
    Chain, ChainSpec, Need, Noise, RaggedRow, Resources, SampleSeed, Scratch, decode_audio, resample,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A tokenizer's file at most: those of 250,000-token vocabularies take about 17 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Decoded noise or impulse responses kept of one data set: 70 min at 16 kHz. Of a larger data set, audio clips are drawn from
/// all of it.
const NOISE_BYTES: usize = 256 << 20;

/// Audio clips of a noise data set that are read at a time.
const NOISE_ROWS: u64 = 16;

/// Resources that the clones of a pipeline share, so that each is loaded once a process.
#[derive(Clone, Default)]
pub(crate) struct Loaded(Arc<Mutex<Resources>>);

impl Loaded {
    /// Adds what the caller has loaded.
    pub(crate) fn given(resources: Resources) -> Self {
        Self(Arc::new(Mutex::new(resources)))
    }

    /// All that `needs` name, reading from storage what is not here yet; blocks while it does.
    pub(crate) fn load(&self, dataset: &Dataset, needs: impl Iterator<Item = Need>) -> Result<Resources> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner); // replaced whole
        for need in needs.collect::<BTreeSet<Need>>() {
            match &need {
                Need::File(uri) if loaded.file(uri).is_none() => {
                    *loaded = loaded.clone().with_file(uri, read_file(dataset, uri)?);
                }
                Need::Noise { uri, sample_rate }
                    if is_missing(loaded.noise(uri), "noise", uri, *sample_rate)? =>
                {
                    let noise = read_clips(dataset, uri, *sample_rate, "noise", |_| Ok(()))?;
                    *loaded = loaded.clone().with_noise(uri, noise);
                }
                Need::ImpulseResponses { uri, sample_rate } => {
                    let what = "reverb: impulse responses";
                    if is_missing(loaded.impulse_responses(uri), what, uri, *sample_rate)? {
                        let check = |clip: &[f32]| check_impulse_response(clip, *sample_rate);
                        let responses = read_clips(dataset, uri, *sample_rate, what, check)?;
                        *loaded = loaded.clone().with_impulse_responses(uri, responses);
                    }
                }
                _ => {}
            }
        }
        Ok(loaded.clone())
    }
}

fn read_file(dataset: &Dataset, uri: &str) -> Result<Arc<[u8]>> {
    let (storage, name) = (dataset.storage().clone(), uri.to_owned());
    let bytes = dataset.io().block_on(async move {
        let object = storage.head(&name).await?;
        if object.size > MAX_FILE_BYTES {
            return Err(feedstock_dataset::Error::new(
                ErrorKind::BadConfig,
                format!(
                    "{name} has {} bytes, over the {MAX_FILE_BYTES} that an op's file may have",
                    object.size
                ),
            ));
        }
        storage.read(&object, 0..object.size).await
    })?;
    Ok(bytes.as_ref().into())
}

/// Whether audio clips have to be read.
///
/// # Errors
/// `BadConfig` if they were loaded at another rate.
fn is_missing(loaded: Option<&Arc<Noise>>, what: &str, uri: &str, sample_rate: u32) -> Result<bool> {
    match loaded.map(|clips| clips.sample_rate) {
        None => Ok(true),
        Some(found) if found == sample_rate => Ok(false),
        Some(found) => Err(Error::new(
            ErrorKind::BadConfig,
            format!("{what} {uri}: loaded at {found} Hz, and a chain needs {sample_rate} Hz; resample first"),
        )),
    }
}

/// Decodes audio clips of a data set, drawn from all of it, until [`NOISE_BYTES`] are full. Errors start with `what`.
fn read_clips(
    dataset: &Dataset,
    uri: &str,
    sample_rate: u32,
    what: &str,
    check: impl Fn(&[f32]) -> Result<()>,
) -> Result<Noise> {
    let (storage, name): (Storage, _) = (dataset.storage().clone(), uri.to_owned());
    let noise = dataset.io().block_on(async move {
        let options = OpenOptions { storage: storage.options().clone(), ..OpenOptions::default() };
        Dataset::open_with(&name, options).await
    })?;
    let column = noise.catalog().payload_columns().first().cloned().ok_or_else(|| {
        Error::new(
            ErrorKind::BadConfig,
            format!("{what} {uri}: the data set must have encoded audio; this one has none"),
        )
    })?;
    let catalog = noise.catalog().clone();
    let chain = ChainSpec::from([decode_audio(), resample(sample_rate)]).compile()?;
    let options = RawOptions { shuffle: Shuffle::seeded(0), batch_rows: NOISE_ROWS, ..RawOptions::default() };
    let (mut clips, mut bytes, samples) = (Vec::new(), 0, noise.len());
    for batch in RawBatches::start(&noise.columns(&[&column])?, &options)? {
        let decoded = decode(&batch?, &column, &chain, &check).map_err(|(sample, e)| {
            let name = catalog.describe_sample(SampleId(sample));
            Error::new(e.kind(), format!("{what} {uri}: {name} (sample {sample}): {e}"))
        })?;
        for clip in decoded {
            bytes += clip.len() * 4;
            clips.push(clip);
        }
        if bytes >= NOISE_BYTES {
            break;
        }
    }
    tracing::info!(
        uri = feedstock_dataset::hide_urls(uri),
        clips = clips.len(),
        of = samples,
        bytes,
        "{what} loaded"
    );
    Ok(Noise { sample_rate, clips })
}

/// Returns the decoded and checked audio clips of a batch; an error with the sample's id.
fn decode(
    batch: &RecordBatch,
    column: &str,
    chain: &Chain,
    check: &impl Fn(&[f32]) -> Result<()>,
) -> Result<Vec<Vec<f32>>, (u64, Error)> {
    let ids = batch.column(0).as_primitive::<arrow::datatypes::UInt64Type>();
    let encoded = batch.column_by_name(column).and_then(|array| array.as_binary_view_opt());
    let Some(encoded) = encoded else {
        return Err((0, Error::new(ErrorKind::Bug, format!("column {column} holds no bytes"))));
    };
    let (mut scratch, mut row) = (Scratch::new(), RaggedRow::new());
    let mut clips = Vec::with_capacity(encoded.len());
    for (at, bytes) in encoded.iter().enumerate() {
        let id = ids.value(at);
        let seed = SampleSeed::new(0, 0, id);
        chain.apply_ragged(bytes.unwrap_or_default(), seed, &mut scratch, &mut row).map_err(|e| (id, e))?;
        let samples = row.bytes().chunks_exact(4);
        let clip: Vec<f32> = samples.filter_map(|b| Some(f32::from_ne_bytes(b.try_into().ok()?))).collect();
        check(&clip).map_err(|e| (id, e))?;
        clips.push(clip);
    }
    Ok(clips)
}
