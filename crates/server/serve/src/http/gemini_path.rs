//! Recognises the paths of Gemini's API and their methods.

/// The methods of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Generate,
    Stream,
    CountTokens,
    Embed,
    BatchEmbed,
}

/// Their names after the colon.
pub const METHODS: [(&str, Method); 5] = [
    ("generateContent", Method::Generate),
    ("streamGenerateContent", Method::Stream),
    ("countTokens", Method::CountTokens),
    ("embedContent", Method::Embed),
    ("batchEmbedContents", Method::BatchEmbed),
];

/// Whether a path belongs to Gemini's API.
pub fn is_path(path: &str) -> bool {
    ["/v1beta/", "/v1alpha/", "/gemini/"].iter().any(|p| path.starts_with(p)) && !path.contains("/openai/")
        || path.contains("/models/") && METHODS.iter().any(|(name, _)| of(path).is_some_and(|m| m == *name))
}

/// The text after the last colon.
fn of(path: &str) -> Option<&str> {
    path.rsplit_once(':').map(|(_, method)| method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_dialect_are_known() {
        for (path, is) in [
            ("/v1beta/models", true),
            ("/v1beta/models/smollm2:135m:streamGenerateContent", true),
            ("/v1/models/m:generateContent", true),
            ("/models/m:countTokens", true),
            ("/v1/models/smollm2:135m", false),
            ("/v1beta/openai/chat/completions", false),
            ("/v1/chat/completions", false),
        ] {
            assert_eq!(is_path(path), is, "{path}");
        }
    }
}
