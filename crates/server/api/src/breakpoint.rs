//! Breakpoints of the prompt cache. Clients of several dialects send Anthropic's `cache_control`.

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

/// The breakpoint of a part, in OpenAI's form, or in Anthropic's, as clients of Claude send it through routers.
pub(crate) fn breakpoint(o: &mut Object) -> Result<Option<CacheBreakpoint>> {
    let own = o.read("prompt_cache_breakpoint", |f| {
        let mut b = f.object()?;
        b.only("mode", &["explicit".into()], "a breakpoint is explicit")?;
        let ttl = b.read("ttl", Field::string)?;
        b.finish(&[])?;
        Ok(CacheBreakpoint { ttl, openai_form: true })
    })?;
    let anthropics = cache_control(o)?;
    Ok(own.or(anthropics))
}
