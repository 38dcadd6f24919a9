// The tree of a conversation's messages: pure functions.
import type { Chat, Message } from "./types.ts";

type Tree = ReadonlyMap<string, Message>;

/** The children of a message, the oldest first; `null` has the first messages. */
export function children(tree: Tree, parent: string | null): Message[] {
  const all = [...tree.values()].filter(m => m.parent === parent);
  return all.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** The messages that are shown, from the first to the last: at each the picked child, or the newest. */
export function path(tree: Tree, picks: Chat["picks"]): Message[] {
  const byParent = new Map<string, Message[]>();
  for (const m of tree.values()) {
    const key = m.parent ?? "";
    const list = byParent.get(key);
    if (list) list.push(m);
    else byParent.set(key, [m]);
  }
  const out: Message[] = [];
  const seen = new Set<string>();
  for (let key = ""; ;) {
    const all = byParent.get(key);
    if (!all) return out;
    const newest = all.reduce((a, b) => (b.created > a.created || (b.created === a.created && b.id > a.id) ? b : a));
    const next = all.find(m => m.id === picks[key]) ?? newest;
    // What is imported may be a circle.
    if (seen.has(next.id)) return out;
    seen.add(next.id);
    out.push(next);
    key = next.id;
  }
}

/** The messages before one, the first first, with itself. */
export function line(tree: Tree, id: string | null): Message[] {
  const out: Message[] = [];
  for (let at = id; at !== null && out.length <= tree.size;) {
    const m = tree.get(at);
    if (!m) break;
    out.unshift(m);
    at = m.parent;
  }
  return out;
}

/** A message and all that follow it, whatever is picked. */
export function below(tree: Tree, id: string): string[] {
  const out = [id];
  for (let i = 0; i < out.length && out.length <= tree.size; i++) {
    for (const m of tree.values()) if (m.parent === out[i]) out.push(m.id);
  }
  return out;
}
