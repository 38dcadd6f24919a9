//! Choosing by tags, like LiteLLM's `enable_tag_filtering`: which deployments of a group a request's tags allow.

use octet_config::TagFilter;

use crate::table::{Deployment, Group};

/// The tag of deployments for requests that match no other tag.
const DEFAULT: &str = "default";

/// Whether a request with `tags` may go to `d`.
///
/// - `!x` leaves out deployments with the tag `x`, `&x` those without it.
/// - Of the others, those with one of the remaining tags answer (with all of them, if `tag_filtering_match_any` is false).
/// - Where none has, or there are no such tags, those with the tag `default` answer; a request without tags may go to all of a group
///   that has none of these.
pub fn admits<T>(filter: TagFilter, group: &Group<T>, d: &Deployment<T>, tags: &[String]) -> bool {
    let is_plain = |tag: &&str| !tag.starts_with(['!', '&']);
    let plain: Vec<&str> = tags.iter().map(String::as_str).filter(is_plain).collect();
    let signed = |sign: char| tags.iter().filter_map(move |t| t.strip_prefix(sign)).filter(|t| !t.is_empty());
    let has = |d: &Deployment<T>, tag: &str| d.tags.iter().any(|t| t == tag);
    let is_left =
        |d: &Deployment<T>| signed('!').all(|tag| !has(d, tag)) && signed('&').all(|tag| has(d, tag));
    let matches = |d: &Deployment<T>| {
        let mut each = plain.iter().map(|tag| has(d, tag));
        !plain.is_empty() && if filter.match_any { each.any(|m| m) } else { each.all(|m| m) }
    };
    if !is_left(d) {
        return false;
    }
    if group.deployments.iter().any(|other| is_left(other) && matches(other)) {
        return matches(d);
    }
    if !plain.is_empty() {
        return has(d, DEFAULT);
    }
    let is_required = signed('&').next().is_some();
    is_required || has(d, DEFAULT) || !group.deployments.iter().any(|d| has(d, DEFAULT))
}
