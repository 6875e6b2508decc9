//! What each token id stands for, and which ids are special.

use std::collections::HashMap;

/// The byte that each character of the byte-level alphabet stands for. GPT-2 shows printable Latin-1 bytes as
/// themselves and the other 68, in ascending order, as U+0100 and up.
pub fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                next += 1;
                (char::from_u32(next - 1).unwrap_or_default(), byte)
            }
        })
        .collect()
}

/// Bytes of a vocabulary entry in the byte-level alphabet. One with a foreign character is taken as it is written.
pub fn byte_level_bytes(alphabet: &HashMap<char, u8>, text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| alphabet.get(&c).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Bytes of every token in one block: 150,000 small allocations would cost more memory than their content.
#[derive(Default)]
pub struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<usize>,   // (size)
    special: Vec<bool>, // (size)
}

impl Vocab {
    pub fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// None if the id is out of range.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}
