//! Token ids to text, one at a time, in whole characters.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::vocab::Vocab;

pub struct Detokenizer {
    vocab: Arc<Vocab>,
    skip_special: bool,
    pending: Vec<u8>, // an unfinished character, at most three bytes between calls
    text: String,     // what the last call completed
}

impl Detokenizer {
    pub fn new(vocab: Arc<Vocab>, skip_special: bool) -> Self {
        Self { vocab, skip_special, pending: Vec::new(), text: String::new() }
    }

    /// Appends a token; the text returned is complete and lives until the next call.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        let bytes = self.vocab.token_bytes(id).ok_or_else(|| out_of_range(id, self.vocab.size()))?;
        self.text.clear();
        if !(self.skip_special && self.vocab.is_special(id)) {
            self.pending.extend_from_slice(bytes);
            self.take_complete();
        }
        Ok(&self.text)
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    pub fn flush(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push('\u{FFFD}');
            self.pending.clear();
        }
        &self.text
    }

    fn take_complete(&mut self) {
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    self.pending.clear();
                    return;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    // No error length means that the bytes stop inside a character that may still be finished.
                    let Some(length) = error.error_len() else {
                        self.pending = after.to_vec();
                        return;
                    };
                    self.text.push('\u{FFFD}');
                    rest = &after[length..];
                }
            }
        }
    }
}

pub fn out_of_range(id: u32, size: usize) -> Error {
    Error::invalid_argument(format!("token id {id} is out of range: the vocabulary has {size} tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[&[u8]]) -> Arc<Vocab> {
        let mut vocab = Vocab::default();
        for token in tokens {
            vocab.push(token, token.starts_with(b"<|"));
        }
        Arc::new(vocab)
    }

    #[test]
    fn a_character_split_over_tokens_comes_out_whole() {
        let mut decoder = Detokenizer::new(vocab(&[b"a\xf0\x9f", b"\xa6", b"\x8a!"]), false);
        assert_eq!(decoder.push(0).unwrap(), "a");
        assert_eq!(decoder.push(1).unwrap(), "");
        assert_eq!(decoder.push(2).unwrap(), "\u{1F98A}!");
        assert_eq!(decoder.flush(), "");
    }

    #[test]
    fn every_byte_string_gives_the_same_text_as_decoding_it_at_once() {
        let tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        let refs: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
        let mut decoder = Detokenizer::new(vocab(&refs), false);
        let mut state = 1u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    [0x61, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0xa6, 0x8a, 0xff, 0xed]
                        [(state >> 16) as usize % 12]
                })
                .collect();
            let mut text = String::new();
            for byte in &bytes {
                text.push_str(decoder.push(u32::from(*byte)).unwrap());
            }
            text.push_str(decoder.flush());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:x?}");
        }
    }

    #[test]
    fn a_skipped_special_token_does_not_break_a_character() {
        let mut decoder = Detokenizer::new(vocab(&[b"\xc3", b"<|x|>", b"\xa9"]), true);
        assert_eq!(decoder.push(0).unwrap(), "");
        assert_eq!(decoder.push(1).unwrap(), "");
        assert_eq!(decoder.push(2).unwrap(), "\u{e9}");
    }

    #[test]
    fn an_id_out_of_range_changes_nothing() {
        let mut decoder = Detokenizer::new(vocab(&[b"\xc3", b"\xa9"]), false);
        decoder.push(0).unwrap();
        assert!(decoder.push(2).is_err());
        assert_eq!(decoder.push(1).unwrap(), "\u{e9}");
    }
}
