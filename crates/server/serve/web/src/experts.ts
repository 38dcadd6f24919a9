// Counts of the model's experts: read while an answer runs, as differences to its start.
import { signal } from "@preact/signals";
import { json, type Experts } from "./api.ts";
import * as state from "./state.ts";
import type { ExpertCounts } from "./types.ts";

/** What the running answer has used so far; null where nothing runs or the model has no experts. */
export const live = signal<ExpertCounts | null>(null);
/** All since the model was loaded. */
export const total = signal<Experts | null>(null);

const PERIOD_MS = 100;

export interface Counting {
  model: string;
  before: Promise<Experts | null>;
  over: boolean;
}

let active: Counting | null = null;

export const isCounting = () => active !== null;

const read = (model: string) => json<Experts>(`experts?model=${encodeURIComponent(model)}`).catch(() => null);

export async function refreshTotal() {
  const model = state.isLocal.value ? state.model.value?.id : undefined;
  total.value = model ? await read(model) : null;
}

state.modelChanged.push(() => void refreshTotal());

export function difference(now: Experts, before: Experts | null): ExpertCounts {
  const layers = now.layers.map((l, i) => {
    const old = before?.layers[i]?.counts;
    // A model that was loaded in between counts from 0 again.
    return { layer: l.layer, counts: l.counts.map((n, e) => Math.max(0, n - (old?.[e] ?? 0))) };
  });
  return { perToken: now.experts_per_token, layers };
}

/** Begins to count for an answer. While the panel is closed, only its begin and its end are read. */
export function beginCounting(): Counting | null {
  const model = state.isLocal.value ? state.model.value?.id : undefined;
  // A dense model has nothing to count.
  if (!model || (total.peek() && !total.peek()!.is_sleeping && !total.peek()!.layers.length && total.peek()!.model === model)) return null;
  const counting: Counting = { model, before: read(model), over: false };
  active = counting;
  void poll(counting);
  return counting;
}

async function poll(counting: Counting) {
  const before = await counting.before;
  while (!counting.over && active === counting) {
    if (state.panel.peek() !== "experts") {
      await new Promise(resolve => window.setTimeout(resolve, PERIOD_MS));
      continue;
    }
    const now = await read(counting.model);
    if (active !== counting) break;
    if (now?.is_sleeping) {
      // It is being loaded for this answer.
      await new Promise(resolve => window.setTimeout(resolve, PERIOD_MS));
      continue;
    }
    if (!now?.layers.length) break;
    total.value = now;
    live.value = difference(now, before);
    await new Promise(resolve => window.setTimeout(resolve, PERIOD_MS));
  }
}

/** The counts of the answer, when it is over. */
export async function endCounting(counting: Counting | null): Promise<ExpertCounts | null> {
  if (!counting) return null;
  counting.over = true;
  const [before, now] = [await counting.before, await read(counting.model)];
  if (active === counting) active = null;
  if (now) total.value = now;
  if (!now?.layers.length) return null;
  live.value = difference(now, before);
  return live.value;
}

export interface Summary {
  tokens: number;
  /** Mean over layers of the entropy of the choices, in bits, and the most it could be. */
  entropy: number;
  entropyMax: number;
  /** Share of all choices that the most used tenth of all experts took. */
  top: number;
  unused: number;
}

export function entropyOf(counts: number[]): number {
  const all = counts.reduce((a, b) => a + b, 0);
  return counts.reduce((sum, n) => (n > 0 ? sum - (n / all) * Math.log2(n / all) : sum), 0);
}

export function summary(c: ExpertCounts): Summary {
  const flat = c.layers.flatMap(l => l.counts).sort((a, b) => b - a);
  const all = flat.reduce((a, b) => a + b, 0);
  const used = c.layers.filter(l => l.counts.some(n => n > 0));
  const tenth = Math.ceil(flat.length / 10);
  return {
    tokens: Math.max(0, ...c.layers.map(l => l.counts.reduce((a, b) => a + b, 0))) / Math.max(1, c.perToken),
    entropy: used.length ? used.reduce((sum, l) => sum + entropyOf(l.counts), 0) / used.length : 0,
    entropyMax: Math.log2(Math.max(1, c.layers[0]?.counts.length ?? 1)),
    top: all ? flat.slice(0, tenth).reduce((a, b) => a + b, 0) / all : 0,
    unused: flat.filter(n => n === 0).length,
  };
}
