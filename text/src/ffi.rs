//! The functions of `include/samara_text.h`. Pointers are checked, panics are stopped, and everything else is done by
//! the other modules.

// What each function demands of its pointers is written once, in the C header.
#![allow(clippy::missing_safety_doc)]

use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use crate::chat::{self, Chat};
use crate::detokenizer::{out_of_range, Detokenizer};
use crate::error::{Error, Result, Status};
use crate::tokenizer::Tokenizer;
use crate::{gguf, json};

const PARSE_SPECIAL: u32 = 1;
const ADD_SPECIAL: u32 = 2;
pub const MESSAGE_SIZE: usize = 1008;

#[repr(C)]
pub struct ErrorOut {
    pub status: Status,
    pub offset: usize,
    pub message: [u8; MESSAGE_SIZE],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
pub struct Ids {
    pub data: *mut u32,
    pub size: usize,
}

#[repr(C)]
pub struct Bytes {
    pub data: *mut c_char,
    pub size: usize,
}

#[repr(C)]
pub struct GgufIn {
    pub model: View,
    pub pre: View,
    pub tokens: *const View,
    pub token_count: usize,
    pub token_types: *const i32,
    pub token_type_count: usize,
    pub merges: *const View,
    pub merge_count: usize,
    pub bos_id: i64,
    pub eos_id: i64,
    pub eot_id: i64,
    pub add_bos: i32,
    pub chat_template: View,
}

#[repr(C)]
pub struct ChatIn {
    pub messages_json: View,
    pub tools_json: View,
    pub variables_json: View,
    pub template_source: View,
    pub add_generation_prompt: i32,
    pub now: i64,
}

/// Runs `work`, turns a panic into an error, and reports an error to the caller.
pub unsafe fn guarded(error: *mut ErrorOut, work: impl FnOnce() -> Result<()>) -> Status {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(Error::new(Status::Internal, format!("internal error in the text layer: {text}")))
    });
    let Err(failure) = result else { return Status::Ok };
    if let Some(error) = error.as_mut() {
        let mut length = failure.message.len().min(MESSAGE_SIZE - 1);
        while !failure.message.is_char_boundary(length) {
            length -= 1;
        }
        error.status = failure.status;
        error.offset = failure.offset;
        error.message[..length].copy_from_slice(&failure.message.as_bytes()[..length]);
        error.message[length] = 0;
    }
    failure.status
}

/// For functions that cannot fail: `fallback` stands for a NULL handle or a panic.
fn guarded_value<T: Copy>(fallback: T, work: impl FnOnce() -> Option<T>) -> T {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten().unwrap_or(fallback)
}

unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    pointer.as_ref().ok_or_else(|| Error::invalid_argument(format!("{what} is NULL")))
}

unsafe fn output<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(Error::invalid_argument("out is NULL"));
    }
    Ok(pointer)
}

unsafe fn slice<'a, T>(data: *const T, size: usize, what: &str) -> Result<&'a [T]> {
    match (size, data.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Error::invalid_argument(format!("{what} is NULL but its size is {size}"))),
        (_, false) => Ok(std::slice::from_raw_parts(data, size)),
    }
}

unsafe fn text<'a>(view: View, what: &str) -> Result<&'a str> {
    let bytes = slice(view.data, view.size, what)?;
    std::str::from_utf8(bytes).map_err(|error| Error {
        status: Status::InvalidUtf8,
        offset: error.valid_up_to(),
        message: format!("{what} is not valid UTF-8 at byte {}", error.valid_up_to()),
    })
}

unsafe fn texts<'a>(views: *const View, count: usize, what: &str) -> Result<Vec<&'a str>> {
    let views = slice(views, count, what)?;
    views.iter().enumerate().map(|(index, &view)| text(view, &format!("{what}[{index}]"))).collect()
}

fn optional_id(id: i64, what: &str) -> Result<Option<u32>> {
    match id {
        -1 => Ok(None),
        id => u32::try_from(id)
            .map(Some)
            .map_err(|_| Error::bad_tokenizer(format!("{what} is {id}, expected a token id"))),
    }
}

fn view(bytes: &[u8]) -> View {
    View { data: bytes.as_ptr(), size: bytes.len() }
}

/// Hands a buffer to C; `free` takes it back by its size.
fn into_raw<T>(items: Vec<T>) -> (*mut T, usize) {
    let size = items.len();
    if size == 0 {
        return (ptr::null_mut(), 0);
    }
    (Box::into_raw(items.into_boxed_slice()).cast(), size)
}

unsafe fn free_raw<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(data, size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_ids_free(ids: *mut Ids) {
    if let Some(ids) = ids.as_mut() {
        free_raw(ids.data, ids.size);
        *ids = Ids { data: ptr::null_mut(), size: 0 };
    }
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_bytes_free(bytes: *mut Bytes) {
    if let Some(bytes) = bytes.as_mut() {
        free_raw(bytes.data.cast::<u8>(), bytes.size);
        *bytes = Bytes { data: ptr::null_mut(), size: 0 };
    }
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_from_gguf(
    metadata: *const GgufIn,
    out: *mut *mut Tokenizer,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let metadata = handle(metadata, "metadata")?;
        let out = output(out)?;
        let tokenizer = gguf::tokenizer(gguf::Metadata {
            model: text(metadata.model, "tokenizer.ggml.model")?,
            pre: text(metadata.pre, "tokenizer.ggml.pre")?,
            tokens: texts(metadata.tokens, metadata.token_count, "tokenizer.ggml.tokens")?,
            token_types: slice(metadata.token_types, metadata.token_type_count, "tokenizer.ggml.token_type")?,
            merges: texts(metadata.merges, metadata.merge_count, "tokenizer.ggml.merges")?,
            bos: optional_id(metadata.bos_id, "tokenizer.ggml.bos_token_id")?,
            eos: optional_id(metadata.eos_id, "tokenizer.ggml.eos_token_id")?,
            eot: optional_id(metadata.eot_id, "tokenizer.ggml.eot_token_id")?,
            add_bos: (metadata.add_bos >= 0).then_some(metadata.add_bos > 0),
            chat_template: text(metadata.chat_template, "tokenizer.chat_template")?,
        })?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_from_json(
    tokenizer_json: View,
    config_json: View,
    out: *mut *mut Tokenizer,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let out = output(out)?;
        let tokenizer = json::tokenizer(
            text(tokenizer_json, "tokenizer.json")?,
            text(config_json, "tokenizer_config.json")?,
        )?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_encode(
    tokenizer: *const Tokenizer,
    input: View,
    flags: u32,
    out: *mut Ids,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let tokenizer = handle(tokenizer, "tokenizer")?;
        let out = output(out)?;
        if flags & !(PARSE_SPECIAL | ADD_SPECIAL) != 0 {
            return Err(Error::invalid_argument(format!("unknown flags {flags:#x}")));
        }
        let input = text(input, "text")?;
        let ids = tokenizer.encode(input, flags & PARSE_SPECIAL != 0, flags & ADD_SPECIAL != 0)?;
        let (data, size) = into_raw(ids);
        *out = Ids { data, size };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_vocab_size(tokenizer: *const Tokenizer) -> usize {
    guarded_value(0, || Some(tokenizer.as_ref()?.vocab.size()))
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_token_bytes(
    tokenizer: *const Tokenizer,
    id: u32,
    out: *mut View,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let tokenizer = handle(tokenizer, "tokenizer")?;
        let out = output(out)?;
        let bytes =
            tokenizer.vocab.token_bytes(id).ok_or_else(|| out_of_range(id, tokenizer.vocab.size()))?;
        *out = view(bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_token_id(tokenizer: *const Tokenizer, input: View) -> i64 {
    guarded_value(-1, || tokenizer.as_ref()?.token_id(text(input, "text").ok()?).map(i64::from))
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_is_special(tokenizer: *const Tokenizer, id: u32) -> i32 {
    guarded_value(0, || Some(i32::from(tokenizer.as_ref()?.vocab.is_special(id))))
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_bos(tokenizer: *const Tokenizer) -> i64 {
    guarded_value(-1, || tokenizer.as_ref()?.bos.map(i64::from))
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_add_bos(tokenizer: *const Tokenizer) -> i32 {
    guarded_value(0, || Some(i32::from(tokenizer.as_ref()?.adds_bos())))
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_end_ids(tokenizer: *const Tokenizer, count: *mut usize) -> *const u32 {
    let ids = tokenizer.as_ref().map_or(&[][..], |tokenizer| tokenizer.end_ids.as_slice());
    if let Some(count) = count.as_mut() {
        *count = ids.len();
    }
    ids.as_ptr()
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_decoder_new(
    tokenizer: *const Tokenizer,
    skip_special: i32,
    out: *mut *mut Detokenizer,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let tokenizer = handle(tokenizer, "tokenizer")?;
        let out = output(out)?;
        let decoder = Detokenizer::new(tokenizer.vocab.clone(), skip_special != 0);
        *out = Box::into_raw(Box::new(decoder));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_decoder_free(decoder: *mut Detokenizer) {
    if !decoder.is_null() {
        drop(Box::from_raw(decoder));
    }
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_decoder_push(
    decoder: *mut Detokenizer,
    id: u32,
    out: *mut View,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let decoder = decoder.as_mut().ok_or_else(|| Error::invalid_argument("decoder is NULL"))?;
        let out = output(out)?;
        *out = view(decoder.push(id)?.as_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_decoder_flush(
    decoder: *mut Detokenizer,
    out: *mut View,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let decoder = decoder.as_mut().ok_or_else(|| Error::invalid_argument("decoder is NULL"))?;
        let out = output(out)?;
        *out = view(decoder.flush().as_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_has_chat_template(tokenizer: *const Tokenizer) -> i32 {
    guarded_value(0, || Some(i32::from(tokenizer.as_ref()?.chat_template.is_some())))
}

unsafe fn chat_inputs<'a>(chat: *const ChatIn) -> Result<Chat<'a>> {
    let chat = handle(chat, "chat")?;
    Ok(Chat {
        messages: text(chat.messages_json, "messages_json")?,
        tools: text(chat.tools_json, "tools_json")?,
        variables: text(chat.variables_json, "variables_json")?,
        template: text(chat.template_source, "template_source")?,
        add_generation_prompt: chat.add_generation_prompt != 0,
        now: chat.now,
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_chat_render(
    tokenizer: *const Tokenizer,
    chat: *const ChatIn,
    out: *mut Bytes,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let tokenizer = handle(tokenizer, "tokenizer")?;
        let out = output(out)?;
        let (data, size) = into_raw(chat::render(tokenizer, &chat_inputs(chat)?)?.into_bytes());
        *out = Bytes { data: data.cast(), size };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn samara_text_chat_encode(
    tokenizer: *const Tokenizer,
    chat: *const ChatIn,
    out: *mut Ids,
    error: *mut ErrorOut,
) -> Status {
    guarded(error, || {
        let tokenizer = handle(tokenizer, "tokenizer")?;
        let out = output(out)?;
        let (data, size) = into_raw(chat::encode(tokenizer, &chat_inputs(chat)?)?);
        *out = Ids { data, size };
        Ok(())
    })
}
