//! A tokenizer from the `tokenizer.*` keys of a GGUF file.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::{Error, Result};
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocab::{byte_alphabet, byte_level_bytes, Vocab};

/// Borrowed metadata; the fields are those of `samara_text_gguf`.
pub struct Metadata<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    pub token_types: &'a [i32], // empty: all normal
    pub merges: Vec<&'a str>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub add_bos: Option<bool>,
    pub chat_template: &'a str,
}

/// GGUF's `tokenizer.ggml.token_type`.
mod token_type {
    pub const NORMAL: i32 = 1;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const UNUSED: i32 = 5;
}

const PRE_TOKENIZERS: &str = "qwen2, llama-bpe, smollm, gpt-2, default";

pub fn tokenizer(metadata: Metadata) -> Result<Tokenizer> {
    if metadata.model != "gpt2" {
        return Err(Error::unsupported(format!(
            "tokenizer.ggml.model is '{}'; supported: gpt2 (byte-level BPE)",
            metadata.model
        )));
    }
    if metadata.tokens.is_empty() {
        return Err(Error::bad_tokenizer("tokenizer.ggml.tokens is missing or empty"));
    }
    if !metadata.token_types.is_empty() && metadata.token_types.len() != metadata.tokens.len() {
        return Err(Error::bad_tokenizer(format!(
            "tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens has {}",
            metadata.token_types.len(),
            metadata.tokens.len()
        )));
    }
    let (normalizer, pre_tokenizer) = pre_tokenizer(metadata.pre)?;
    let llama = metadata.pre == "llama-bpe";
    let (vocab, added) = vocabulary(&metadata);
    Tokenizer::new(Parts {
        normalizer,
        pre_tokenizer: Some(pre_tokenizer),
        model: bpe(&metadata, llama)?,
        post_processor: None,
        added,
        vocab,
        bos: metadata.bos,
        add_bos: metadata.add_bos.unwrap_or(llama),
        eos: metadata.eos,
        end_ids: metadata.eot.into_iter().collect(),
        chat_template: Some(metadata.chat_template).filter(|text| !text.is_empty()).map(str::to_owned),
    })
}

fn type_of(metadata: &Metadata, id: usize) -> i32 {
    metadata.token_types.get(id).copied().unwrap_or(token_type::NORMAL)
}

fn vocabulary(metadata: &Metadata) -> (Vocab, Vec<(AddedToken, u32)>) {
    let alphabet = byte_alphabet();
    let mut vocab = Vocab::default();
    let mut added = Vec::new();
    for (id, &text) in metadata.tokens.iter().enumerate() {
        let kind = type_of(metadata, id);
        let special = kind == token_type::CONTROL;
        match kind {
            token_type::CONTROL | token_type::USER_DEFINED => {
                vocab.push(text.as_bytes(), special);
                added.push((AddedToken::from(text, special).normalized(false), id as u32));
            }
            token_type::UNUSED => vocab.push(b"", false),
            _ => vocab.push(&byte_level_bytes(&alphabet, text), false),
        }
    }
    (vocab, added)
}

fn bpe(metadata: &Metadata, ignore_merges: bool) -> Result<BPE> {
    // Tokens that no text may become stay out of the model, unless a merge needs them.
    let mut ids: AHashMap<String, u32> = AHashMap::with_capacity(metadata.tokens.len());
    let mut hidden: AHashMap<&str, u32> = AHashMap::new();
    for (id, &text) in metadata.tokens.iter().enumerate() {
        match type_of(metadata, id) {
            token_type::CONTROL | token_type::USER_DEFINED | token_type::UNUSED => {
                hidden.entry(text).or_insert(id as u32);
            }
            _ => {
                ids.entry(text.to_owned()).or_insert(id as u32);
            }
        }
    }
    let mut pairs = Vec::with_capacity(metadata.merges.len());
    let mut whole = String::new();
    for (rank, &merge) in metadata.merges.iter().enumerate() {
        // The parts are in the byte-level alphabet, which has no space.
        let (left, right) = merge.split_once(' ').ok_or_else(|| {
            Error::bad_tokenizer(format!("tokenizer.ggml.merges[{rank}] is '{merge}', expected two parts"))
        })?;
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        for text in [left, right, &whole] {
            if ids.contains_key(text) {
                continue;
            }
            let id = *hidden.get(text).ok_or_else(|| {
                Error::bad_tokenizer(format!(
                    "tokenizer.ggml.merges[{rank}] needs the token '{text}', which tokenizer.ggml.tokens lacks"
                ))
            })?;
            ids.insert(text.to_owned(), id);
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(ids, pairs)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|error| Error::bad_tokenizer(format!("the BPE model cannot be built: {error}")))
}

/// How each kind cuts a text into words, as the Hugging Face tokenizer it names does. `default`, which has no such
/// counterpart, follows llama.cpp.
fn pre_tokenizer(name: &str) -> Result<(Option<NormalizerWrapper>, PreTokenizerWrapper)> {
    let digit_groups = |digits: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let gpt2_words = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    let bytes = || PreTokenizerWrapper::from(ByteLevel::new(false, true, false));
    let (normalizer, steps) = match name {
        "qwen2" => (Some(NFC.into()), vec![split(&digit_groups(r"\p{N}"))?, bytes()]),
        "llama-bpe" => (None, vec![split(&digit_groups(r"\p{N}{1,3}"))?, bytes()]),
        "smollm" => (None, vec![Digits::new(true).into(), gpt2_words()]),
        "gpt-2" => (None, vec![gpt2_words()]),
        "default" | "" => (
            None,
            vec![
                split(r"[\p{P}\$\+<=>\^~\|]+")?,
                split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")?,
                split(r"\p{N}+")?,
                split("[0-9][0-9][0-9]")?,
                bytes(),
            ],
        ),
        other => {
            return Err(Error::unsupported(format!(
                "tokenizer.ggml.pre is '{other}'; supported: {PRE_TOKENIZERS}"
            )))
        }
    };
    Ok((normalizer, Sequence::new(steps).into()))
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper> {
    Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map(PreTokenizerWrapper::from)
        .map_err(|error| Error::bad_tokenizer(format!("the pattern '{pattern}' is not valid: {error}")))
}
