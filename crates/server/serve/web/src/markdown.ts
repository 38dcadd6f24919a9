// Markdown to blocks of clean HTML. HTML in the source stays text; what comes out is cleaned once more before it is shown.
import { tex } from "@mdit/plugin-tex";
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { t } from "./i18n.ts";

const md = new MarkdownIt({ html: false, linkify: true, breaks: false });
// An image would be a request to another host.
md.disable("image");
md.use(tex, {
  delimiters: "all",
  render: (source: string, display: boolean) => `<span class="tex${display ? " display" : ""}">${md.utils.escapeHtml(source)}</span>`,
});
const safe = /^(https?:|mailto:)/i;
md.validateLink = url => safe.test(url.trim());
md.renderer.rules.link_open = (tokens, i, options, _env, self) => {
  tokens[i]!.attrSet("target", "_blank");
  tokens[i]!.attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, i, options);
};
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

function code(text: string, lang: string): string {
  const name = md.utils.escapeHtml(lang.slice(0, 40));
  const copy = md.utils.escapeHtml(t("copy"));
  return `<div class="code"><div><span>${name}</span><button type="button" class="bare copy">${copy}</button></div><pre tabindex="0"><code data-lang="${name}">${md.utils.escapeHtml(text)}</code></pre></div>`;
}
md.renderer.rules.fence = (tokens, i) => code(tokens[i]!.content, tokens[i]!.info.trim().split(/\s+/)[0] ?? "");
md.renderer.rules.code_block = (tokens, i) => code(tokens[i]!.content, "");

/** The HTML of each block of a text. Equal blocks give equal HTML, so only the changed need be drawn. */
export function blocks(source: string): string[] {
  const env = {};
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
  ALLOWED_TAGS: "p br hr h1 h2 h3 h4 h5 h6 blockquote ul ol li table thead tbody tr th td div span pre code em strong s a button".split(" "),
  ALLOWED_ATTR: ["href", "target", "rel", "class", "start", "data-lang", "type", "tabindex"],
  ALLOWED_URI_REGEXP: safe,
  RETURN_TRUSTED_TYPE: true,
};

/** Cleaned HTML, as the browser's policy demands it. */
export function clean(html: string): TrustedHTML {
  return DOMPurify.sanitize(html, CLEAN) as unknown as TrustedHTML;
}
