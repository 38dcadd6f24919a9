// Markdown on the screen: block by block, so that a growing answer draws its last block alone.
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { copy } from "../clipboard.ts";
import { t } from "../i18n.ts";
import { blocks, clean } from "../markdown.ts";
import { show, togglePreview } from "../preview.ts";
import * as state from "../state.ts";

/** How long a button says that it has copied. */
const SAID_MS = 1500;

function Block({ html, growing }: { html: string; growing: boolean }) {
  const ref = useRef<HTMLDivElement>(null);
  // Before anything is painted, so that no one sees the block empty.
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    element.innerHTML = clean(html) as unknown as string;
    const codes = element.querySelectorAll<HTMLElement>("pre code[data-lang]");
    if (codes.length) void import("../highlight.ts").then(({ highlight }) => codes.forEach(code => code.isConnected && highlight(code)));
    if (growing) return;
    // What still grows would fail half the time.
    const formulas = element.querySelectorAll<HTMLElement>(".tex");
    if (formulas.length) void import("../maths.ts").then(({ typeset }) => formulas.forEach(f => f.isConnected && typeset(f)));
    element.querySelectorAll('.code[data-kind="mermaid"]').forEach(show);
  }, [html, growing]);
  return <div ref={ref} />;
}

export async function copyText(text: string): Promise<boolean> {
  const copied = await copy(text);
  if (copied) state.announced.value = t("announce.copied");
  else state.note.value = t("error.copy");
  return copied;
}

async function copyCode(button: Element) {
  if (!(await copyText(button.closest(".code")?.querySelector("code")?.textContent ?? ""))) return;
  button.textContent = t("copied");
  setTimeout(() => (button.textContent = t("copy")), SAID_MS);
}

/** The buttons within are those of code blocks; the links within the page are those of footnotes. */
function onClick(e: MouseEvent) {
  if (!(e.target instanceof Element)) return;
  const button = e.target.closest(".code button");
  if (button?.classList.contains("copy")) void copyCode(button);
  else if (button?.classList.contains("preview")) togglePreview(button.closest(".code")!);
  const note = e.target.closest<HTMLAnchorElement>("a.note-ref");
  if (!note) return;
  // The address is that of the conversation.
  e.preventDefault();
  const to = document.getElementById(note.hash.slice(1));
  to?.scrollIntoView({ block: "center" });
  if (to instanceof HTMLAnchorElement) to.focus();
  else to?.querySelector<HTMLAnchorElement>("a.note-ref")?.focus();
}

export function Markdown({ text, name, running }: { text: string; name: string; running: boolean }) {
  const all = useMemo(() => blocks(text, name), [text, name]);
  return (
    <div class="md" onClick={onClick}>
      {all.map((html, i) => <Block key={i} html={html} growing={running && i === all.length - 1} />)}
    </div>
  );
}
