//! The one error type of the crate; its status values are those of `samara_text_status` in the C header.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    Ok = 0,
    InvalidArgument = 1,
    InvalidUtf8 = 2,
    Unsupported = 3,
    BadTokenizer = 4,
    Template = 5,
    Internal = 6,
}

#[derive(Debug)]
pub struct Error {
    pub status: Status,
    /// Byte offset into the text, for `InvalidUtf8`.
    pub offset: usize,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, offset: 0, message: message.into() }
    }

    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Status::Unsupported, message)
    }

    pub fn bad_tokenizer(message: impl Into<String>) -> Self {
        Self::new(Status::BadTokenizer, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
