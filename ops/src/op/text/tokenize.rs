//! `tokenize`: sub-word tokens by a Hugging Face `tokenizer.json`.

use serde::{Deserialize, Serialize};
use tokenizers::models::ModelWrapper;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, Tokenizer};

use crate::limits::over;
use crate::resources::Needs;
use crate::resources::Resources;
use crate::text::cell::utf8;
use crate::text::limits::MAX_TEXT_BYTES;
use crate::text::step::{TextOp, TextScratch, TextStep};
use feedstock_base::{Error, Result};

/// Splits a text into the tokens of a `tokenizer.json` (normaliser, pre-tokenizer, model and post-processor, as the
/// `tokenizers` library runs them) and gives their ids.
///
/// The truncation and padding in the file are ignored: batches pad, and `max_tokens` limits the length. A file whose
/// model drops merges at random (BPE with `dropout`) is refused: its draws follow no seed, so epochs could not be repeated.
///
/// ```
/// use feedstock_ops::{ChainSpec, Need, tokenize};
///
/// let spec = ChainSpec::from([tokenize("s3://b/tokenizer.json")]);
/// assert_eq!(spec.needs(), [Need::File("s3://b/tokenizer.json".to_owned())]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
///
/// ```
/// use feedstock_ops::text::Tokenize;
/// use feedstock_ops::{ChainSpec, RaggedRow, Resources, SampleSeed, Scratch};
///
/// let file = r#"{"pre_tokenizer": {"type": "Whitespace"},
///     "model": {"type": "WordLevel", "vocab": {"to": 0, "be": 1, "or": 2, "?": 3}, "unk_token": "?"}}"#;
/// let spec = ChainSpec::from([Tokenize::new("words.json").into()]);
/// let chain = spec.compile_with(&Resources::new().with_file("words.json", file.as_bytes()))?;
/// let mut row = RaggedRow::new();
/// chain.apply_ragged(b"to be or not", SampleSeed::new(1, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row.bytes(), [0i64, 1, 2, 3].map(i64::to_ne_bytes).as_flattened());
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tokenize {
    /// The URI of the `tokenizer.json`; its bytes are one of the chain's [`Resources`].
    pub tokenizer: String,
    /// Let the post-processor add its tokens (`[CLS]`, `[SEP]` …); default true.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
    /// The most tokens, special ones included, and at least the number of those; default no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Cut a longer text at its end, special tokens kept, instead of refusing it; default false.
    #[serde(default)]
    pub truncate: bool,
    /// The longest text, in bytes; default 1,048,576. With `truncate`, a longer one is cut there before it is split, if the
    /// part before the cut has more tokens than `max_tokens`; any other longer text is refused.
    #[serde(default = "max_text_bytes", skip_serializing_if = "is_max_text_bytes")]
    pub max_text_bytes: usize,
}

fn yes() -> bool {
    true
}

fn max_text_bytes() -> usize {
    MAX_TEXT_BYTES
}

// The parameter was added later. It is written only if it differs from the default, so older descriptions keep their hash.
fn is_max_text_bytes(bytes: &usize) -> bool {
    *bytes == MAX_TEXT_BYTES
}

impl Tokenize {
    /// Tokenizes with the `tokenizer.json` at this URI.
    pub fn new(tokenizer: impl Into<String>) -> Self {
        Self {
            tokenizer: tokenizer.into(),
            add_special_tokens: yes(),
            max_tokens: None,
            truncate: false,
            max_text_bytes: MAX_TEXT_BYTES,
        }
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

    /// The longest text, in bytes.
    #[must_use]
    pub fn max_text_bytes(self, bytes: usize) -> Self {
        Self { max_text_bytes: bytes, ..self }
    }
}

/// [`Tokenize`] with its file read.
struct Tokens {
    op: Tokenize,
    /// Without its post-processor, so that what is cut off is never processed.
    tokenizer: Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
    /// The most tokens of a text, without special ones.
    room: usize,
}

impl Tokens {
    fn new(op: &Tokenize, resources: &Resources) -> Result<Self> {
        let uri = &op.tokenizer;
        let bytes = resources
            .file(uri)
            .ok_or_else(|| Error::config(format!("{uri} is not loaded; compile with its resources")))?;
        let refused = |error: tokenizers::Error| {
            Error::config(format!("{uri} is not a tokenizer.json that can be used: {error}"))
        };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(refused)?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(refused)?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            return Err(Error::config(format!(
                "{uri} drops merges at random (dropout {dropout}), so that a text has other tokens each time; save the \
                 tokenizer without dropout"
            )));
        }
        let post_processor = tokenizer.get_post_processor().cloned();
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let added = post_processor.as_ref().map_or(0, |processor| processor.added_tokens(false));
        let added = if op.add_special_tokens { added } else { 0 };
        let room = match op.max_tokens {
            None if op.truncate => return Err(Error::config("truncate needs max_tokens")),
            None => usize::MAX,
            Some(0) => return Err(Error::config("max_tokens must be at least 1; got 0")),
            Some(most) => most.checked_sub(added).ok_or_else(|| {
                Error::config(format!(
                    "max_tokens {most} is below the {added} special tokens that {uri} adds; raise it or set \
                     add_special_tokens to false"
                ))
            })?,
        };
        if op.max_text_bytes == 0 {
            return Err(Error::config("max_text_bytes must be at least 1; got 0"));
        }
        Ok(Self { op: op.clone(), tokenizer, post_processor, room })
    }

    fn run(&self, text: &[u8], ids: &mut Vec<i64>) -> Result<()> {
        let failed = |error| Error::bad_sample(format!("tokenize: {} fails: {error}", self.op.tokenizer));
        let within = self.within(text)?;
        let mut encoding = self.tokenizer.encode_fast(utf8(within)?, false).map_err(failed)?;
        if within.len() < text.len() && encoding.len() <= self.room {
            return Err(self.too_long(text));
        }
        if self.op.truncate && encoding.len() > self.room {
            encoding = first_of(&encoding, self.room);
        }
        if let Some(processor) = &self.post_processor {
            encoding = processor.process(encoding, None, self.op.add_special_tokens).map_err(failed)?;
        }
        ids.extend(encoding.get_ids().iter().map(|&id| i64::from(id)));
        match self.op.max_tokens {
            Some(most) if self.op.truncate => {
                ids.truncate(most);
                Ok(())
            }
            Some(most) if ids.len() > most => Err(Error::bad_sample(format!(
                "tokenize: the text has {} tokens, over max_tokens {most}; raise it or set truncate",
                ids.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the text, or the part of a too long text that may be split.
    fn within<'a>(&self, text: &'a [u8]) -> Result<&'a [u8]> {
        let most = self.op.max_text_bytes;
        if text.len() <= most {
            return Ok(text);
        }
        if !self.op.truncate {
            return Err(self.too_long(text));
        }
        // Does not cut inside a character: all bytes of a character but the first start with the bits 10.
        let is_start = |at: &usize| text[*at] & 0xC0 != 0x80;
        let end = (most.saturating_sub(3)..=most).rev().find(is_start).unwrap_or(most);
        Ok(&text[..end])
    }

    fn too_long(&self, text: &[u8]) -> Error {
        over(format!("the text is {} bytes long", text.len()), "max_text_bytes", self.op.max_text_bytes)
    }
}

/// Returns the first tokens of an encoding. The library's own truncation would make an encoding of every part that it cuts
/// off, and add the special tokens to each.
fn first_of(encoding: &Encoding, count: usize) -> Encoding {
    let tokens = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(encoding.get_offsets());
    let tokens = tokens.take(count).map(|((id, value), offsets)| Token::new(*id, value.clone(), *offsets));
    Encoding::from_tokens(tokens.collect(), 0)
}

impl TextOp for Tokenize {
    fn compile(&self, resources: &Resources) -> Result<Box<dyn TextStep>> {
        Ok(Box::new(Tokens::new(self, resources)?))
    }

    fn refer(&self, needs: &mut Needs) {
        needs.file(&self.tokenizer);
    }
}

impl TextStep for Tokens {
    fn max_bytes(&self) -> usize {
        self.op.max_text_bytes
    }

    /// Measured: 1 MiB took 300 MB.
    fn memory_a_byte(&self) -> u64 {
        320
    }

    fn run(&self, text: &[u8], scratch: &mut TextScratch) -> Result<()> {
        self.run(text, &mut scratch.ids)
    }
}
