// The experts panel: a heat map of layers x experts, of the answer that runs, of one that was given, or of all since the model was loaded.
import { signal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { isRunning } from "../answer.ts";
import { beginCounting, endCounting, entropyOf, isCounting, live, refreshTotal, summary, total, type Counting } from "../experts.ts";
import { number, t } from "../i18n.ts";
import * as state from "../state.ts";
import type { ExpertCounts } from "../types.ts";
import { WordMap } from "./words.tsx";

const shownOf = signal("live");
const other = signal("");
const pointed = signal("");

/** Light to dark in the text's colour; none is the background. */
function draw(canvas: HTMLCanvasElement, counts: ExpertCounts) {
  const { layers } = counts;
  const columns = layers[0]?.counts.length ?? 0;
  const scale = Math.max(1, Math.floor(devicePixelRatio || 1));
  const width = Math.max(1, Math.floor((canvas.clientWidth * scale) / Math.max(1, columns)));
  const height = Math.max(2 * scale, Math.min(14 * scale, Math.floor((320 * scale) / Math.max(1, layers.length))));
  if (canvas.width !== width * columns || canvas.height !== height * layers.length) {
    canvas.width = width * columns;
    canvas.height = height * layers.length;
  }
  const context = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = style.color;
  const gap = width > 4 ? scale : 0;
  layers.forEach((l, y) => {
    const most = Math.max(1, ...l.counts);
    l.counts.forEach((n, x) => {
      if (n === 0) return;
      context.globalAlpha = 0.08 + 0.92 * (n / most);
      context.fillRect(x * width, y * height, width - gap, height - (height > 4 ? scale : 0));
    });
  });
  context.globalAlpha = 1;
}

function HeatMap({ counts, label }: { counts: ExpertCounts; label: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const columns = counts.layers[0]?.counts.length ?? 0;
  const theme = state.settings.value.theme;
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    let frame = requestAnimationFrame(() => draw(element, counts));
    const again = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => draw(element, counts));
    };
    const observer = new ResizeObserver(again);
    observer.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
    };
  }, [counts, theme]);
  const point = (e: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const l = counts.layers[Math.floor(((e.clientY - box.top) / box.height) * counts.layers.length)];
    const expert = Math.floor(((e.clientX - box.left) / box.width) * columns);
    const n = l?.counts[expert];
    pointed.value = l && n !== undefined ? t("experts.cell", { layer: l.layer, expert, n: number(n) }) : "";
  };
  const s = summary(counts);
  return (
    <section class="heat" aria-label={label}>
      <h3>{label}</h3>
      <canvas ref={canvas} role="img" aria-label={t("experts.alt", { layers: counts.layers.length, experts: columns })} onPointerMove={point} onPointerLeave={() => (pointed.value = "")} />
      <p class="small axis"><span>{t("experts.axis", { layers: counts.layers.length, experts: columns })}</span></p>
      <dl class="figures">
        <div><dt>{t("experts.tokens")}</dt><dd>{number(s.tokens)}</dd></div>
        <div><dt>{t("experts.entropy")}</dt><dd>{t("experts.entropyOf", { n: number(s.entropy, 2), max: number(s.entropyMax, 2) })}</dd></div>
        <div><dt>{t("experts.top")}</dt><dd>{number(s.top * 100, 1)} %</dd></div>
        <div><dt>{t("experts.unused")}</dt><dd>{number(s.unused)}</dd></div>
      </dl>
      <details>
        <summary>{t("experts.table")}</summary>
        <div class="wide" tabIndex={0}>
          <table class="counts">
            <thead><tr><th>{t("experts.layer")}</th><th>{t("experts.entropy")}</th><th>{t("experts.most")}</th><th>{t("experts.counts")}</th></tr></thead>
            <tbody>
              {counts.layers.map(l => (
                <tr key={l.layer}>
                  <th scope="row">{l.layer}</th>
                  <td>{number(entropyOf(l.counts), 2)}</td>
                  <td>{l.counts.map((n, e) => [n, e] as const).sort((a, b) => b[0] - a[0]).slice(0, 4).filter(([n]) => n).map(([, e]) => e).join(", ")}</td>
                  <td class="raw">{l.counts.join(" ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  );
}

/** The answers of the conversation that have counts. */
function counted(): { id: string; label: string; counts: ExpertCounts }[] {
  const out: { id: string; label: string; counts: ExpertCounts }[] = [];
  const all = [...state.messages.value.values()].map(m => m.value);
  for (const m of all.sort((a, b) => a.created - b.created)) {
    if (!m.experts) continue;
    const asked = all.find(x => x.id === m.parent)?.text ?? "";
    out.push({ id: m.id, label: t("experts.ofAnswer", { text: asked.replace(/\s+/g, " ").slice(0, 40) }), counts: m.experts });
  }
  return out;
}

function countsOf(choice: string): ExpertCounts | null {
  // Of an answer that was given before the page was loaded there are only counts.
  if (choice === "live") return live.value ?? counted().at(-1)?.counts ?? null;
  if (choice === "total") {
    const all = total.value;
    return all && all.layers.length ? { perToken: all.experts_per_token, layers: all.layers } : null;
  }
  return counted().find(c => c.id === choice)?.counts ?? null;
}

export function Experts() {
  useEffect(() => void refreshTotal(), [state.model.value?.id]);
  const running = isRunning();
  const late = useRef<Counting | null>(null);
  // Opened while an answer runs: the rest of it is counted.
  useEffect(() => {
    if (running && !isCounting()) {
      late.current = beginCounting();
    } else if (!running && late.current) {
      void endCounting(late.current);
      late.current = null;
    }
  }, [running]);
  const answers = counted();
  const names: Record<string, string> = { live: running ? t("experts.live") : t("experts.last"), total: t("experts.total") };
  for (const a of answers) names[a.id] = a.label;
  const options = Object.entries(names).map(([id, label]) => <option key={id} value={id}>{label}</option>);
  if (!state.isLocal.value) return <p class="panel-body dim">{t("experts.remote")}</p>;
  if (total.value && !total.value.layers.length) return <p class="panel-body dim">{total.value.is_sleeping ? t("experts.sleeping") : t("experts.dense")}</p>;
  const choices = [shownOf.value, ...(other.value ? [other.value] : [])];
  return (
    <div class="panel-body">
      <div class="grid">
        <label>
          {t("experts.show")}
          <select value={shownOf.value} onChange={e => (shownOf.value = e.currentTarget.value)}>{options}</select>
        </label>
        <label>
          {t("experts.compare")}
          <select value={other.value} onChange={e => (other.value = e.currentTarget.value)}>
            <option value="">{t("experts.nothing")}</option>
            {options}
          </select>
        </label>
      </div>
      <p class="small dim pointed" aria-hidden="true">{pointed.value || " "}</p>
      {choices.map((choice, i) => {
        const counts = countsOf(choice);
        if (!counts) return <p key={`${i}`} class="dim">{t("experts.none")}</p>;
        return (
          <Fragment key={`${i}`}>
            <HeatMap counts={counts} label={names[choice] ?? ""} />
            {choice !== "total" && <WordMap message={choice === "live" ? "" : choice} experts={counts.layers[0]?.counts.length ?? 1} />}
          </Fragment>
        );
      })}
      <p class="small dim">{t("experts.note")}</p>
    </div>
  );
}
