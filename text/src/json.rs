//! A tokenizer from the text of a Hugging Face tokenizer.json.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use crate::error::{Error, Result};
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocab::{byte_alphabet, byte_level_bytes, Vocab};

#[derive(Deserialize)]
struct ModelKind {
    model: Kind,
}

#[derive(Deserialize)]
struct Kind {
    // Old files leave it out.
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    #[serde(default)]
    added_tokens: Vec<AddedTokenEntry>,
    model: BPE,
}

#[derive(Deserialize)]
struct AddedTokenEntry {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// Ids are indices into a table of ours, so a hostile file may not make it arbitrarily long.
const MAX_ID: u32 = 1 << 24;

pub fn tokenizer(tokenizer_json: &str, config_json: &str) -> Result<Tokenizer> {
    let bad = |error: serde_json::Error| Error::bad_tokenizer(format!("tokenizer.json: {error}"));
    let kind: ModelKind = serde_json::from_str(tokenizer_json).map_err(bad)?;
    if let Some(kind) = kind.model.r#type.filter(|kind| kind != "BPE") {
        return Err(Error::unsupported(format!("tokenizer.json: the model is {kind}; supported: BPE")));
    }
    let file: TokenizerFile = serde_json::from_str(tokenizer_json).map_err(bad)?;
    if !matches!(file.decoder, Some(DecoderWrapper::ByteLevel(_))) {
        return Err(Error::unsupported(
            "tokenizer.json: the decoder is not ByteLevel, the only one supported",
        ));
    }
    let config: Value = match config_json {
        "" => Value::Null,
        text => serde_json::from_str(text)
            .map_err(|error| Error::bad_tokenizer(format!("tokenizer_config.json: {error}")))?,
    };

    let added: Vec<(AddedToken, u32)> =
        file.added_tokens.into_iter().map(|entry| (entry.token, entry.id)).collect();
    let id_of = |key: &str| {
        let text = token_text(config.get(key)?)?;
        let added = added.iter().find(|(token, _)| token.content == text).map(|(_, id)| *id);
        added.or_else(|| file.model.token_to_id(text))
    };
    let (bos, eos) = (id_of("bos_token"), id_of("eos_token"));
    Tokenizer::new(Parts {
        vocab: vocabulary(&file.model, &added)?,
        normalizer: file.normalizer,
        pre_tokenizer: file.pre_tokenizer,
        model: file.model,
        post_processor: file.post_processor,
        added,
        bos,
        add_bos: false,
        eos,
        end_ids: Vec::new(),
        chat_template: config.get("chat_template").and_then(Value::as_str).map(str::to_owned),
    })
}

/// tokenizer_config.json gives a token as its text or as an object that holds it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn vocabulary(model: &BPE, added: &[(AddedToken, u32)]) -> Result<Vocab> {
    let ids = model.get_vocab();
    let highest = ids.values().copied().chain(added.iter().map(|(_, id)| *id)).max().unwrap_or(0);
    if highest > MAX_ID {
        return Err(Error::bad_tokenizer(format!("tokenizer.json: the id {highest} is over {MAX_ID}")));
    }
    let alphabet = byte_alphabet();
    let mut bytes = vec![(Vec::new(), false); highest as usize + 1];
    for (text, id) in ids {
        bytes[id as usize].0 = byte_level_bytes(&alphabet, &text);
    }
    for (token, id) in added {
        bytes[*id as usize] = (token.content.clone().into_bytes(), token.special);
    }
    let mut vocab = Vocab::default();
    for (token, special) in &bytes {
        vocab.push(token, *special);
    }
    Ok(vocab)
}
