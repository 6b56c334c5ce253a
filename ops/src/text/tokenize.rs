//! `tokenize`: sub-word tokens by a Hugging Face `tokenizer.json`.

use serde::{Deserialize, Serialize};
use tokenizers::models::ModelWrapper;
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use crate::chain::Op;
use crate::error::{Error, Result};
use crate::resources::Resources;

/// Splits a text into the tokens of a `tokenizer.json` (normaliser, pre-tokenizer, model and post-processor, as the
/// `tokenizers` library runs them) and gives their ids.
///
/// The file's own truncation and padding are left out: batches pad, and `max_tokens` bounds. A file whose model drops
/// merges at random (BPE with `dropout`) is refused: its draws follow no seed, so that no epoch could be repeated.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tokenize {
    /// The URI of the `tokenizer.json`; its bytes are one of the chain's [`Resources`].
    pub tokenizer: String,
    /// Let the post-processor add its tokens ([CLS], [SEP] …); default true.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
    /// The most tokens, special ones included, and at least as many as those; default no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Cut a longer text at its end, special tokens kept, instead of refusing it; default false.
    #[serde(default)]
    pub truncate: bool,
}

fn yes() -> bool {
    true
}

impl Tokenize {
    /// By the `tokenizer.json` at this URI.
    pub fn new(tokenizer: impl Into<String>) -> Self {
        Self { tokenizer: tokenizer.into(), add_special_tokens: yes(), max_tokens: None, truncate: false }
    }

    /// Whether to add special tokens.
    #[must_use]
    pub fn add_special_tokens(self, add_special_tokens: bool) -> Self {
        Self { add_special_tokens, ..self }
    }

    /// The most tokens; longer texts are bad samples.
    #[must_use]
    pub fn max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens: Some(max_tokens), ..self }
    }

    /// Cut longer texts instead.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }
}

impl From<Tokenize> for Op {
    fn from(op: Tokenize) -> Self {
        Self::Tokenize(op)
    }
}

/// [`Tokenize`] by the `tokenizer.json` at this URI.
pub fn tokenize(tokenizer: impl Into<String>) -> Op {
    Tokenize::new(tokenizer).into()
}

/// [`Tokenize`] with its file read.
pub(super) struct Tokens {
    op: Tokenize,
    tokenizer: Tokenizer,
}

impl Tokens {
    pub(super) fn new(op: &Tokenize, resources: &Resources) -> Result<Self> {
        let uri = &op.tokenizer;
        let bytes = resources
            .file(uri)
            .ok_or_else(|| Error::config(format!("{uri} is not loaded; compile with its resources")))?;
        let refused = |error: tokenizers::Error| {
            Error::config(format!("{uri} is no tokenizer.json that can be used: {error}"))
        };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(refused)?;
        tokenizer.with_padding(None);
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            return Err(Error::config(format!(
                "{uri} drops merges at random (dropout {dropout}), so that a text has other tokens each time; save the \
                 tokenizer without dropout"
            )));
        }
        let added = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        let cut = match (op.truncate, op.max_tokens) {
            (true, None) => return Err(Error::config("truncate needs max_tokens")),
            (_, Some(0)) => return Err(Error::config("max_tokens must be at least 1")),
            (_, Some(most)) if op.add_special_tokens && most < added => {
                return Err(Error::config(format!(
                    "max_tokens {most} is below the {added} special tokens that {uri} adds; raise it or set \
                     add_special_tokens to false"
                )));
            }
            // The library takes the special tokens off max_length even where none are added; `run` cuts then.
            (true, Some(max_length)) if max_length >= added => {
                Some(TruncationParams { max_length, ..TruncationParams::default() })
            }
            _ => None,
        };
        tokenizer.with_truncation(cut).map_err(refused)?;
        Ok(Self { op: op.clone(), tokenizer })
    }

    pub(super) fn run(&self, text: &str, ids: &mut Vec<i64>) -> Result<()> {
        let encoding = self
            .tokenizer
            .encode_fast(text, self.op.add_special_tokens)
            .map_err(|error| Error::sample(format!("tokenize: {} fails: {error}", self.op.tokenizer)))?;
        ids.extend(encoding.get_ids().iter().map(|&id| i64::from(id)));
        match self.op.max_tokens {
            Some(most) if self.op.truncate => {
                ids.truncate(most);
                Ok(())
            }
            Some(most) if ids.len() > most => Err(Error::sample(format!(
                "tokenize: the text has {} tokens, over max_tokens {most}; raise it or set truncate",
                ids.len()
            ))),
            _ => Ok(()),
        }
    }
}
