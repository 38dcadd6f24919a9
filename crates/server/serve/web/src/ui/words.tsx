// An answer's tokens, coloured by the experts that chose them. Part of the experts panel.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { number, t } from "../i18n.ts";
import { grown, latest, wordsOf, type Words } from "../words.ts";

/** "" is by groups; else the number of a layer. */
const by = signal("");

const GROUP_DEGREES = 60;

function hue(words: Words, token: number, layer: string, experts: number): number {
  if (!layer) return words.groups[token]! * GROUP_DEGREES;
  return (words.of(token, Number(layer))[0]! * 360) / Math.max(1, experts);
}

/** What is said about a token. */
function said(words: Words, token: number, layer: string): string {
  const gate = (l: number) => (words.gates[token]![l] ? ` · ${t("words.gate", { n: number(words.gates[token]![l]! / 255, 2) })}` : "");
  const of = (l: number) => `${t("words.layer", { layer: l })}: ${words.of(token, l).join(", ")}${gate(l)}`;
  const lines = layer ? [of(Number(layer))] : Array.from({ length: words.layers }, (_, l) => of(l));
  const group = layer ? "" : ` · ${t("words.group", { n: words.groups[token]! + 1 })}`;
  return [`${JSON.stringify(words.tokens[token])}${group}`, ...lines].join("\n");
}

function Gates({ words }: { words: Words }) {
  const gates = words.gate();
  if (!gates.length) return null;
  const mean = gates.reduce((a, b) => a + b, 0) / gates.length;
  const text = t("words.gates", { n: number(mean, 2), low: number(Math.min(...gates), 2), high: number(Math.max(...gates), 2) });
  return (
    <figure class="gates">
      <svg viewBox={`0 0 ${gates.length} 1`} preserveAspectRatio="none" role="img" aria-label={text}>
        {gates.map((g, l) => <rect key={l} x={l + 0.1} width={0.8} y={1 - g} height={g} />)}
      </svg>
      <figcaption class="small dim">{text}</figcaption>
    </figure>
  );
}

export function WordMap({ message, experts }: { message: string; experts: number }) {
  const box = useRef<HTMLDivElement>(null);
  const detail = useRef<HTMLPreElement>(null);
  const drawn = useRef({ words: undefined as Words | undefined, layer: "", regrouped: 0, at: -1 });
  const id = message || latest.value;
  const words = wordsOf(id);
  const layer = by.value;
  const version = grown.value;
  // Spans are added as tokens come; Preact would compare all of them each time.
  useEffect(() => {
    const element = box.current;
    if (!element || !words) return;
    const was = drawn.current;
    if (was.words !== words) element.replaceChildren();
    const colour = (span: HTMLElement, i: number) => span.style.setProperty("--hue", String(hue(words, i, layer, experts)));
    if (was.words === words && (was.layer !== layer || was.regrouped !== words.regrouped)) [...element.children].forEach((span, i) => colour(span as HTMLElement, i));
    for (let i = element.children.length; i < words.tokens.length; i++) {
      const span = document.createElement("span");
      span.textContent = words.tokens[i]!;
      colour(span, i);
      element.append(span);
    }
    drawn.current = { words, layer, regrouped: words.regrouped, at: was.words === words ? was.at : -1 };
  }, [words, version, layer, experts]);
  if (!words) return null;
  const point = (at: number) => {
    const spans = box.current!.children;
    if (!spans[at] || !detail.current) return;
    spans[drawn.current.at]?.classList.remove("pointed-at");
    spans[at].classList.add("pointed-at");
    drawn.current.at = at;
    detail.current.textContent = said(words, at, layer);
  };
  const over = (e: PointerEvent) => {
    const at = [...box.current!.children].indexOf(e.target as Element);
    if (at >= 0) point(at);
  };
  const keys: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };
  const layers = Array.from({ length: words.layers }, (_, l) => <option key={l} value={l}>{t("words.layer", { layer: l })}</option>);
  return (
    <section class="word-map" aria-label={t("words")}>
      <label>
        {t("words.by")}
        <select value={layer} onChange={e => (by.value = e.currentTarget.value)}>
          <option value="">{t("words.groups")}</option>
          {layers}
        </select>
      </label>
      <div
        class="words"
        ref={box}
        tabIndex={0}
        role="group"
        aria-label={t("words.help")}
        onPointerOver={over}
        onKeyDown={e => {
          const step = keys[e.key];
          if (!step) return;
          e.preventDefault();
          point(Math.max(0, Math.min(words.tokens.length - 1, drawn.current.at + step)));
        }}
      />
      <pre class="small detail" ref={detail} tabIndex={0} aria-live="polite">{t("words.point")}</pre>
      <Gates words={words} />
    </section>
  );
}
