// The page's Content-Security-Policy: computed here, checked by page.test.mjs. `node csp.mjs --write` sets it in the page.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";

export const page = new URL("../index.html", import.meta.url);

const META = /(<meta http-equiv="Content-Security-Policy" content=")([^"]*)(">)/;

/** The policy that stands in a page. */
export const written = html => META.exec(html)[2];

/** The policy that fits its scripts and style: nothing from elsewhere, no other script, no eval. */
export function policy(html) {
  const hashes = tag =>
    [...html.matchAll(new RegExp(`<${tag}>([^]*?)</${tag}>`, "g"))]
      .map(m => `'sha256-${createHash("sha256").update(m[1]).digest("base64")}'`)
      .join(" ");
  return `default-src 'none'; script-src ${hashes("script")}; style-src ${hashes("style")}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'`;
}

if (process.argv.includes("--write")) {
  const html = readFileSync(page, "utf8");
  writeFileSync(page, html.replace(META, (_, a, b, c) => a + policy(html) + c));
}
