//! Which deployment has seen which prompt: chained hashes of blocks of the prompt, and for each deployment the blocks that were sent to it.
//! The sets belong to `state`.

use std::collections::HashSet;

use octet_api::core::{
    GenerateRequest, Image, ImageSource, Input, Message, Part, Prompt, PromptPart, ReasoningPart,
};
use xxhash_rust::xxh3::Xxh3;

/// Approximate tokens of a block.
pub const BLOCK_TOKENS: u64 = 64;
/// Bytes of a block: 4 for each token.
const BLOCK_BYTES: usize = 256;
/// Maximum number of blocks of a prompt: about 500,000 tokens. The rest of a longer one does not affect the choice.
const BLOCKS_MAX: usize = 8192;
/// Maximum number of blocks in a set's older and newer half each: together about 8 million tokens, 2 MiB.
const HALF_MAX: usize = 1 << 16;

/// The hashes of a prompt's blocks. Each includes all blocks before it, so equal hashes are equal prompts up to that point. A last,
/// incomplete block is left out: the next turn of the conversation changes it.
pub fn blocks(request: &GenerateRequest) -> Vec<u64> {
    let mut out = Blocks { hash: Xxh3::with_seed(0), filled: 0, done: Vec::new() };
    match &request.input {
        Input::Chat(chat) => {
            for tool in &chat.tools {
                out.add(tool.name.as_bytes());
                out.add(tool.description.as_deref().unwrap_or_default().as_bytes());
                for (name, value) in &tool.parameters {
                    out.add(name.as_bytes());
                    out.add(value.to_string().as_bytes());
                }
            }
            chat.messages.iter().for_each(|message| out.message(message));
        }
        Input::Completion(completion) => {
            if let Some(prompt) = completion.prompts.first() {
                out.prompt(prompt);
            }
        }
    }
    out.done
}

struct Blocks {
    hash: Xxh3,
    /// Bytes in the current block.
    filled: usize,
    done: Vec<u64>,
}

impl Blocks {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.done.len() < BLOCKS_MAX {
            let (some, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
            self.hash.update(some);
            self.filled += some.len();
            if self.filled == BLOCK_BYTES {
                let digest = self.hash.digest();
                self.done.push(digest);
                (self.hash, self.filled) = (Xxh3::with_seed(digest), 0);
            }
            bytes = rest;
        }
    }

    fn message(&mut self, message: &Message) {
        // A byte that no text has: where a message begins matters.
        self.add(&[0xff, message.role as u8]);
        for reasoning in &message.reasoning {
            if let ReasoningPart::Text { text, .. } = reasoning {
                self.add(text.as_bytes());
            }
        }
        for part in &message.content {
            match part {
                Part::Text { text, .. } => self.add(text.as_bytes()),
                Part::Image { image, .. } => self.image(image),
            }
        }
        for call in &message.tool_calls {
            self.add(call.name.as_bytes());
            self.add(call.arguments.as_bytes());
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        match prompt {
            Prompt::Text(text) => self.add(text.as_bytes()),
            Prompt::Tokens(tokens) => tokens.iter().for_each(|token| self.add(&token.to_le_bytes())),
            Prompt::Mixed(parts) => parts.iter().for_each(|part| match part {
                PromptPart::Text(text) => self.add(text.as_bytes()),
                PromptPart::Token(token) => self.add(&token.to_le_bytes()),
                PromptPart::Image(image) => self.image(image),
            }),
        }
    }

    fn image(&mut self, image: &Image) {
        match &image.source {
            ImageSource::Url(url) => self.add(url.as_bytes()),
            ImageSource::Base64 { data, .. } => {
                let digest = xxhash_rust::xxh3::xxh3_64(data.as_bytes());
                self.add(&digest.to_le_bytes());
            }
        }
    }
}

/// The blocks that were sent to one deployment lately. Bounded: when the newer half is full, the older half is forgotten.
#[derive(Debug, Default)]
pub struct SentBlocks {
    newer: HashSet<u64>,
    older: HashSet<u64>,
}

impl SentBlocks {
    /// How many of the first `blocks` were sent.
    pub fn matched(&self, blocks: &[u64]) -> usize {
        // A block is in the set only if all before it are: each prompt was recorded whole.
        blocks.partition_point(|block| self.newer.contains(block) || self.older.contains(block))
    }

    /// Records a prompt.
    pub fn record(&mut self, blocks: &[u64]) {
        if self.newer.len() >= HALF_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        let known = blocks.partition_point(|block| self.newer.contains(block));
        self.newer.extend(&blocks[known..]);
    }
}

#[cfg(test)]
mod tests {
    use octet_api::core::{Chat, Role};

    use super::*;

    fn conversation(texts: &[&str]) -> GenerateRequest {
        let mut chat = Chat::default();
        for (i, text) in texts.iter().enumerate() {
            let role = if i % 2 == 0 { Role::User } else { Role::Assistant };
            chat.messages.push(Message { content: vec![Part::text(*text)], ..Message::empty(role) });
        }
        GenerateRequest::new("m", Input::Chat(chat))
    }

    #[test]
    fn a_longer_conversation_begins_with_the_blocks_of_the_shorter_one() {
        let (long, other) = ("a long question ".repeat(100), "another one ".repeat(100));
        let first = blocks(&conversation(&[&long]));
        assert_eq!(first.len(), (2 + long.len()) / BLOCK_BYTES);
        let second = blocks(&conversation(&[&long, &other, &long]));
        assert!(second.len() > first.len() && second.starts_with(&first));
        // The same text from another point on is another prompt.
        let moved = blocks(&conversation(&[&other, &long]));
        assert!(moved.iter().all(|block| !second.contains(block)));
        // Not the same as one message with both texts.
        let joined = blocks(&conversation(&[&format!("{long}{other}")]));
        assert!(joined.starts_with(&first) && joined.last() != second.get(joined.len() - 1));
        assert!(blocks(&conversation(&["short"])).is_empty());
    }

    #[test]
    fn sent_blocks_are_found_and_memory_is_bounded() {
        let prompt = |seed: u64, n: u64| (0..n).map(|i| (seed << 32) + i).collect::<Vec<u64>>();
        let mut sent = SentBlocks::default();
        sent.record(&prompt(1, 100));
        assert_eq!(sent.matched(&prompt(1, 150)), 100);
        assert_eq!(sent.matched(&prompt(2, 150)), 0);
        sent.record(&prompt(1, 150));
        assert_eq!(sent.matched(&prompt(1, 200)), 150);
        for seed in 2..200 {
            sent.record(&prompt(seed, 1000));
            // One that is in use stays.
            sent.record(&prompt(1, 150));
        }
        assert_eq!(sent.matched(&prompt(1, 200)), 150);
        assert_eq!(sent.matched(&prompt(2, 1000)), 0);
        assert_eq!(sent.matched(&prompt(199, 1000)), 1000);
        assert!(sent.newer.len() + sent.older.len() <= 2 * (HALF_MAX + BLOCKS_MAX));
    }
}
