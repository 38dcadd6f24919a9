// Calls of tools in answers: those that need no question run at once, and when all have a result the model answers again.
import { signal } from "@preact/signals";
import { answer, finished } from "./answer.ts";
import { newId } from "./ids.ts";
import * as state from "./state.ts";
import { invoke, runsAlone } from "./tools.ts";
import * as tree from "./tree.ts";
import type { Message, Result, ToolCall } from "./types.ts";

/** The results that a message's calls have, in the line that is shown, in its order. */
export function results(m: Message): Message[] {
  const all = tree.path(state.plain(), state.chat.value?.picks ?? {});
  const at = all.findIndex(x => x.id === m.id);
  const after = at < 0 ? [] : all.slice(at + 1);
  const end = after.findIndex(x => x.role !== "tool");
  return end < 0 ? after : after.slice(0, end);
}

/** Turns of tools that run by themselves. */
const ROUNDS_MAX = 12;

/** Turns of tools in a row, before a message. */
function rounds(m: Message): number {
  const before = tree.line(state.plain(), m.id).reverse();
  const user = before.findIndex(x => x.role === "user");
  return before.slice(0, user < 0 ? undefined : user).filter(x => x.role === "assistant").length;
}

/** Adds the result of a call; goes on when it was the last that was missing. */
export function give(m: Message, call: ToolCall, result: Result) {
  const known = results(m);
  if (known.some(x => x.callId === call.id)) return;
  const parent = known.at(-1)?.id ?? m.id;
  const message: Message = {
    id: newId(), chat: m.chat, parent, role: "tool", text: result.text, created: Date.now(), state: "done",
    callId: call.id, tool: call.name, ...(result.failed ? { failed: true } : {}),
  };
  state.saveMessage(message);
  state.pick(message);
  if (known.length + 1 >= (m.calls?.length ?? 0)) void answer(m.chat, message.id);
}

const busy = new Set<string>();
/** Counts changes of `busy`. */
const turns = signal(0);

/** Whether a call runs now. */
export function isCalled(m: Message, call: ToolCall): boolean {
  return turns.value >= 0 && busy.has(`${m.id} ${call.id}`);
}

/** Runs a call and gives its result. */
export async function run(m: Message, call: ToolCall) {
  const key = `${m.id} ${call.id}`;
  if (busy.has(key)) return;
  busy.add(key);
  turns.value++;
  try {
    give(m, call, await invoke(call));
  } finally {
    busy.delete(key);
    turns.value++;
  }
}

finished.push(m => {
  // Elsewhere the tree of its conversation is not at hand: the user runs them on return.
  if (m.state !== "done" || m.chat !== state.current.peek() || rounds(m) > ROUNDS_MAX) return;
  void (async () => {
    for (const call of m.calls ?? []) if (runsAlone(call)) await run(m, call);
  })();
});
