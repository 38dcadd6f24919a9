// The experts that chose each token of an answer: gathered from its stream, and tokens with similar experts put into groups. Kept until
// the page is left: for a large model they are a hundred times the answer's text.
import { signal } from "@preact/signals";

/** `routed_experts` of a chunk. */
export interface Routed {
  layers: number;
  experts_per_token: number;
  tokens: string[];
  /** Base64 of little-endian 16-bit numbers `[tokens, layers, experts_per_token]`. */
  experts: string;
  /** Base64 of bytes `[tokens, layers]`, 255 is 1. */
  shared_gate: string;
}

const GROUPS = 6;
/** The first tokens are put into groups at this number, and all again at each doubling. */
const FIRST = 12;
/** Tokens that groups are made from; more are only put into them. */
const LEARNT_MAX = 400;
const ROUNDS = 5;
/** More than any layer has experts. */
const STRIDE = 1024;

function bytes(base64: string): Uint8Array {
  const text = atob(base64);
  return Uint8Array.from(text, c => c.charCodeAt(0));
}

export class Words {
  layers = 0;
  perToken = 0;
  tokens: string[] = [];
  /** `[layers, experts_per_token]` of each token. */
  experts: Uint16Array[] = [];
  /** `[layers]` of each token. */
  gates: Uint8Array[] = [];
  /** Which group each token is in. */
  groups: number[] = [];
  /** Counts changes of `groups` of earlier tokens. */
  regrouped = 0;
  private centres: Float32Array[] = [];
  private weights = new Float32Array();
  private next = FIRST;
  /** Of each token: where its experts are in `weights` and `centres`. */
  private keys: Uint32Array[] = [];

  push(r: Routed) {
    [this.layers, this.perToken] = [r.layers, r.experts_per_token];
    const raw = bytes(r.experts);
    const view = new DataView(raw.buffer);
    const all = Uint16Array.from({ length: raw.length / 2 }, (_, i) => view.getUint16(2 * i, true));
    const gates = bytes(r.shared_gate);
    const size = r.layers * r.experts_per_token;
    r.tokens.forEach((token, i) => {
      this.tokens.push(token);
      this.experts.push(all.slice(i * size, (i + 1) * size));
      this.gates.push(gates.slice(i * r.layers, (i + 1) * r.layers));
      const keys = Uint32Array.from(this.experts.at(-1)!, (expert, k) => Math.floor(k / r.experts_per_token) * STRIDE + expert);
      this.keys.push(keys);
      this.groups.push(this.centres.length ? this.nearest(keys) : 0);
    });
    if (this.tokens.length >= this.next) {
      this.regroup();
      this.next = 2 * this.tokens.length;
    }
  }

  /** The experts of a token in a layer, the likeliest first. */
  of(token: number, layer: number): number[] {
    return [...this.experts[token]!.slice(layer * this.perToken, (layer + 1) * this.perToken)];
  }

  /** Mean weight of the shared expert in each layer, 0 to 1; empty where there is none. */
  gate(): number[] {
    const mean = Array.from({ length: this.layers }, (_, l) => this.gates.reduce((sum, g) => sum + g[l]!, 0) / (255 * Math.max(1, this.gates.length)));
    return mean.some(g => g > 0) ? mean : [];
  }

  /** Puts all tokens into groups anew: k-means by the angle between their sets of experts, in which an expert counts the more the fewer
   *  tokens it has. Goes on from the groups that are there, so that they keep their places. */
  regroup() {
    const n = this.tokens.length;
    const used = new Float32Array(this.layers * STRIDE);
    for (const keys of this.keys) for (const key of keys) used[key]!++;
    this.weights = used.map(count => (count ? Math.log((n + 1) / count) : 0));
    const every = Math.ceil(n / LEARNT_MAX);
    const learnt = this.keys.filter((_, i) => i % every === 0);
    if (!this.centres.length) this.centres = this.farApart(learnt);
    for (let round = 0; round < ROUNDS; round++) {
      const sums = this.centres.map(c => new Float32Array(c.length));
      for (const keys of learnt) {
        const [to, length] = [sums[this.nearest(keys)]!, this.length(keys)];
        if (length) for (const key of keys) to[key]! += this.weights[key]! / length;
      }
      this.centres = sums.map((sum, i) => this.unit(sum) ?? this.centres[i]!);
    }
    this.groups = this.keys.map(keys => this.nearest(keys));
    this.regrouped++;
  }

  private length(keys: Uint32Array): number {
    let sum = 0;
    for (const key of keys) sum += this.weights[key]! ** 2;
    return Math.sqrt(sum);
  }

  private unit(v: Float32Array): Float32Array | null {
    const length = Math.sqrt(v.reduce((sum, x) => sum + x * x, 0));
    return length ? v.map(x => x / length) : null;
  }

  private likeness(keys: Uint32Array, centre: Float32Array): number {
    let sum = 0;
    for (let i = 0; i < keys.length; i++) sum += this.weights[keys[i]!]! * centre[keys[i]!]!;
    return sum;
  }

  private nearest(keys: Uint32Array): number {
    let [best, most] = [0, -1];
    this.centres.forEach((c, i) => {
      const likeness = this.likeness(keys, c);
      if (likeness > most) [best, most] = [i, likeness];
    });
    return best;
  }

  /** Beginnings of groups: the first token, then each time the one that is least like those before. */
  private farApart(all: Uint32Array[]): Float32Array[] {
    const out: Float32Array[] = [];
    const most = new Float32Array(all.length).fill(-1);
    for (let next = 0; out.length < Math.min(GROUPS, all.length); next = most.indexOf(Math.min(...most))) {
      const centre = new Float32Array(this.layers * STRIDE);
      for (const key of all[next]!) centre[key] = this.weights[key]!;
      const unit = this.unit(centre) ?? centre;
      out.push(unit);
      all.forEach((keys, i) => (most[i] = Math.max(most[i]!, this.likeness(keys, unit) / (this.length(keys) || 1))));
    }
    return out;
  }
}

const all = new Map<string, Words>();
/** Counts what came, over all answers. */
export const grown = signal(0);
/** The answer that tokens came for last. */
export const latest = signal("");

export const wordsOf = (message: string): Words | undefined => all.get(message);

/** An answer begins, or its stream is read once more from the beginning. */
export function beginWords(message: string) {
  all.delete(message);
}

export function addWords(message: string, routed: Routed) {
  let words = all.get(message);
  if (!words) all.set(message, (words = new Words()));
  words.push(routed);
  latest.value = message;
  grown.value++;
}

/** An answer is complete: its groups are made from all of it. */
export function endWords(message: string) {
  const words = all.get(message);
  if (!words?.tokens.length) return;
  words.regroup();
  grown.value++;
}
