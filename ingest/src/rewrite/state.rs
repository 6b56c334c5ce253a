//! The state of a rewrite in its destination: `_feedstock/rewrite.json`, written after every shard.
//!
//! A shard counts when it is named there; a shard of the right name that is not was being written when the run died,
//! and is written anew. Both are whole objects at any time: storage writes whole or not at all.
//!
//! The first state file claims the destination: a conditional write creates it before the first shard. So of two runs that
//! begin at the same time, one writes. A run that finds the state of another one with the same settings continues it, even
//! while that one still runs: both then write the same bytes.

use super::options::{Recode, RewriteFormat};
use super::recode::Fate;
use super::report::{KeptSample, NAMED_SAMPLES};
use super::schema::PayloadKind;
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use feedstock_dataset::{Digest, Fingerprint, Plan, Storage};
use feedstock_ops::image::Unmarked;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

/// The form of the file, and of the cuts; a change that moves any byte raises it.
const VERSION: u32 = 1;
/// Below the destination; names with `_feedstock/` are never data.
const FILE: &str = "_feedstock/rewrite.json";
/// Reads of a state file that another run replaces at the same time. A run replaces it once a shard, so two in a row are rare.
const READS: u32 = 8;

/// Everything that the shards' bytes depend on. What becomes of bad images is not among it, so that a run that one
/// of them stopped can go on with `on_error=copy`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RewriteSettings {
    pub(super) version: u32,
    pub(super) plan: Fingerprint,
    pub(super) format: RewriteFormat,
    pub(super) name: String,
    pub(super) shard_bytes: u64,
    pub(super) group_bytes: u64,
    pub(super) columns: Vec<String>,
    pub(super) recode: Option<Recode>,
    #[serde(default)]
    pub(super) restart_interval: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) page_samples: Option<NonZeroU32>,
}

/// A shard that is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FinishedShard {
    pub(super) file: String,
    pub(super) samples: u64,
    pub(super) file_bytes: u64,
    pub(super) payload_bytes: u64,
    /// Of the rows as they were handed to the encoder.
    pub(super) rows: String,
    /// Of the sample ids that were read.
    pub(super) ids: Digest,
    pub(super) shrunk: u64,
    #[serde(default)]
    pub(super) restarted: u64,
    #[serde(default)]
    pub(super) unmarked: BTreeMap<Unmarked, u64>,
    pub(super) kept_samples: u64,
    /// The first of them, by name.
    pub(super) kept: Vec<KeptSample>,
}

impl FinishedShard {
    /// Counts what became of an image.
    pub(super) fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Shrunk => self.shrunk += 1,
            Fate::Marked => self.restarted += 1,
            Fate::Unmarked(why) => *self.unmarked.entry(why).or_default() += 1,
            Fate::Kept(sample) => {
                self.kept_samples += 1;
                if self.kept.len() < NAMED_SAMPLES {
                    self.kept.push(sample);
                }
            }
        }
    }
}

/// The state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RewriteState {
    pub(super) settings: RewriteSettings,
    /// Random: the first states of two runs with the same settings differ, so only one of them is created.
    #[serde(default)]
    run: u64,
    pub(super) shards: u64,
    pub(super) payload: BTreeMap<String, PayloadKind>,
    pub(super) finished: Vec<FinishedShard>,
    /// Everything was read back and compared.
    pub(super) verified: bool,
}

impl RewriteState {
    /// Returns the state of a rewrite that has no shards yet.
    pub(super) fn new(
        settings: RewriteSettings,
        shards: u64,
        payload: BTreeMap<String, PayloadKind>,
    ) -> Self {
        let run = RandomState::new().hash_one(shards);
        Self { settings, run, shards, payload, finished: Vec::new(), verified: false }
    }
}

impl RewriteSettings {
    pub(super) const fn version() -> u32 {
        VERSION
    }

    /// The name of shard `index` of `shards`.
    pub(super) fn shard_name(&self, index: u64, shards: u64) -> String {
        let digits = shards.to_string().len().max(5); // names sort as the shards do
        let (name, extension) = (&self.name, self.format.extension());
        format!("{name}-{index:0digits$}-of-{shards:0digits$}.{extension}")
    }

    /// Refuses a destination that another rewrite began, naming the first setting that differs.
    fn check(&self, found: &Self, at: &str) -> Result<()> {
        let tree = |settings: &Self| serde_json::to_value(settings).unwrap_or_default();
        let Some((field, here, there)) = difference("", &tree(self), &tree(found)) else { return Ok(()) };
        Err(Error::new(
            ErrorKind::BadConfig,
            format!(
                "{at} holds another rewrite: its {field} is {there}, this one's is {here}; go on with the same data set \
                 and options, or choose an empty destination"
            ),
        ))
    }
}

/// The first leaf in which two trees differ: its path, and both values.
fn difference(path: &str, here: &Value, there: &Value) -> Option<(String, String, String)> {
    if here == there {
        return None;
    }
    if let (Value::Object(a), Value::Object(b)) = (here, there) {
        let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
        return keys
            .map(|key| (key, a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null)))
            .find_map(|(key, a, b)| {
                difference(&format!("{path}{}{key}", if path.is_empty() { "" } else { "." }), a, b)
            });
    }
    Some((path.to_owned(), here.to_string(), there.to_string()))
}

/// The destination of a rewrite.
#[derive(Clone)]
pub(super) struct Target {
    storage: Storage,
    /// Without its last `/`.
    uri: String,
}

impl Target {
    pub(super) fn new(storage: &Storage, uri: &str) -> Self {
        Self { storage: storage.clone(), uri: uri.trim_end_matches('/').to_owned() }
    }

    pub(super) fn uri_of(&self, name: &str) -> String {
        format!("{}/{name}", self.uri)
    }

    /// Looks at what is there: a state to go on from, or nothing yet. Anything foreign is refused.
    pub(super) fn open(
        &self,
        plan: &Plan,
        settings: &RewriteSettings,
        shards: u64,
    ) -> Result<Option<RewriteState>> {
        let there = self.objects()?;
        let mut state = match there.contains_key(FILE) {
            true => Some(self.read_state()?),
            false => None,
        };
        if let Some(state) = &mut state {
            state.settings.plan = plan.in_current_form(&state.settings.plan);
        }
        if let Some(state) = &state {
            settings.check(&state.settings, &self.uri)?;
            if state.shards != shards || state.finished.len() as u64 > shards {
                return Err(self.damaged(format!("it counts {} shards, not {shards}", state.shards)));
            }
        }
        let ours: HashSet<String> = match state {
            Some(_) => (0..shards).map(|index| settings.shard_name(index, shards)).collect(),
            None => HashSet::new(),
        };
        let mut foreign = there.keys().filter(|name| {
            let hidden = name.split('/').any(|part| part.starts_with('.') || part == "_feedstock");
            !hidden && !ours.contains(*name)
        });
        if let Some(first) = foreign.next() {
            let others = foreign.count();
            let more = if others > 0 { format!(" and {others} more") } else { String::new() };
            return Err(Error::new(
                ErrorKind::BadConfig,
                format!(
                    "{} is not empty: {first}{more}, not of this rewrite; choose an empty destination",
                    self.uri
                ),
            ));
        }
        Ok(state.map(|state| self.trusted(state, &there)))
    }

    /// The state up to the first shard that is not there as it was written.
    fn trusted(&self, mut state: RewriteState, there: &BTreeMap<String, u64>) -> RewriteState {
        let lost = state.finished.iter().position(|shard| there.get(&shard.file) != Some(&shard.file_bytes));
        if let Some(lost) = lost {
            let file = &state.finished[lost].file;
            tracing::warn!("{}: {file} is gone or has another size; writing on from there", self.uri);
            state.finished.truncate(lost);
            state.verified = false;
        }
        state
    }

    /// Names below the destination, and sizes; none where it does not exist yet.
    fn objects(&self) -> Result<BTreeMap<String, u64>> {
        let (storage, uri) = (self.storage.clone(), self.uri.clone());
        let root = if self.uri.is_empty() { "/".to_owned() } else { uri.clone() };
        let listed = self.storage.io().block_on(async move { storage.list(&root).await });
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(BTreeMap::new()),
            Err(error) => return Err(error),
        };
        let prefix = format!("{uri}/");
        listed
            .into_iter()
            .map(|object| match object.uri.strip_prefix(&prefix) {
                Some(name) => Ok((name.to_owned(), object.size)),
                None => Err(Error::new(
                    ErrorKind::BadConfig,
                    format!("{uri} is a file, not a folder; choose a folder that is empty or not there yet"),
                )),
            })
            .collect()
    }

    /// Reads the state file, again if another run replaces it between the look and the read.
    fn read_state(&self) -> Result<RewriteState> {
        let (storage, uri) = (self.storage.clone(), self.uri_of(FILE));
        let bytes = self.storage.io().block_on(async move {
            let mut left = READS;
            loop {
                let object = storage.head(&uri).await?;
                left -= 1;
                match storage.read(&object, 0..object.size).await {
                    Err(error) if error.kind() == ErrorKind::Gone && left > 0 => {}
                    read => return read,
                }
            }
        })?;
        serde_json::from_slice(&bytes).map_err(|e| self.damaged(e))
    }

    fn damaged(&self, why: impl std::fmt::Display) -> Error {
        let (uri, file) = (&self.uri, self.uri_of(FILE));
        let message = format!("{file} cannot be used: {why}; remove {uri} and begin anew");
        Error::new(ErrorKind::BadConfig, message)
    }

    /// Writes the first state file. Returns false if another run has begun in this destination since it was opened.
    pub(super) fn begin(&self, state: &RewriteState) -> Result<bool> {
        let (storage, uri, json) = (self.storage.clone(), self.uri_of(FILE), json(state)?);
        self.storage.io().block_on(async move { storage.create(&uri, json).await })
    }

    /// Replaces the state file.
    pub(super) fn save(&self, state: &RewriteState) -> Result<()> {
        let (storage, uri, json) = (self.storage.clone(), self.uri_of(FILE), json(state)?);
        self.storage.io().block_on(async move { storage.write(&uri, json).await })?;
        Ok(())
    }

    /// Returns the error of a run that lost the destination to another run of the same rewrite.
    pub(super) fn taken(&self) -> Error {
        let message = format!(
            "another run of the same rewrite began in {} at the same time; wait until it ends, or stop it and run this \
             one again to continue at the first missing shard",
            self.uri
        );
        Error::new(ErrorKind::BadConfig, message)
    }

    /// Starts writing a shard; one is under way at a time.
    pub(super) fn upload(&self, name: &str, bytes: Bytes) -> Upload {
        let (storage, uri) = (self.storage.clone(), self.uri_of(name));
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.storage.io().handle().spawn(async move {
            // No thread listens once the rewrite was given up.
            let _given_up = done.send(storage.write(&uri, bytes).await);
        });
        Upload(result)
    }
}

fn json(state: &RewriteState) -> Result<Bytes> {
    let json = serde_json::to_vec_pretty(state)
        .map_err(|e| Error::new(ErrorKind::Bug, format!("the rewrite's state is not JSON: {e}")))?;
    Ok(Bytes::from(json))
}

/// A shard on its way.
pub(super) struct Upload(std::sync::mpsc::Receiver<feedstock_dataset::Result<()>>);

impl Upload {
    pub(super) fn wait(self) -> Result<()> {
        let ended = |_| Error::new(ErrorKind::Bug, "the write of a shard ended without a result");
        self.0.recv().map_err(ended)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_dataset::{IoRuntime, StorageOptions};
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named_by_its_path() {
        let (here, there) = (json!({"a": 1, "plan": {"seed": 7}}), json!({"a": 1, "plan": {"seed": 8}}));
        let found = difference("", &here, &there).unwrap();
        assert_eq!(found, ("plan.seed".to_owned(), "7".to_owned(), "8".to_owned()));
        assert_eq!(difference("", &here, &here), None);
        assert_eq!(difference("", &json!({}), &json!({"b": 2})).unwrap().0, "b");
    }

    /// Two runs with the same options that saw the same empty destination.
    #[test]
    fn one_of_two_equal_runs_gets_the_destination() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::new(StorageOptions::default(), IoRuntime::new().unwrap()).unwrap();
        let target = Target::new(&storage, dir.path().to_str().unwrap());
        let plan = json!({
            "version": 1, "catalog": 1, "filter": 0, "shuffle": "none", "seed": 0, "lanes": 1, "window": 0,
        });
        let settings: RewriteSettings = serde_json::from_value(json!({
            "version": VERSION, "plan": plan, "format": "parquet", "name": "train", "shard_bytes": 1,
            "group_bytes": 1, "columns": ["image"], "recode": null,
        }))
        .unwrap();
        let states = [(); 2].map(|()| RewriteState::new(settings.clone(), 3, BTreeMap::new()));
        assert!(target.begin(&states[0]).unwrap());
        assert!(!target.begin(&states[1]).unwrap());
        assert_eq!(target.read_state().unwrap(), states[0]);
        assert!(target.begin(&states[0]).unwrap(), "as after a request whose answer was lost");
    }
}
