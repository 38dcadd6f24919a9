// Markdown to blocks of clean HTML. HTML in the source stays text; what comes out is cleaned once more before it is shown.
import { footnote } from "@mdit/plugin-footnote";
import { tex } from "@mdit/plugin-tex";
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { t } from "./i18n.ts";

const md = new MarkdownIt({ html: false, linkify: true, breaks: false });
md.use(footnote);
md.use(tex, {
  delimiters: "all",
  render: (source: string, display: boolean) => `<span class="tex${display ? " display" : ""}">${md.utils.escapeHtml(source)}</span>`,
});
/** The lines of a formula that stands alone, `$$` to `$$`: what follows on the last line, or no end, makes it text. (The plugin's own takes all
 *  up to the next end, however far away.) */
md.block.ruler.at("math_block_dollar", (state, begin, end, silent) => {
  const line = (n: number) => state.src.slice(state.bMarks[n]! + state.tShift[n]!, state.eMarks[n]).trimEnd();
  if (!line(begin).startsWith("$$")) return false;
  const parts = [line(begin).slice(2)];
  let last = begin;
  while (!parts.at(-1)!.includes("$$")) {
    last++;
    if (last >= end || (line(last) && state.sCount[last]! < state.blkIndent)) return false;
    parts.push(line(last));
  }
  const close = parts.at(-1)!.indexOf("$$");
  if (close !== parts.at(-1)!.length - 2) return false;
  parts[parts.length - 1] = parts.at(-1)!.slice(0, close);
  const source = parts.join("\n").trim();
  if (!source) return false;
  if (silent) return true;
  const token = state.push("math_block", "math", 0);
  token.block = true;
  token.content = source;
  token.map = [begin, last + 1];
  token.markup = "$$";
  state.line = last + 1;
  return true;
}, { alt: ["paragraph", "reference", "blockquote", "list"] });
/** The same with text around it, `$$...$$` and `\\[...\\]`. */
md.inline.ruler.before("escape", "math_display", (state, silent) => {
  for (const [open, close] of [["$$", "$$"], ["\\[", "\\]"]] as const) {
    if (!state.src.startsWith(open, state.pos)) continue;
    const end = state.src.indexOf(close, state.pos + 2);
    const source = end < 0 ? "" : state.src.slice(state.pos + 2, end);
    if (!source.trim()) continue;
    if (!silent) state.push("math_block", "math", 0).content = source;
    state.pos = end + 2;
    return true;
  }
  return false;
});
const link = /^(https?:|mailto:)/i;
/** Pictures that are within the text. Any other would be a request to another host. */
const picture = /^data:image\/(png|jpeg|gif|webp|avif|svg\+xml);/i;
md.validateLink = url => link.test(url.trim()) || picture.test(url.trim());
md.renderer.rules.link_open = (tokens, i, options, _env, self) => {
  const token = tokens[i]!;
  if (link.test(token.attrGet("href") ?? "")) {
    token.attrSet("target", "_blank");
    token.attrSet("rel", "noopener noreferrer");
  } else {
    token.attrs = null;
  }
  return self.renderToken(tokens, i, options);
};
md.renderer.rules.image = (tokens, i) => {
  const token = tokens[i]!;
  const [source, alt] = [token.attrGet("src") ?? "", md.utils.escapeHtml(token.content)];
  if (picture.test(source)) return `<img src="${md.utils.escapeHtml(source)}" alt="${alt}">`;
  return `<a href="${md.utils.escapeHtml(source)}" target="_blank" rel="noopener noreferrer">${alt || md.utils.escapeHtml(source)}</a>`;
};

/** `- [ ]` and `- [x]`: boxes in front of the text. */
md.core.ruler.after("inline", "tasks", state => {
  state.tokens.forEach((token, i) => {
    const box = /^\[([ xX])\]\s/.exec(token.content);
    const first = token.children?.[0];
    if (!box || token.type !== "inline" || first?.type !== "text" || state.tokens[i - 1]?.type !== "paragraph_open") return;
    const item = state.tokens[i - 2];
    if (item?.type !== "list_item_open") return;
    item.attrJoin("class", "task");
    first.content = first.content.slice(box[0].length);
    const mark = new state.Token("task", "", 0);
    mark.meta = box[1] !== " ";
    token.children!.unshift(mark);
  });
});
md.renderer.rules.task = (tokens, i) => {
  const done = Boolean(tokens[i]!.meta);
  return `<span class="box" role="img" aria-label="${md.utils.escapeHtml(t(done ? "task.done" : "task.open"))}">${done ? "☑" : "☐"}</span> `;
};

// Footnotes: their names are those of one message, so that the notes of two do not meet.
const noteId = (tokens: { meta: { id: number } }[], i: number, env: { docId?: string }) => `${env.docId ?? ""}-${tokens[i]!.meta.id + 1}`;
type Rule = MarkdownIt["renderer"]["rules"][string];
/** `back` tells several references to one footnote apart. */
const noteRule = (draw: (name: string, n: number, back: string) => string): Rule => (tokens, i, _options, env) => {
  const { id, subId } = tokens[i]!.meta as { id: number; subId?: number };
  const name = noteId(tokens as never, i, env as { docId?: string });
  return draw(name, id + 1, subId ? `${name}-${subId + 1}` : name);
};
md.renderer.rules.footnote_ref = noteRule((name, n, back) => `<sup><a class="note-ref" href="#note${name}" id="from${back}" aria-label="${md.utils.escapeHtml(t("note", { n }))}">${n}</a></sup>`);
md.renderer.rules.footnote_block_open = () => `<section class="notes"><ol>`;
md.renderer.rules.footnote_open = noteRule(name => `<li id="note${name}">`);
md.renderer.rules.footnote_anchor = noteRule((_name, n, back) => ` <a class="note-ref" href="#from${back}" aria-label="${md.utils.escapeHtml(t("note.back", { n }))}">↩</a>`);
md.renderer.rules.table_open = () => `<div class="wide" tabindex="0"><table>`;
md.renderer.rules.table_close = () => "</table></div>";
// Alignment without a style attribute, which the page's policy forbids.
const cell: MarkdownIt["renderer"]["rules"][string] = (tokens, i, options, _env, self) => {
  const token = tokens[i]!;
  const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
  token.attrs = align ? [["class", align]] : null;
  return self.renderToken(tokens, i, options);
};
md.renderer.rules.th_open = cell;
md.renderer.rules.td_open = cell;

/** Languages that are shown in a frame of their own. */
const SHOWN: Record<string, string> = { html: "html", htm: "html", svg: "svg", mermaid: "mermaid" };

function code(text: string, lang: string): string {
  const name = md.utils.escapeHtml(lang.slice(0, 40));
  const kind = SHOWN[lang.toLowerCase()] ?? (lang === "xml" && text.trimStart().startsWith("<svg") ? "svg" : "");
  const button = (kind: string, key: "copy" | "preview") => `<button type="button" class="bare ${kind}">${md.utils.escapeHtml(t(key))}</button>`;
  const acts = `${kind ? button("preview", "preview") : ""}${button("copy", "copy")}`;
  return `<div class="code" data-kind="${kind}"><div><span>${name}</span><span>${acts}</span></div><pre tabindex="0"><code data-lang="${name}">${md.utils.escapeHtml(text)}</code></pre></div>`;
}
md.renderer.rules.fence = (tokens, i) => code(tokens[i]!.content, tokens[i]!.info.trim().split(/\s+/)[0] ?? "");
md.renderer.rules.code_block = (tokens, i) => code(tokens[i]!.content, "");

/** The HTML of each block of a text. Equal blocks give equal HTML, so only the changed need be drawn. `name` is that of the message. */
export function blocks(source: string, name = ""): string[] {
  const env = { docId: name };
  const tokens = md.parse(source, env);
  const out: string[] = [];
  let begin = 0;
  for (let i = 0, depth = 0; i < tokens.length; i++) {
    depth += tokens[i]!.nesting;
    if (depth > 0) continue;
    out.push(md.renderer.render(tokens.slice(begin, i + 1), md.options, env));
    begin = i + 1;
  }
  return out;
}

const CLEAN = {
  ALLOWED_TAGS: "p br hr h1 h2 h3 h4 h5 h6 blockquote ul ol li table thead tbody tr th td div span section sup pre code em strong s a img button".split(" "),
  ALLOWED_ATTR: ["href", "target", "rel", "class", "start", "data-lang", "data-kind", "type", "tabindex", "src", "alt", "id", "role", "aria-label"],
  // Else their values would have to be addresses.
  ADD_URI_SAFE_ATTR: ["target", "rel", "start", "type", "tabindex", "role", "aria-label", "data-lang", "data-kind"],
  ALLOWED_URI_REGEXP: /^(https?:|mailto:|#(note|from)[\w-]*$)/i,
  RETURN_TRUSTED_TYPE: true,
};

/** Cleaned HTML, as the browser's policy demands it. */
export function clean(html: string): TrustedHTML {
  return DOMPurify.sanitize(html, CLEAN) as unknown as TrustedHTML;
}
