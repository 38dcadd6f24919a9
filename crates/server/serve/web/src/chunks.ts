// A stream of chat chunks, gathered into a message: a pure function of message and chunk.
import type { Message } from "./types.ts";
import type { Routed } from "./words.ts";

interface Timings {
  cache_n?: number;
  prompt_n?: number;
  prompt_per_second?: number;
  predicted_n?: number;
  predicted_ms?: number;
  predicted_per_second?: number;
}

interface Call {
  index?: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export interface Chunk {
  model?: string;
  error?: { message?: string } | string;
  usage?: { prompt_tokens?: number; completion_tokens?: number; prompt_tokens_details?: { cached_tokens?: number } | null } | null;
  timings?: Timings;
  prompt_progress?: { total: number; cache: number; processed: number };
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null; tool_calls?: Call[] | null }; finish_reason?: string | null; routed_experts?: Routed }[];
}

/** What is known of a running answer besides its message. */
export interface Running {
  /** When the request was sent, and its first and latest token came; milliseconds of one clock. */
  sent: number;
  first?: number;
  latest?: number;
  chunks: number;
  thoughtAt?: number;
  /** The server said that it is complete. */
  done: boolean;
  progress?: { done: number; total: number };
  /** The stream is read once more: its times are not those of the answer. */
  replayed: boolean;
}

export class AnswerError extends Error {}

/** Adds a chunk to a message; `now` is the clock of `running`. Throws `AnswerError` for an error in the stream. */
export function take(m: Message, running: Running, chunk: Chunk, now: number) {
  if (chunk.error) throw new AnswerError(typeof chunk.error === "string" ? chunk.error : (chunk.error.message ?? JSON.stringify(chunk.error)));
  if (chunk.model) m.model = chunk.model;
  if (chunk.prompt_progress) running.progress = { done: chunk.prompt_progress.processed, total: chunk.prompt_progress.total };
  const figures = (m.figures ??= {});
  const timings = chunk.timings;
  if (timings) {
    if (timings.predicted_n !== undefined) figures.tokens = timings.predicted_n;
    // Of one token there is no rate.
    if (timings.predicted_per_second && (timings.predicted_n ?? 0) > 1) figures.rate = timings.predicted_per_second;
    if (timings.prompt_n !== undefined) figures.prompt = timings.prompt_n + (timings.cache_n ?? 0);
    if (timings.cache_n !== undefined) figures.cached = timings.cache_n;
    if (timings.prompt_per_second) figures.promptRate = timings.prompt_per_second;
  }
  if (chunk.usage) {
    const u = chunk.usage;
    if (u.prompt_tokens !== undefined) figures.prompt = u.prompt_tokens;
    if (u.completion_tokens !== undefined) figures.tokens = u.completion_tokens;
    if (u.prompt_tokens_details?.cached_tokens !== undefined) figures.cached = u.prompt_tokens_details.cached_tokens;
  }
  const choice = chunk.choices?.[0];
  if (!choice) return;
  if (choice.finish_reason) {
    m.finish = choice.finish_reason;
    running.done = true;
  }
  const thought = choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "";
  const text = choice.delta?.content ?? "";
  const calls = choice.delta?.tool_calls ?? [];
  if (!thought && !text && !calls.length) return;
  running.progress = undefined;
  running.chunks++;
  running.latest = now;
  if (running.first === undefined) {
    running.first = now;
    if (!running.replayed) figures.first = now - running.sent;
  }
  if (thought) {
    m.reasoning = (m.reasoning ?? "") + thought;
    running.thoughtAt ??= now;
  } else if (m.reasoning && m.reasoningMs === undefined) {
    m.reasoningMs = timings?.predicted_ms ?? now - (running.thoughtAt ?? now);
  }
  m.text += text;
  for (const c of calls) {
    const all = (m.calls ??= []);
    const at = c.index ?? 0;
    const known = (all[at] ??= { id: c.id ?? `call_${at}`, name: "", arguments: "" });
    if (c.id) known.id = c.id;
    if (c.function?.name) known.name = c.function.name;
    known.arguments += c.function?.arguments ?? "";
  }
}

/** The last figures, where the server did not send them. */
export function finish(m: Message, running: Running) {
  const figures = (m.figures ??= {});
  if (m.reasoning && m.reasoningMs === undefined && !running.replayed) m.reasoningMs = (running.latest ?? 0) - (running.thoughtAt ?? running.latest ?? 0);
  if (figures.rate === undefined && !running.replayed && running.first !== undefined && running.latest !== undefined && running.latest > running.first) {
    const tokens = figures.tokens ?? running.chunks;
    figures.rate = ((tokens - 1) * 1000) / (running.latest - running.first);
  }
  figures.tokens ??= running.chunks;
}
