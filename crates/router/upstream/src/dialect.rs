//! The dialects of requests that are forwarded, as client and provider may share them.

/// A dialect that client and provider may share, so that bytes are forwarded: see [`Client::forward`](crate::Client::forward).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    OpenAiChat,
    /// `/v1/completions`.
    OpenAiCompletions,
    /// `/v1/responses`.
    OpenAiResponses,
    /// `/v1/embeddings`.
    OpenAiEmbeddings,
    /// `/v1/messages`.
    AnthropicMessages,
    /// `/v1/messages/count_tokens`.
    AnthropicCountTokens,
    /// `/api/chat`.
    OllamaChat,
    /// `/api/generate`.
    OllamaGenerate,
    /// `/api/embed`.
    OllamaEmbed,
    /// `:generateContent` and `:streamGenerateContent`.
    Gemini,
    /// `:countTokens`.
    GeminiCountTokens,
    /// `:embedContent`.
    GeminiEmbed,
    /// `:batchEmbedContents`.
    GeminiBatchEmbed,
    /// An endpoint that Octet does not parse.
    Passed(Passed),
}

/// OpenAI's endpoints that are forwarded unread, to providers that have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Passed {
    /// `/v1/audio/transcriptions`.
    Transcriptions,
    /// `/v1/audio/translations`.
    Translations,
    /// `/v1/audio/speech`.
    Speech,
    /// `/v1/images/generations`.
    ImageGenerations,
    /// `/v1/images/edits`.
    ImageEdits,
    /// `/v1/images/variations`.
    ImageVariations,
    /// `/v1/moderations`.
    Moderations,
    /// `/v1/rerank`, as Jina and Cohere have it.
    Rerank,
}

impl Passed {
    /// All, with their paths after `/v1`.
    pub const PATHS: [(&'static str, Self); 8] = [
        ("/audio/transcriptions", Self::Transcriptions),
        ("/audio/translations", Self::Translations),
        ("/audio/speech", Self::Speech),
        ("/images/generations", Self::ImageGenerations),
        ("/images/edits", Self::ImageEdits),
        ("/images/variations", Self::ImageVariations),
        ("/moderations", Self::Moderations),
        ("/rerank", Self::Rerank),
    ];

    /// Its path after `/v1`.
    pub fn path(self) -> &'static str {
        Self::PATHS.iter().find(|(_, passed)| *passed == self).map_or("", |(path, _)| path)
    }
}
