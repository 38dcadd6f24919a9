// Samples of the last hour: those that the server keeps, and those of /metrics since the page was opened.
import { signal } from "@preact/signals";
import { call } from "./api.ts";
import type { Sample } from "./series.ts";

/** While somebody looks, and else. */
const [PERIOD_MS, QUIET_MS] = [2000, 10_000];
const HOUR_MS = 3_600_000;
export const samples = signal<Sample[]>([]);
export const failed = signal(false);

/** Sums of an OpenMetrics text by name, over all labels but histograms' buckets. */
export function parse(text: string, model: string): Record<string, number> {
  const out: Record<string, number> = {};
  for (const row of text.split("\n")) {
    const m = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(row);
    if (!m || m[1]!.endsWith("_bucket")) continue;
    const name = /model_name="([^"]*)"/.exec(m[2] ?? "")?.[1];
    if (name !== undefined && model && name !== model) continue;
    const value = Number(m[3]);
    if (Number.isFinite(value)) out[m[1]!] = (out[m[1]!] ?? 0) + value;
  }
  return out;
}

interface History {
  ages_s: number[];
  series: Record<string, number[]>;
}

/** The server's samples as if they were of /metrics, for `now` on this machine's clock. */
function kept(history: History, now: number): Sample[] {
  const names = Object.keys(history.series);
  return history.ages_s.map((age, i) => ({
    at: now - age * 1000,
    values: Object.fromEntries(names.map(name => [name, history.series[name]![i] ?? 0])),
  }));
}

/** Puts what was before the page was opened in front of its own samples. A server that keeps none loses nothing. */
async function before() {
  const model = modelNow;
  if (!model) return;
  try {
    const history = (await (await call(`metrics/history?model=${encodeURIComponent(model)}`)).json()) as History;
    if (model !== modelNow) return;
    const own = samples.peek();
    const first = own[0]?.at ?? Infinity;
    samples.value = [...kept(history, Date.now()).filter(s => s.at < first), ...own];
  } catch {
    // a router's model, or an older server
  }
}

let timer = 0;
let askedFor = "";
let modelNow = "";
let looks = false;

async function sample() {
  const begun = modelNow;
  const asked = Date.now();
  try {
    const values = parse(await (await call("metrics")).text(), begun);
    if (begun !== modelNow) return;
    // The server answers at once; what takes long is before and behind that.
    const at = (asked + Date.now()) / 2;
    samples.value = [...samples.peek().filter(s => s.at > at - HOUR_MS), { at, values }];
    failed.value = false;
  } catch {
    failed.value = true;
  }
}

function next() {
  if (askedFor !== modelNow) {
    askedFor = modelNow;
    void before();
  }
  void sample();
  timer = window.setTimeout(next, looks ? PERIOD_MS : QUIET_MS);
}

/** Begins to take samples, and goes on until the page is left; another model begins anew. `looking`: more often, as they are seen. */
export function watch(model: string, looking: boolean) {
  const changed = model !== modelNow;
  if (changed) samples.value = [];
  if (timer && !changed && looks === looking) return;
  [modelNow, looks] = [model, looking];
  window.clearTimeout(timer);
  // What is seen is of now; else the page has better things to do when it begins.
  if (looking) next();
  else timer = window.setTimeout(next, QUIET_MS);
}
