//! Parses errors of Amazon Bedrock: a name and a message.

use serde_json::Value;

use crate::openai::error::unreadable;
use crate::{ApiError, ErrorKind, overflow};

/// Parses a provider's error from its status, the header `x-amzn-errortype` and its body.
pub fn parse(status: u16, name: Option<&str>, body: &[u8]) -> ApiError {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return ApiError::new(ErrorKind::from_status(status), unreadable(status, body));
    };
    let name = name.or_else(|| value["__type"].as_str()).unwrap_or("");
    from_value(name, &value, Some(status))
}

/// Parses an error by its name: `ThrottlingException`, `throttlingException`, `x#ThrottlingException:http://...`.
pub(super) fn from_value(name: &str, value: &Value, status: Option<u16>) -> ApiError {
    let name = name.split(':').next().unwrap_or("").rsplit('#').next().unwrap_or("");
    let message = ["message", "Message"].iter().find_map(|key| value[*key].as_str());
    let message = message.unwrap_or("the provider returned an error without a message");
    let kind = match name.to_ascii_lowercase().as_str() {
        "validationexception" | "modelerrorexception" if overflow::is_overflow(message) => {
            ErrorKind::ContextLength
        }
        "validationexception" | "serializationexception" => ErrorKind::InvalidRequest,
        "throttlingexception" | "servicequotaexceededexception" | "toomanyrequestsexception" => {
            ErrorKind::RateLimit
        }
        "unrecognizedclientexception"
        | "invalidsignatureexception"
        | "expiredtokenexception"
        | "missingauthenticationtokenexception"
        | "incompletesignatureexception" => ErrorKind::Authentication,
        "accessdeniedexception" => ErrorKind::Permission,
        "resourcenotfoundexception" => ErrorKind::NotFound,
        "serviceunavailableexception" | "modelnotreadyexception" => ErrorKind::Overloaded,
        "modeltimeoutexception" => ErrorKind::Timeout,
        "modelerrorexception" | "modelstreamerrorexception" | "internalserverexception" => {
            ErrorKind::Upstream
        }
        _ => status.map_or(ErrorKind::Upstream, ErrorKind::from_status),
    };
    ApiError { code: (!name.is_empty()).then(|| name.to_string()), ..ApiError::new(kind, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        for (status, name, body, kind) in [
            (
                400,
                Some("ValidationException:http://x/"),
                r#"{"message":"Input is too long for requested model."}"#,
                ErrorKind::ContextLength,
            ),
            (400, Some("ValidationException"), r#"{"message":"bad"}"#, ErrorKind::InvalidRequest),
            (
                429,
                None,
                r#"{"__type":"com.amazon#ThrottlingException","message":"slow"}"#,
                ErrorKind::RateLimit,
            ),
            (403, Some("UnrecognizedClientException"), r#"{"message":"token"}"#, ErrorKind::Authentication),
            (503, None, "<html>", ErrorKind::from_status(503)),
        ] {
            assert_eq!(parse(status, name, body.as_bytes()).kind, kind, "{body}");
        }
    }
}
