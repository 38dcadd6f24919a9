// Markdown on the screen: block by block, so that a growing answer draws its last block alone.
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { t } from "../i18n.ts";
import { blocks, clean } from "../markdown.ts";
import * as state from "../state.ts";

function Block({ html, growing }: { html: string; growing: boolean }) {
  const ref = useRef<HTMLDivElement>(null);
  // Before anything is painted, so that no one sees the block empty.
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    element.innerHTML = clean(html) as unknown as string;
    const codes = element.querySelectorAll<HTMLElement>("pre code[data-lang]");
    if (codes.length) void import("../highlight.ts").then(({ highlight }) => codes.forEach(code => code.isConnected && highlight(code)));
    const formulas = element.querySelectorAll<HTMLElement>(".tex");
    // A formula that still grows would fail half the time.
    if (formulas.length && !growing) void import("../maths.ts").then(({ typeset }) => formulas.forEach(f => f.isConnected && typeset(f)));
  }, [html, growing]);
  return <div ref={ref} />;
}

export function copyText(text: string) {
  navigator.clipboard.writeText(text).then(
    () => (state.announced.value = t("announce.copied")),
    () => (state.note.value = t("error.copy")),
  );
}

/** The buttons within are those of code blocks. */
function onClick(e: MouseEvent) {
  const button = e.target instanceof Element ? e.target.closest("button.copy") : null;
  if (button) copyText(button.closest(".code")?.querySelector("code")?.textContent ?? "");
}

export function Markdown({ text, running }: { text: string; running: boolean }) {
  const all = useMemo(() => blocks(text), [text]);
  return (
    <div class="md" onClick={onClick}>
      {all.map((html, i) => <Block key={i} html={html} growing={running && i === all.length - 1} />)}
    </div>
  );
}
