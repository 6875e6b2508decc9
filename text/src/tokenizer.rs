//! Text to token ids: Hugging Face's normalizers, pre-tokenizers and BPE, put together from their parts.
//!
//! The parts are held directly rather than in one `tokenizers::Tokenizer`, because there whether special tokens are
//! recognised is a property of the tokenizer, and here it is one of each call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahash::AHashMap;
use tokenizers::models::bpe::{BpeTrainer, BPE};
use tokenizers::{
    AddedToken, AddedVocabulary, Model, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessor, PostProcessorWrapper, PreTokenizer, PreTokenizerWrapper, Token,
};

use crate::error::{Error, Result, Status};
use crate::vocab::{byte_alphabet, Vocab};

/// The parts a tokenizer is made of, whatever file they come from.
pub struct Parts {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    pub model: BPE,
    pub post_processor: Option<PostProcessorWrapper>,
    /// Tokens that are found in the text before anything else, with their ids.
    pub added: Vec<(AddedToken, u32)>,
    pub vocab: Vocab,
    pub bos: Option<u32>,
    /// BOS goes in front of a text (GGUF's way; `post_processor` is tokenizer.json's).
    pub add_bos: bool,
    pub eos: Option<u32>,
    /// Further tokens that end a turn.
    pub end_ids: Vec<u32>,
    pub chat_template: Option<String>,
}

/// A part of a text that has been cut at its added tokens.
pub enum Piece {
    Tokens(Vec<u32>),
    Text(String),
}

pub struct Tokenizer {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
    post_processor: Option<PostProcessorWrapper>,
    added: Vec<(AddedToken, u32)>,
    all_tokens: AddedVocabulary,   // special tokens match
    plain_tokens: AddedVocabulary, // only the others do
    ids_by_text: AHashMap<String, u32>,
    pub vocab: Arc<Vocab>,
    pub bos: Option<u32>,
    pub add_bos: bool,
    pub eos: Option<u32>,
    pub end_ids: Vec<u32>, // ascending, EOS included
    pub chat_template: Option<String>,
}

/// Special tokens that end a turn or a text in the models people use; files often name only one of several.
const KNOWN_ENDS: [&str; 12] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|EOT|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "</s>",
];

/// The pattern for a line end tries a run of white space once for every character in it, and the regex engine gives up
/// after a million tries without saying so: the ids would differ from Hugging Face's.
const MAX_WHITE_SPACE: usize = 500_000;

impl Tokenizer {
    pub fn new(parts: Parts) -> Result<Self> {
        let size = parts.vocab.size() as u64;
        let in_range = |id: u32, what: &str| match u64::from(id) < size {
            true => Ok(()),
            false => Err(Error::bad_tokenizer(format!(
                "the {what} token is {id}, but the vocabulary has {size} tokens"
            ))),
        };
        parts.bos.map_or(Ok(()), |id| in_range(id, "BOS"))?;
        parts.eos.map_or(Ok(()), |id| in_range(id, "EOS"))?;
        parts.end_ids.iter().try_for_each(|&id| in_range(id, "end"))?;

        let mut end_ids = parts.end_ids;
        end_ids.extend(parts.eos);
        end_ids.extend(
            parts
                .added
                .iter()
                .filter(|(token, _)| token.special && KNOWN_ENDS.contains(&token.content.as_str()))
                .map(|(_, id)| *id),
        );
        end_ids.sort_unstable();
        end_ids.dedup();

        let all_tokens = added_vocabulary(&parts.added, parts.normalizer.as_ref())?;
        let mut plain_tokens = all_tokens.clone();
        plain_tokens.set_encode_special_tokens(true);
        Ok(Self {
            ids_by_text: parts.added.iter().map(|(token, id)| (token.content.clone(), *id)).collect(),
            normalizer: parts.normalizer,
            pre_tokenizer: parts.pre_tokenizer,
            model: parts.model,
            post_processor: parts.post_processor,
            added: parts.added,
            all_tokens,
            plain_tokens,
            vocab: Arc::new(parts.vocab),
            bos: parts.bos,
            add_bos: parts.add_bos,
            eos: parts.eos,
            end_ids,
            chat_template: parts.chat_template,
        })
    }

    /// The ids of a text. `add_special` adds what the model's configuration adds around a text.
    pub fn encode(&self, text: &str, parse_special: bool, add_special: bool) -> Result<Vec<u32>> {
        let spaces = longest_white_space(text);
        if spaces > MAX_WHITE_SPACE {
            return Err(Error::invalid_argument(format!(
                "the text has {spaces} white-space characters in a row; at most {MAX_WHITE_SPACE} can be encoded"
            )));
        }
        let tokens = if parse_special { &self.all_tokens } else { &self.plain_tokens };
        let mut pieces = tokens.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(encoding_failed)?;
        }
        self.model.tokenize_in_pretokenized(&mut pieces, None).map_err(encoding_failed)?;
        let mut encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(encoding_failed)?;
        if let (true, Some(post_processor)) = (add_special, &self.post_processor) {
            encoding = post_processor.process(encoding, None, true).map_err(encoding_failed)?;
        }
        let bos = self.bos.filter(|_| add_special && self.add_bos);
        Ok(bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// Whether `add_special` puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.encode("", false, true).is_ok_and(|ids| self.bos.is_some() && ids.first().copied() == self.bos)
    }

    /// The id of the token whose text is exactly this.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.ids_by_text.get(text).copied().or_else(|| {
            let characters: HashMap<u8, char> =
                byte_alphabet().into_iter().map(|(c, byte)| (byte, c)).collect();
            self.model.token_to_id(&text.bytes().map(|byte| characters[&byte]).collect::<String>())
        })
    }

    /// Tokens found in the text before anything else, special or not.
    pub fn added_tokens(&self) -> &[(AddedToken, u32)] {
        &self.added
    }

    /// Cuts a text at the added tokens, special ones included.
    pub fn split_at_added_tokens(&self, text: &str) -> Vec<Piece> {
        let pieces = self.all_tokens.extract_and_normalize(None::<&NormalizerWrapper>, text);
        pieces
            .get_splits(OffsetReferential::Original, OffsetType::None)
            .into_iter()
            .map(|(text, _, tokens)| match tokens {
                Some(tokens) => Piece::Tokens(tokens.iter().map(|token| token.id).collect()),
                None => Piece::Text(text.to_owned()),
            })
            .collect()
    }
}

fn longest_white_space(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// The matcher for a set of tokens whose ids are already known.
fn added_vocabulary<N: Normalizer>(
    tokens: &[(AddedToken, u32)],
    normalizer: Option<&N>,
) -> Result<AddedVocabulary> {
    let ids = KnownIds(tokens.iter().map(|(token, id)| (token.content.clone(), *id)).collect());
    let mut vocabulary = AddedVocabulary::new();
    vocabulary
        .add_tokens(tokens.iter().map(|(token, _)| token.clone()), &ids, normalizer)
        .map_err(|error| Error::bad_tokenizer(format!("the added tokens cannot be indexed: {error}")))?;
    Ok(vocabulary)
}

fn encoding_failed(error: tokenizers::Error) -> Error {
    Error::new(Status::Internal, format!("encoding failed: {error}"))
}

/// `AddedVocabulary` asks a model for the ids of its tokens; this one knows those and no others.
struct KnownIds(AHashMap<String, u32>);

impl Model for KnownIds {
    type Trainer = BpeTrainer;

    fn tokenize(&self, _sequence: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(Vec::new())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.get(token).copied()
    }

    fn id_to_token(&self, _id: u32) -> Option<String> {
        None
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.iter().map(|(text, id)| (text.clone(), *id)).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.len()
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}
