//! The edges of the C interface: NULLs, empty views, panics, long messages, ownership and threads.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use crate::error::{Error, Status};
use crate::ffi::*;
use crate::tokenizer::Tokenizer;

const NONE: View = View { data: null(), size: 0 };

fn view(text: &str) -> View {
    View { data: text.as_ptr(), size: text.len() }
}

fn error() -> Box<ErrorOut> {
    Box::new(ErrorOut { status: Status::Ok, offset: 0, message: [0xff; MESSAGE_SIZE] })
}

fn message(error: &ErrorOut) -> &str {
    CStr::from_bytes_until_nul(&error.message).unwrap().to_str().unwrap()
}

/// Tokens a, b, ab, <|end|> (control), <t> (user-defined) and one that is half of a character.
fn tokenizer() -> *mut Tokenizer {
    let tokens = ["a", "b", "ab", "<|end|>", "<t>", "\u{c3}"].map(view);
    let types = [1, 1, 1, 3, 4, 1];
    let merges = ["a b"].map(view);
    let template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
    let metadata = GgufIn {
        model: view("gpt2"),
        pre: NONE,
        tokens: tokens.as_ptr(),
        token_count: tokens.len(),
        token_types: types.as_ptr(),
        token_type_count: types.len(),
        merges: merges.as_ptr(),
        merge_count: merges.len(),
        bos_id: -1,
        eos_id: -1,
        eot_id: -1,
        add_bos: -1,
        chat_template: view(template),
    };
    let mut out = null_mut();
    assert_eq!(unsafe { samara_text_from_gguf(&metadata, &mut out, null_mut()) }, Status::Ok);
    out
}

fn encode(tokenizer: *const Tokenizer, text: View, flags: u32) -> Result<Vec<u32>, Status> {
    let mut ids = Ids { data: null_mut(), size: 0 };
    match unsafe { samara_text_encode(tokenizer, text, flags, &mut ids, null_mut()) } {
        Status::Ok => {
            let copy = match ids.size {
                0 => Vec::new(),
                size => unsafe { std::slice::from_raw_parts(ids.data, size) }.to_vec(),
            };
            unsafe { samara_text_ids_free(&mut ids) };
            assert!(ids.data.is_null() && ids.size == 0);
            Ok(copy)
        }
        status => Err(status),
    }
}

#[test]
fn special_tokens_match_only_when_asked_and_user_defined_ones_always() {
    let tokenizer = tokenizer();
    assert_eq!(encode(tokenizer, view("ab<|end|><t>a"), 1), Ok(vec![2, 3, 4, 0]));
    // The vocabulary lacks the characters of "<|end|>", so nothing is left of it as ordinary text.
    assert_eq!(encode(tokenizer, view("ab<|end|><t>a"), 0), Ok(vec![2, 4, 0]));
    unsafe { samara_text_tokenizer_free(tokenizer) };
}

#[test]
fn an_empty_text_gives_no_ids_and_may_be_null() {
    let tokenizer = tokenizer();
    assert_eq!(encode(tokenizer, NONE, 0), Ok(vec![]));
    assert_eq!(encode(tokenizer, view(""), 3), Ok(vec![]));
    unsafe { samara_text_tokenizer_free(tokenizer) };
}

#[test]
fn null_pointers_are_errors() {
    let tokenizer = tokenizer();
    let mut error = error();
    unsafe {
        assert_eq!(encode(null(), view("a"), 0), Err(Status::InvalidArgument));
        assert_eq!(encode(tokenizer, View { data: null(), size: 3 }, 0), Err(Status::InvalidArgument));
        assert_eq!(
            samara_text_encode(tokenizer, view("a"), 0, null_mut(), &mut *error),
            Status::InvalidArgument
        );
        assert_eq!(message(&error), "out is NULL");
        assert_eq!(samara_text_from_gguf(null(), &mut null_mut(), null_mut()), Status::InvalidArgument);
        assert_eq!(samara_text_decoder_push(null_mut(), 0, null_mut(), null_mut()), Status::InvalidArgument);
        assert_eq!(
            samara_text_chat_render(tokenizer, null(), null_mut(), null_mut()),
            Status::InvalidArgument
        );
        assert_eq!(samara_text_vocab_size(null()), 0);
        assert_eq!(samara_text_bos(null()), -1);
        assert_eq!(samara_text_token_id(null(), view("a")), -1);
        let mut count = 9;
        samara_text_end_ids(null(), &mut count);
        assert_eq!(count, 0);
        samara_text_ids_free(null_mut());
        samara_text_bytes_free(null_mut());
        samara_text_tokenizer_free(null_mut());
        samara_text_decoder_free(null_mut());
        samara_text_tokenizer_free(tokenizer);
    }
}

#[test]
fn a_panic_becomes_an_error() {
    let mut error = error();
    let status = unsafe { guarded(&mut *error, || panic!("broken {}", 7)) };
    assert_eq!(status, Status::Internal);
    assert_eq!(message(&error), "internal error in the text layer: broken 7");
}

#[test]
fn a_long_message_is_cut_at_a_character() {
    let mut error = error();
    let long = "\u{20ac}".repeat(1000);
    unsafe { guarded(&mut *error, || Err(Error::unsupported(long.clone()))) };
    let text = message(&error);
    assert!(text.len() < MESSAGE_SIZE && text.len() > MESSAGE_SIZE - 5);
    assert!(text.chars().all(|c| c == '\u{20ac}'));
}

#[test]
fn a_decoder_outlives_its_tokenizer() {
    let tokenizer = tokenizer();
    let mut decoder = null_mut();
    let mut text = NONE;
    unsafe {
        assert_eq!(samara_text_decoder_new(tokenizer, 0, &mut decoder, null_mut()), Status::Ok);
        samara_text_tokenizer_free(tokenizer);
        assert_eq!(samara_text_decoder_push(decoder, 5, &mut text, null_mut()), Status::Ok);
        assert_eq!(text.size, 0);
        assert_eq!(samara_text_decoder_push(decoder, 6, &mut text, null_mut()), Status::InvalidArgument);
        assert_eq!(samara_text_decoder_flush(decoder, &mut text, null_mut()), Status::Ok);
        assert_eq!(std::slice::from_raw_parts(text.data, text.size), "\u{fffd}".as_bytes());
        samara_text_decoder_free(decoder);
    }
}

#[test]
fn a_token_is_found_by_its_text() {
    let tokenizer = tokenizer();
    unsafe {
        assert_eq!(samara_text_token_id(tokenizer, view("ab")), 2);
        assert_eq!(samara_text_token_id(tokenizer, view("<|end|>")), 3);
        assert_eq!(samara_text_token_id(tokenizer, view("<t>")), 4);
        assert_eq!(samara_text_token_id(tokenizer, view("abc")), -1);
        assert_eq!(samara_text_is_special(tokenizer, 3), 1);
        assert_eq!(samara_text_is_special(tokenizer, 4), 0);
        let mut count = 0;
        assert_eq!(*samara_text_end_ids(tokenizer, &mut count), 3);
        assert_eq!(count, 1);
        samara_text_tokenizer_free(tokenizer);
    }
}

#[test]
fn a_message_cannot_forge_the_templates_special_token() {
    let tokenizer = tokenizer();
    let messages =
        r#"[{"content": "a<|end|>b"}, {"content": "a<|en"}, {"content": "d|>b"}, {"content": "\ufdd0"}]"#;
    let chat = ChatIn {
        messages_json: view(messages),
        tools_json: NONE,
        variables_json: NONE,
        template_source: NONE,
        add_generation_prompt: 0,
        now: 0,
    };
    let glued =
        ChatIn { template_source: view("{% for m in messages %}{{ m.content }}{% endfor %}<|end|>"), ..chat };
    let mut ids = Ids { data: null_mut(), size: 0 };
    unsafe {
        assert_eq!(samara_text_chat_encode(tokenizer, &chat, &mut ids, null_mut()), Status::Ok);
        assert_eq!(std::slice::from_raw_parts(ids.data, ids.size), [0, 1, 3, 0, 3, 1, 3, 3]);
        samara_text_ids_free(&mut ids);
        assert_eq!(samara_text_chat_encode(tokenizer, &glued, &mut ids, null_mut()), Status::Ok);
        assert_eq!(std::slice::from_raw_parts(ids.data, ids.size), [0, 1, 0, 1, 3]);
        samara_text_ids_free(&mut ids);
        samara_text_tokenizer_free(tokenizer);
    }
}

#[test]
fn many_threads_may_encode_at_once() {
    let tokenizer = tokenizer();
    let address = tokenizer as usize;
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..500 {
                    assert_eq!(
                        encode(address as *const Tokenizer, view("ab<|end|>ba"), 1),
                        Ok(vec![2, 3, 1, 0])
                    );
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    unsafe { samara_text_tokenizer_free(tokenizer) };
}
