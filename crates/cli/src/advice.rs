//! Hints for errors, in terms of this command line: libraries report what is wrong and know no flags. Called wherever an error is
//! printed.

use octet_engine::Error as EngineError;
use octet_engine::template::TemplateError;
use octet_hub::Error as HubError;

/// Where the error is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Command,
    Chat,
}

/// A hint to add to the error, if there is one.
pub fn advice(e: &anyhow::Error, place: Place) -> Option<&'static str> {
    e.chain().find_map(|cause| {
        if let Some(EngineError::ContextFull { .. }) = cause.downcast_ref() {
            return Some(match place {
                Place::Command => "shorten the prompt, or give more room with --ctx-size",
                Place::Chat => "/clear starts a new conversation; a larger --ctx-size gives more room",
            });
        }
        if let Some(EngineError::ContextTooLong { .. }) = cause.downcast_ref() {
            return Some("give a smaller --ctx-size");
        }
        if let Some(TemplateError::Missing) = cause.downcast_ref() {
            return Some(
                "give one with --chat-template FILE; `octet run --raw` continues a text without one",
            );
        }
        match cause.downcast_ref() {
            Some(HubError::NotRemovable { .. } | HubError::NoSuchPath(_)) => {
                Some("`octet list` shows the models on this machine")
            }
            _ => None,
        }
    })
}
