//! The tokens of words that have come before. The library's own cache stays in every thread that has tokenised, for as long as the thread
//! lives: a server that loads and unloads models would grow for ever. This one belongs to its tokenizer.

use std::sync::{Mutex, PoisonError};

use ahash::{AHashMap, RandomState};

/// Threads rarely wait for each other with this many parts.
const PARTS: usize = 16;
/// Maximum number of words of a part.
const WORDS_MAX: usize = 10_000 / PARTS;
/// Maximum length of a word.
const WORD_BYTES_MAX: usize = 256;

type Part = Mutex<AHashMap<Box<str>, Box<[u32]>>>;

/// The cache of one tokenizer.
pub(super) struct WordCache {
    hasher: RandomState,
    parts: [Part; PARTS],
}

impl WordCache {
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            parts: [const { None }; PARTS].map(|_: Option<()>| Part::default()),
        }
    }

    fn part(&self, word: &str) -> &Part {
        &self.parts[self.hasher.hash_one(word) as usize % PARTS]
    }

    /// What `read` returns for the tokens of a word, if they are known.
    pub fn find<T>(&self, word: &str, read: impl FnOnce(&[u32]) -> T) -> Option<T> {
        let part = self.part(word).lock().unwrap_or_else(PoisonError::into_inner);
        part.get(word).map(|ids| read(ids))
    }

    /// Keeps the tokens of a word, if there is room.
    pub fn keep(&self, word: &str, ids: impl Iterator<Item = u32>) {
        if word.len() > WORD_BYTES_MAX {
            return;
        }
        let mut part = self.part(word).lock().unwrap_or_else(PoisonError::into_inner);
        if part.len() < WORDS_MAX {
            part.insert(word.into(), ids.collect());
        }
    }
}
