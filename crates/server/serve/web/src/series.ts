// Series of samples: values over time, and what grows between them. Pure functions.

export interface Sample {
  at: number;
  values: Record<string, number>;
}

export interface Point {
  at: number;
  value: number;
}

/** A value over time. */
export const gauge = (all: Sample[], name: string): Point[] =>
  all.flatMap(s => (s.values[name] === undefined ? [] : [{ at: s.at, value: s.values[name] }]));

/** How much a counter grows in a second. */
export function rate(all: Sample[], name: string): Point[] {
  return ratio(all, name, null);
}

/** The share of some counters' growth that the first of them has. */
export function share(all: Sample[], names: string[]): Point[] {
  const sums = all.map(s => ({ at: s.at, values: { first: s.values[names[0]!] ?? 0, all: names.reduce((sum, name) => sum + (s.values[name] ?? 0), 0) } }));
  return ratio(sums, "first", "all");
}

/** Shorter times say more of how long a sample took to come than of the server: they are joined to the next. */
const INTERVAL_MS_MIN = 1000;

/** How much a counter grows for each step of another; `null` is a second. */
export function ratio(all: Sample[], name: string, per: string | null): Point[] {
  const out: Point[] = [];
  let a = all[0];
  for (const b of all.slice(1)) {
    if (!a || (per === null && b.at - a.at < INTERVAL_MS_MIN)) continue;
    const before = a;
    a = b;
    const grown = (b.values[name] ?? 0) - (before.values[name] ?? 0);
    const base = per === null ? (b.at - before.at) / 1000 : (b.values[per] ?? 0) - (before.values[per] ?? 0);
    // A server that was started anew counts from 0.
    if (grown >= 0 && base > 0) out.push({ at: b.at, value: grown / base });
    else if (base === 0) out.push({ at: b.at, value: 0 });
  }
  return out;
}
