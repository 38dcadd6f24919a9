//! Recognises the message of a prompt that exceeds the model's context. Used by the parsers of providers' errors: few servers have a code
//! for it, and each has its own words. As of 2026-11.

/// Parts of the messages, in lower case. `*` stands for any text within the message.
const WORDINGS: &[&str] = &[
    // OpenAI, Azure, DeepSeek, OpenRouter, vLLM before 0.16, Fireworks.
    "maximum context length",
    // OpenAI's responses.
    "exceeds the context window",
    // vLLM from 0.16.
    "context length is only",
    "is longer than the maximum model length",
    // SGLang, Together.
    "longer than the model's context length",
    "exceeds the model's context length",
    "exceeds the model's maximum context",
    // llama.cpp, llama-cpp-python, LM Studio, Jan.
    "exceeds the available context size",
    "exceed context window of",
    "greater than the context length",
    "exceeds the context size",
    "exceeds context size",
    "context size has been exceeded",
    "context window is full",
    // Ollama.
    "exceeded max context length",
    "exceeds the context length",
    "exceeds the context",
    "exceeds maximum context",
    "exceeds context length",
    "exceeds maximum context length",
    // Anthropic, Bedrock, Databricks.
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "exceed context limit",
    "too many input tokens",
    "input tokens exceeded",
    "number of input tokens exceeds",
    "exceeds maximum length",
    "exceeds the maximum length",
    "reduce the length of the prompt",
    "reduce the length of the input",
    "reduce the length of the messages",
    "reduce your prompt",
    // Gemini, Vertex AI.
    "exceeds the maximum number of tokens",
    "exceeds the maximum tokens allowed",
    "input token count*exceeds",
    "input context is too long",
    // GitHub Copilot, OVHcloud.
    "token count of*exceeds the limit",
    "token count exceeds",
    // xAI.
    "maximum prompt length is",
    // Mistral.
    "too large for model with",
    // MiniMax.
    "context window exceeds limit",
    // Moonshot.
    "exceeded model token limit",
    "input token length too long",
    // Text Generation Inference.
    "inputs tokens + max_new_tokens must be",
    "`inputs` tokens + `max_new_tokens` must be",
    "`inputs` must have less than",
    "inputs must have less than",
    // Cohere.
    "too many tokens: ",
    "size limit exceeded by",
    // DashScope.
    "range of input length should be",
    // Z.ai.
    "prompt exceeds max length",
    "tokens in request more than max tokens allowed",
    // watsonx.
    "input tokens*cannot exceed the total tokens limit",
    // Volcengine.
    "exceed max message tokens",
    // TensorRT-LLM, NVIDIA NIM.
    "should not exceed max_num_tokens",
    "exceeds max_seq_len",
    "prompt length*exceeds",
    "input length*exceeds",
    "sequence length*exceeds",
    "context length exceeded",
    "context_length_exceeded",
    "context window exceeded",
    "model_context_window_exceeded",
];

/// What the messages of rate limits have, which may count tokens too.
const LIMITS: &[&str] = &[
    "per minute",
    "per min",
    "per day",
    "per hour",
    "per second",
    "(tpm)",
    "(tpd)",
    "rate limit",
    "rate_limit",
    "please wait",
    "quota",
    "try again in",
];

/// Whether a provider's message is about a prompt that exceeds the model's context.
pub(crate) fn is_overflow(message: &str) -> bool {
    let text = message.to_lowercase();
    let has = |wording: &&str| {
        let mut rest = text.as_str();
        wording.split('*').all(|part| match rest.split_once(part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    };
    !LIMITS.iter().any(|limit| text.contains(limit)) && WORDINGS.iter().any(has)
}

/// Whether an error with this status, or without one, may be about the context. 429 is a rate limit whatever its words are.
pub(crate) fn may_be(status: Option<u16>) -> bool {
    !matches!(status, Some(401..=404 | 429))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_servers_wording_is_recognised() {
        for text in [
            "You passed 4097 input tokens and requested 0 output tokens. However, the model's context length is only 4096 tokens, \
             resulting in a maximum input length of 4096 tokens.",
            "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
            "prompt too long; exceeded max context length by 4903 tokens",
            "Input is too long for requested model.",
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "Requested tokens (5000) exceed context window of 4096",
            "prompt is too long: 215000 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            "prompt token count of 150000 exceeds the limit of 128000",
            "Your request exceeded model token limit: 262144 (requested: 300000)",
            "invalid params, context window exceeds limit (2013)",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            "Please reduce the length of the messages or completion. Current length is 40000 while limit is 32768",
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
            "too many tokens: size limit exceeded by 200 tokens",
            "Trying to keep the first 9000 tokens when context the overflows. The number of tokens to keep from the initial prompt is \
             greater than the context length.",
        ] {
            assert!(is_overflow(text), "{text}");
        }
    }

    #[test]
    fn rate_limits_and_other_lengths_are_something_else() {
        for text in [
            "Too many tokens, please wait before trying again.",
            "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size",
            "Rate limit reached: input tokens exceeded",
            "max_tokens is too large: 50000. This model supports at most 16384 completion tokens",
            "Invalid 'user': string too long. Expected a string with maximum length 64",
            "The model is overloaded",
            "",
        ] {
            assert!(!is_overflow(text), "{text}");
        }
    }
}
