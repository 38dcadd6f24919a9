//! Asks the fast model whether its own answer is right (AutoMix's self-verification, arXiv 2310.12963, with the probability of "yes"
//! instead of a vote over samples).

use octet_api::core::{Chat, Event, GenerateRequest, Input, Message, Role, Sampling};

use crate::size::{last_user_text, system_text};

/// Number of tokens that may contain yes or no.
const TOP: u32 = 20;
/// Maximum length of the reply in tokens.
const TOKENS_MAX: u32 = 4;

/// The question for the model that gave `answer`; `None` if there is nothing to check.
pub fn question(request: &GenerateRequest, answer: &str) -> Option<GenerateRequest> {
    let (last_user, answer) = (last_user_text(request), answer.trim());
    if last_user.trim().is_empty() || answer.is_empty() {
        return None;
    }
    let instructions = system_text(request);
    let context =
        if instructions.is_empty() { String::new() } else { format!("Instructions:\n{instructions}\n\n") };
    let text = format!(
        "{context}Question:\n{last_user}\n\nProposed answer:\n{answer}\n\n\
         Is the proposed answer correct and complete? Reply with one word, yes or no."
    );
    let mut chat = Chat { messages: vec![Message::text(Role::User, text)], ..Chat::default() };
    chat.reasoning.enabled = Some(false);
    Some(GenerateRequest {
        stream: true,
        include_usage: true,
        max_tokens: Some(TOKENS_MAX),
        logprobs: Some(TOP),
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        memory: request.memory.clone(),
        ..GenerateRequest::new(&request.model, Input::Chat(chat))
    })
}

/// The probability of "yes" relative to "no", at the first token that is one of them. `None` if neither is among the top tokens.
pub fn probability<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<f64> {
    let tokens = events.into_iter().filter_map(|e| match e {
        Event::Logprobs { tokens, .. } => Some(tokens),
        _ => None,
    });
    tokens.flatten().find_map(|token| {
        let of = |word: &str| -> f64 {
            let is =
                |t: &str| t.trim().trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case(word);
            token.top.iter().filter(|t| is(&t.token)).map(|t| f64::from(t.logprob).exp()).sum()
        };
        let (yes, no) = (of("yes"), of("no"));
        (yes + no > 0.0).then(|| yes / (yes + no))
    })
}
