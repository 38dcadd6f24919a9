//! Anthropic's `cache_control`, which clients of several dialects send.

use crate::core::CacheBreakpoint;
use crate::json::{Field, Object, Result};
use crate::rules::echo;

/// `cache_control` of a block, a message or a tool.
pub(crate) fn cache_control(o: &mut Object) -> Result<Option<CacheBreakpoint>> {
    o.read("cache_control", |f| {
        let mut o = f.object()?;
        let ttl = o.read("ttl", Field::string)?;
        // All caches are of one kind and shared.
        o.finish(&[&[("type", echo()), ("scope", echo())]])?;
        Ok(CacheBreakpoint { ttl, openai_form: false })
    })
}
