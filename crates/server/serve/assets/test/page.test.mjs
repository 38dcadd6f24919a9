// Tests of ../index.html without a browser: `node --test crates/server/serve/assets/test`. No packages are needed.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import vm from "node:vm";
import { page, policy, written } from "./csp.mjs";

const html = readFileSync(page, "utf8");
const [pure, ui] = [...html.matchAll(/<script>([^]*?)<\/script>/g)].map(m => m[1]);
const context = vm.createContext({ URL });
vm.runInContext(pure, context);
const { markdown, safeHref, eventReader, errorText, statsText, chatFrom } = context;

const escape = s => s.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
/** A tree as the HTML that its elements would have. */
function print(node) {
  if (typeof node === "string") return escape(node);
  const kids = node.kids.map(print).join("");
  if (node.tag === "code-block") return `<pre ${node.lang}>${kids}</pre>`;
  const attrs = ["href", "start", "align"].filter(k => node[k]).map(k => ` ${k}=${node[k]}`).join("");
  return node.tag === "br" || node.tag === "hr" ? `<${node.tag}>` : `<${node.tag}${attrs}>${kids}</${node.tag}>`;
}
const shown = source => markdown(source).map(print).join("");
const check = cases => { for (const [source, expected] of cases) assert.equal(shown(source), expected, JSON.stringify(source)); };

test("text within a line", () => check([
  ["a *b* **c** ***d*** ~~e~~ _f_ __g__", "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> <em>f</em> <strong>g</strong></p>"],
  ["*a **b** c* **a *b***", "<p><em>a <strong>b</strong> c</em> <strong>a <em>b</em></strong></p>"],
  ["2 * 3 * 4, snake_case_name, a ** b, *open", "<p>2 * 3 * 4, snake_case_name, a ** b, *open</p>"],
  ["`*a*` ``b ` c`` ` d ` `open", "<p><code>*a*</code> <code>b ` c</code> <code>d</code> `open</p>"],
  ["\\*a\\* \\`b\\` 1\\. \\q", "<p>*a* `b` 1. \\q</p>"],
  ["**`a**b`**", "<p><strong><code>a**b</code></strong></p>"],
  ["a  \nb\\\nc\nd", "<p>a<br>b<br>c\nd</p>"],
]));

test("links", () => check([
  ["[a *b*](https://x.example/y_(z)_w \"t\")", "<p><a href=https://x.example/y_(z)_w>a <em>b</em></a></p>"],
  ["<https://x.example/> https://x.example/a_b_c. (http://y.example)", "<p><a href=https://x.example/>https://x.example/</a> <a href=https://x.example/a_b_c>https://x.example/a_b_c</a>. (<a href=http://y.example/>http://y.example</a>)</p>"],
  ["![p](https://x.example/p.png)", "<p><a href=https://x.example/p.png>p</a></p>"],
  ["[a](/b) [c](d)", "<p>[a](/b) [c](d)</p>"],
  ["[`c`](http://x.example/\\_)", "<p><a href=http://x.example/_><code>c</code></a></p>"],
]));

test("addresses that could run or load something are no links", () => {
  for (const href of ["javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,<script>", "vbscript:x", "file:///etc/passwd", "//x.example", "java\nscript:a", " javascript:a", "blob:https://a", "https://", "http://[", "https://a b"]) {
    assert.equal(safeHref(href), undefined, href);
    for (const text of [`[a](${href})`, `<${href}>`, `![a](${href})`]) assert.doesNotMatch(shown(text), /href=(?!https:\/\/a\/)/, text);
  }
  assert.equal(safeHref("mailto:a@b.example"), "mailto:a@b.example");
});

test("blocks", () => check([
  ["# A #\n## B `c`\n#no", "<h1>A</h1><h2>B <code>c</code></h2><p>#no</p>"],
  ["```rust x\nlet a = \"<b>\";\n\n  *c*\n```\nd", "<pre rust>let a = \"&lt;b>\";\n\n  *c*</pre><p>d</p>"],
  ["~~~\n```\n~~~\n````\n```\n````", "<pre >```</pre><pre >```</pre>"],
  ["a\n```\nopen", "<p>a</p><pre >open</pre>"],
  ["> a\n> > b\n\nc\n---\n* * *", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p><hr><hr>"],
  ["- a\n- b\n  - c\n    d\n- e", "<ul><li>a</li><li>b<ul><li>c\nd</li></ul></li><li>e</li></ul>"],
  ["3. a\n   ```\n   x\n   ```\n4. b\n  - c", "<ol start=3><li>a<pre >x</pre></li><li>b<ul><li>c</li></ul></li></ol>"],
  ["- a\n\n  b\n- c", "<ul><li><p>a</p><p>b</p></li><li><p>c</p></li></ul>"],
  ["- [ ] a\n- [x] b\n\ntext", "<ul><li>☐ a</li><li>☑ b</li></ul><p>text</p>"],
  ["a\n- b\n1. c", "<p>a</p><ul><li>b</li></ul><ol start=1><li>c</li></ol>"],
  ["| a | b |\n|:-:|--:|\n| *c* | d \\| e |\n| f |\n\ng", "<table><thead><tr><th align=center>a</th><th align=right>b</th></tr></thead><tbody><tr><td align=center><em>c</em></td><td align=right>d | e</td></tr><tr><td align=center>f</td><td align=right></td></tr></tbody></table><p>g</p>"],
  ["a | b\nc", "<p>a | b\nc</p>"],
  ["-", "<ul><li></li></ul>"],
  ["", ""],
]));

test("HTML stays text", () => {
  const allowed = new Set("p h1 h2 h3 h4 h5 h6 hr br blockquote ul ol li table thead tbody tr th td code em strong del a code-block".split(" "));
  const names = new Set(["tag", "kids", "href", "start", "align", "lang", "label", "raw"]);
  const walk = n => {
    if (typeof n === "string") return;
    assert.ok(allowed.has(n.tag), n.tag);
    for (const k of Object.keys(n)) assert.ok(names.has(k), k);
    if (n.href !== undefined) assert.match(n.href, /^(https?:|mailto:)/);
    if (n.align) assert.match(n.align, /^(center|right)$/);
    n.kids.forEach(walk);
  };
  assert.equal(shown("<img src=x onerror=alert(1)> <script>x</script>"), "<p>&lt;img src=x onerror=alert(1)> &lt;script>x&lt;/script></p>");
  assert.equal(shown("a\0" + "0\0 `b`"), "<p>a\ufffd0\ufffd <code>b</code></p>");
  // Random Markdown of the pieces that mean something.
  const pieces = ["*", "**", "_", "`", "```", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|-|-|", "[a](", "https://x.example", ")", "javascript:x", "<b onclick=x>", "\\", "\0", "1", "  ", "a", "~~", "![", "]"];
  let seed = 1;
  const random = n => (seed = seed * 48271 % 2147483647) % n;
  for (let i = 0; i < 20000; i++) markdown(Array.from({ length: random(30) }, () => pieces[random(pieces.length)]).join("")).forEach(walk);
});

test("hostile text does not hang the page", () => {
  const n = 20000;
  for (const piece of ["*a ", "**a", "***", "_a ", "[", "[a](", "![", "`", "` `` ", "> ", ">", "- ", "  - a\n", "|", "|-", "<https://", "(", "\\", "~~", "* * ", "# ", "[a](b(", "https://a)", "*a _b ", "\n> - ", "a\n"]) {
    const begin = performance.now();
    markdown(piece.repeat(n));
    markdown("\n" + piece.repeat(50) + "\n".repeat(n) + piece.repeat(n));
    const ms = performance.now() - begin;
    assert.ok(ms < 4000, `${JSON.stringify(piece)} took ${ms} ms`);
  }
});

test("events are read however they are cut", () => {
  const stream = "data: a\n\n: comment\r\ndata:b\r\ndata: c\r\n\r\nevent: x\nid: 1\n\ndata: [DONE]\n\ndata: cut off";
  const whole = ["a", "b\nc", "[DONE]"];
  for (let size = 1; size < stream.length; size++) {
    const got = [], read = eventReader(d => got.push(d));
    for (let i = 0; i < stream.length; i += size) read(stream.slice(i, i + size));
    assert.deepEqual(got, whole, `pieces of ${size}`);
  }
});

test("errors are readable", () => {
  assert.equal(errorText(400, "Bad Request", '{"error":{"message":"too long"}}'), "400 Bad Request: too long");
  assert.equal(errorText(404, "", '{"error":"no model"}'), "404: no model");
  assert.match(errorText(502, "Bad Gateway", "<html>x</html>"), /a web page/);
  assert.match(errorText(429, "Too Many Requests", "{}", "3"), /Try again in 3 s/);
  assert.match(errorText(401, "Unauthorized", ""), /API key/);
  assert.equal(errorText(500, "E", "null"), "500 E");
});

test("figures", () => {
  const usage = { prompt_tokens: 20, completion_tokens: 11, prompt_tokens_details: { cached_tokens: 16 } };
  assert.equal(statsText({ first: 250, last: 1250, usage }), "11 tokens · 10.0 tokens/s · first after 250 ms · prompt 20 tokens, 16 cached");
  assert.equal(statsText({ first: 1500, last: 1500, timings: { predicted_n: 5, predicted_per_second: 42, cache_n: 0 }, finish: "length" }), "5 tokens · 42.0 tokens/s · first after 1.5 s · cut off at the limit of tokens");
  assert.equal(statsText({ finish: "stopped" }), "stopped");
});

test("what is imported is what is expected", () => {
  const good = chatFrom({ id: "ab-1", title: "T", updated: 5, messages: [{ role: "user", content: "a", more: 1 }, { role: "system", content: "x" }, { role: "assistant", content: 3 }, null] });
  assert.equal(JSON.stringify(good), JSON.stringify({ id: "ab-1", title: "T", updated: 5, messages: [{ role: "user", content: "a", reasoning: "", error: "", stats: "" }] }));
  assert.equal(chatFrom({ id: "../x", messages: [] }).id, "");
  for (const bad of [null, 1, "x", {}, { messages: {} }]) assert.equal(chatFrom(bad), null);
});

test("the page is one file that loads and runs nothing else", () => {
  assert.ok(Buffer.byteLength(html) < 45 * 1024, `${Buffer.byteLength(html)} bytes`);
  assert.equal(written(html), policy(html), "run `node csp.mjs --write`");
  new vm.Script(ui);
  for (const bad of [/innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/, / on\w+="/, / style="/, /<(script|link|img)[^>]* src=/, /@import|url\(/]) assert.doesNotMatch(html, bad);
  const ids = new Set([...html.matchAll(/ id="([\w-]+)"/g)].map(m => m[1]));
  for (const [, id] of ui.matchAll(/\$\("([\w-]+)"\)/g)) assert.ok(ids.has(id), `no element ${id}`);
});
