// Answers: asks the server, follows the stream, keeps what comes; stops, resumes, continues.
import { signal, type Signal } from "@preact/signals";
import { call, events, headers, ServerError, userWords } from "./api.ts";
import { AnswerError, finish, take, type Chunk, type Running } from "./chunks.ts";
import { beginCounting, endCounting } from "./experts.ts";
import { number, t } from "./i18n.ts";
import { requestBody, continuation } from "./request.ts";
import { newId } from "./ids.ts";
import * as state from "./state.ts";
import * as store from "./store.ts";
import { isTooLong, lengths } from "./toolong.ts";
import { line } from "./tree.ts";
import type { Message } from "./types.ts";
import { addWords, beginWords, endWords } from "./words.ts";

interface Run {
  message: Signal<Message>;
  running: Signal<Running>;
  stop: AbortController;
  stream?: string;
  /** The request; unknown where the answer began before the page was loaded. */
  body?: Record<string, unknown>;
}

const all = new Map<string, Run>();
/** Called with each answer that came to its end here; not with those that were read again, which may end in another tab too. */
export const finished: ((m: Message) => void)[] = [];
const SAVE_MS = 400;
/** How often a growing answer is drawn, where it is seen and where it is not. */
const [FRAME_MS, HIDDEN_MS] = [40, 400];

/** How a running answer does; for its view. */
export const runOf = (id: string): Run | undefined => all.get(id);
export const isRunning = () => [...state.runs.value.values()].some(m => m.peek().chat === state.current.value);

function begin(message: Message, replayed: boolean): Run {
  const run: Run = {
    message: state.saveMessage(message),
    running: signal<Running>({ sent: performance.now(), chunks: 0, done: false, replayed }),
    stop: new AbortController(),
    stream: message.stream,
  };
  all.set(message.id, run);
  state.runs.value = new Map([...state.runs.peek(), [message.id, run.message]]);
  state.announced.value = t("announce.running");
  return run;
}

function end(run: Run, change: Partial<Message>) {
  const running = run.running.peek();
  const m = { ...run.message.peek(), ...change };
  finish(m, running);
  delete m.stream;
  run.message.value = state.saveMessage(m).peek();
  all.delete(m.id);
  const left = new Map(state.runs.peek());
  left.delete(m.id);
  state.runs.value = left;
  state.announced.value = m.error ? t("announce.failed") : t("announce.done");
  const c = state.chats.peek().find(c => c.id === m.chat);
  if (c) state.saveChat({ ...c, updated: Date.now() });
  if (!running.replayed) for (const f of finished) f(m);
}

/** Follows a stream into the message of a run. */
async function follow(run: Run, response: Response) {
  // Changed in place, and shown from time to time.
  const draft: Message = { ...run.message.peek() };
  const running: Running = { ...run.running.peek() };
  let drawn = 0;
  let keeping = 0;
  let over = false;
  const show = () => {
    drawn = 0;
    if (over) return;
    run.message.value = { ...draft, calls: draft.calls?.map(c => ({ ...c })), figures: { ...draft.figures } };
    run.running.value = { ...running };
    // Later than what is drawn, so that a stream that comes to a halt is kept too.
    keeping ||= window.setTimeout(keep, SAVE_MS);
  };
  const keep = () => {
    keeping = 0;
    if (!over) store.putMessage(run.message.peek()).catch(() => {});
  };
  beginWords(draft.id);
  const later = () => window.setTimeout(show, document.hidden ? HIDDEN_MS : FRAME_MS);
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") {
        running.done = true;
        break;
      }
      const chunk = JSON.parse(data) as Chunk;
      take(draft, running, chunk, performance.now());
      const routed = chunk.choices?.[0]?.routed_experts;
      if (routed) addWords(draft.id, routed);
      drawn ||= later();
    }
  } finally {
    endWords(draft.id);
    show();
    // A timer that is still to come shows nothing any more.
    over = true;
  }
}

/** A prompt that is too long, in the user's words: how long it is, what fits, and what to do. `what` is what the server said. */
async function tooLong(run: Run, what: string): Promise<Partial<Message>> {
  const found = lengths(what);
  const limit = found.limit ?? state.context.peek();
  if (found.tokens !== undefined && found.answer !== undefined) {
    return { error: t("error.tooLongAnswer", { n: number(found.tokens), answer: number(found.answer), limit: number(limit) }) };
  }
  const n = found.tokens ?? (await counted(run));
  // Without its length, what the model could do is still worth saying.
  if (!n || !limit || n <= limit) return { error: t("error.tooLong"), fix: "shorten" };
  // One message, and nothing else of length beside it.
  const isFirst = (run.body?.messages as unknown[] | undefined)?.length === 1 && !run.body?.tools;
  const said = t(isFirst ? "error.tooLongFirst" : "error.tooLongBy", { n: number(n), limit: number(limit) });
  const local = state.isLocal.peek();
  const most = state.model.peek()?.meta?.n_ctx_train ?? 0;
  const wide = local && most >= n ? ` ${t("error.tooLongWider", { most: number(most) })}` : local ? "" : ` ${t("error.tooLongOther")}`;
  return { error: said + wide, fix: "shorten" };
}

/** Tokens of a request that was refused, if the server counts them. */
async function counted(run: Run): Promise<number | undefined> {
  if (!run.body || !state.isLocal.peek()) return undefined;
  const { stream: _, stream_options: __, ...body } = run.body;
  try {
    const answer = await call("v1/chat/completions/input_tokens", { method: "POST", body: JSON.stringify(body), signal: run.stop.signal });
    return ((await answer.json()) as { input_tokens: number }).input_tokens;
  } catch {
    // Too long even to be counted, or a server that does not count: the refusal stands without a number.
    return undefined;
  }
}

/** Ends a run as its stream ended. */
async function complete(run: Run, work: () => Promise<void>) {
  try {
    await work();
    const { done } = run.running.peek();
    if (run.stop.signal.aborted) end(run, { state: "stopped" });
    else end(run, done ? { state: "done" } : { state: "cut", error: t("error.cut") });
  } catch (e) {
    if (run.stop.signal.aborted) {
      end(run, { state: "stopped" });
    } else if (e instanceof ServerError) {
      if (state.isRefused(e)) state.locked.value = "wrong";
      const words = isTooLong(e.detail) ? await tooLong(run, e.detail) : { error: e.message };
      end(run, { state: "failed", ...words, ...(e.detail ? { errorDetail: e.detail } : {}) });
    } else if (e instanceof AnswerError) {
      const words = userWords(0, e.message);
      // What came is worth going on with.
      const kept = Boolean(run.message.peek().text);
      const said = isTooLong(e.message) ? await tooLong(run, e.message) : { error: words ?? (kept ? t("error.cut") : e.message) };
      end(run, { state: kept ? "cut" : "failed", ...said, ...(words || kept ? { errorDetail: e.message } : {}) });
    } else if (e instanceof SyntaxError) {
      end(run, { state: "failed", error: t("error.notJson") });
    } else if (run.stream && !run.running.peek().replayed) {
      // The connection broke; the server goes on for a while.
      await reconnect(run);
    } else {
      end(run, { state: "cut", error: t("error.broke") });
    }
  }
}

async function reconnect(run: Run) {
  run.running.value = { ...run.running.peek(), replayed: true };
  await complete(run, () => replay(run));
}

/** Reads a stream once more from its beginning. */
async function replay(run: Run) {
  let response: Response;
  try {
    response = await call(`streams/${run.stream}`, { signal: run.stop.signal });
  } catch (e) {
    // Forgotten, or the server was started anew: what came stays.
    if (e instanceof ServerError) throw new TypeError(e.message);
    throw e;
  }
  const m = run.message.peek();
  run.message.value = { ...m, text: m.text.slice(0, m.continued ?? 0), reasoning: m.continued === undefined ? undefined : m.reasoning, calls: undefined };
  await follow(run, response);
}

/** Asks for an answer to the message `parent`. */
export async function answer(chat: string, parent: string | null): Promise<void> {
  const message: Message = { id: newId(), chat, parent, role: "assistant", text: "", created: Date.now(), state: "running", stream: newId() };
  state.saveMessage(message);
  state.pick(message);
  await ask(message, line(state.plain(), parent), null);
}

async function ask(message: Message, before: Message[], prefix: Message | null) {
  let body: Record<string, unknown>;
  const run = begin(message, false);
  try {
    body = prefix ? continuation(before, prefix) : requestBody(before);
  } catch (e) {
    end(run, { state: "failed", error: state.said(e) });
    return;
  }
  run.body = body;
  const counting = beginCounting();
  // Many bytes for each token, and only the panel shows them.
  if (counting && state.panel.peek() === "experts") body.return_routed_experts = true;
  await complete(run, async () => {
    // Asked before the model works: the answer's counts are differences to these.
    await counting?.before;
    const response = await call("v1/chat/completions", {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "x-octet-stream": message.stream ?? "" },
      signal: run.stop.signal,
    });
    run.message.value = {
      ...run.message.peek(),
      route: response.headers.get("x-octet-route") ?? undefined,
      warning: response.headers.get("x-octet-warning") ?? undefined,
    };
    await follow(run, response);
  });
  // A model that was loaded for this answer has told nothing of itself yet.
  if (!state.props.peek() || state.props.peek()?.is_sleeping) void state.loadState();
  const counts = await endCounting(counting);
  const m = run.message.peek();
  if (counts && m.state !== "running") run.message.value = state.saveMessage({ ...m, experts: counts }).peek();
}

/** Goes on with an answer that was stopped or cut. */
export async function continueAnswer(m: Message) {
  const fresh: Message = { ...m, state: "running", error: undefined, errorDetail: undefined, fix: undefined, finish: undefined, continued: m.text.length, stream: newId() };
  await ask(fresh, line(state.plain(), m.parent), m);
}

/** Takes up answers that ran when the page was left. */
export function resume(messages: Message[]) {
  for (const m of messages) {
    if (m.state !== "running" || all.has(m.id)) continue;
    const run = begin(m, true);
    if (m.stream) void complete(run, () => replay(run));
    else end(run, { state: "cut", error: t("error.left") });
  }
}

state.opened.push(resume);

// Begun before the page is left, a write is usually finished.
addEventListener("pagehide", () => {
  for (const run of all.values()) store.putMessage(run.message.peek()).catch(() => {});
});

export function stop(id: string) {
  const run = all.get(id);
  if (!run) return;
  run.stop.abort();
  if (run.stream) fetch(`streams/${run.stream}`, { method: "DELETE", headers: headers(), keepalive: true }).catch(() => {});
}

export function stopAll() {
  for (const [id, run] of all) if (run.message.peek().chat === state.current.peek()) stop(id);
}
