//! Samara's text layer; `include/samara_text.h` is its contract, and `ffi` the only module that C sees.

mod chat;
mod detokenizer;
mod error;
mod ffi;
#[cfg(test)]
mod ffi_tests;
mod gguf;
mod json;
mod python;
mod tokenizer;
mod vocab;
