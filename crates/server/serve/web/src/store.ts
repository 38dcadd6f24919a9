// What is kept in the browser: conversations and messages in IndexedDB, settings in localStorage.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import type { Chat, Message, Settings } from "./types.ts";

interface Kept extends DBSchema {
  chats: { key: string; value: Chat };
  messages: { key: string; value: Message; indexes: { chat: string } };
}

const SETTINGS = "octet.settings.2";
/** Where the page kept conversations before it had a database. */
const OLD_CHAT = "octet.chat.";

let opened: Promise<IDBPDatabase<Kept>> | null = null;

function db() {
  opened ??= openDB<Kept>("octet", 1, {
    upgrade(db) {
      db.createObjectStore("chats", { keyPath: "id" });
      db.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
    },
    terminated() {
      opened = null;
    },
  });
  return opened;
}

export const allChats = async (): Promise<Chat[]> => (await db()).getAll("chats");
export const messagesOf = async (chat: string): Promise<Message[]> => (await db()).getAllFromIndex("messages", "chat", chat);
export const allMessages = async (): Promise<Message[]> => (await db()).getAll("messages");

export async function putChat(chat: Chat) {
  await (await db()).put("chats", chat);
}

export async function putMessage(message: Message) {
  await (await db()).put("messages", message);
}

export async function putAll(chats: Chat[], messages: Message[]) {
  const tx = (await db()).transaction(["chats", "messages"], "readwrite");
  for (const chat of chats) void tx.objectStore("chats").put(chat);
  for (const message of messages) void tx.objectStore("messages").put(message);
  await tx.done;
}

export async function removeMessages(ids: string[]) {
  const tx = (await db()).transaction("messages", "readwrite");
  for (const id of ids) void tx.store.delete(id);
  await tx.done;
}

export async function removeChat(id: string) {
  const tx = (await db()).transaction(["chats", "messages"], "readwrite");
  void tx.objectStore("chats").delete(id);
  const index = tx.objectStore("messages").index("chat");
  for (let cursor = await index.openCursor(id); cursor; cursor = await cursor.continue()) void cursor.delete();
  await tx.done;
}

/** Answers that ran when the page was left. */
export async function interrupted(): Promise<Message[]> {
  const out: Message[] = [];
  const tx = (await db()).transaction("messages");
  for (let cursor = await tx.store.openCursor(); cursor; cursor = await cursor.continue()) if (cursor.value.state === "running") out.push(cursor.value);
  return out;
}

/** The conversations that hold a text, by title or message. */
export async function search(text: string): Promise<Set<string>> {
  const wanted = text.toLocaleLowerCase();
  const found = new Set<string>();
  for (const chat of await allChats()) if (chat.title.toLocaleLowerCase().includes(wanted)) found.add(chat.id);
  const tx = (await db()).transaction("messages");
  for (let cursor = await tx.store.openCursor(); cursor; cursor = await cursor.continue()) {
    const m = cursor.value;
    if (!found.has(m.chat) && m.text.toLocaleLowerCase().includes(wanted)) found.add(m.chat);
  }
  return found;
}

export const DEFAULTS: Settings = {
  model: "",
  thinking: "",
  system: "",
  presets: [],
  sampling: {},
  schemaOn: false,
  schema: "",
  extra: "",
  tools: [],
  theme: "",
  language: "",
};

export function loadSettings(): Settings {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
    if (kept && typeof kept === "object") return { ...DEFAULTS, ...(kept as Partial<Settings>) };
  } catch {
    // Damaged, or no storage: the defaults do.
  }
  return { ...DEFAULTS };
}

export function saveSettings(settings: Settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // No storage: they last as long as the page.
  }
}

const isText = (x: unknown): x is string => typeof x === "string";
const isId = (x: unknown): x is string => isText(x) && /^[\w-]{1,64}$/.test(x);
const object = (x: unknown): Record<string, unknown> | null => (x && typeof x === "object" && !Array.isArray(x) ? (x as Record<string, unknown>) : null);
const time = (x: unknown) => (typeof x === "number" && Number.isFinite(x) ? x : Date.now());

export interface Exported {
  format: "octet-conversations";
  version: 2;
  chats: Chat[];
  messages: Message[];
}

/** Reads an export, of this page or of the one before it. Only what is known of it is taken over; every id is new. */
export function readExport(value: unknown): { chats: Chat[]; messages: Message[] } {
  const root = object(value);
  const out: { chats: Chat[]; messages: Message[] } = { chats: [], messages: [] };
  if (root?.format !== "octet-conversations") return out;
  for (const entry of Array.isArray(root.conversations) ? root.conversations : []) {
    const old = readOld(entry);
    if (old) {
      out.chats.push(old.chat);
      out.messages.push(...old.messages);
    }
  }
  const chats = new Map<string, Chat>();
  for (const entry of Array.isArray(root.chats) ? root.chats : []) {
    const c = object(entry);
    if (!c || !isId(c.id)) continue;
    const chat: Chat = { id: crypto.randomUUID(), title: isText(c.title) ? c.title.slice(0, 200) : "", created: time(c.created), updated: time(c.updated), picks: {} };
    for (const [parent, child] of Object.entries(object(c.picks) ?? {})) if (isId(child)) chat.picks[parent] = child;
    chats.set(c.id, chat);
    out.chats.push(chat);
  }
  const ids = new Map<string, string>();
  const read: Message[] = [];
  for (const entry of Array.isArray(root.messages) ? root.messages : []) {
    const m = readMessage(object(entry));
    const chat = m && chats.get(m.chat);
    if (!m || !chat) continue;
    const id = crypto.randomUUID();
    ids.set(m.id, id);
    read.push({ ...m, id, chat: chat.id });
  }
  for (const m of read) out.messages.push({ ...m, parent: m.parent === null ? null : (ids.get(m.parent) ?? null) });
  for (const chat of chats.values()) {
    const picks = Object.entries(chat.picks).map(([parent, child]) => [parent && (ids.get(parent) ?? "?"), ids.get(child) ?? "?"]);
    chat.picks = Object.fromEntries(picks);
  }
  return out;
}

function readMessage(m: Record<string, unknown> | null): Message | null {
  if (!m || !isId(m.id) || !isId(m.chat) || !isText(m.text)) return null;
  if (m.role !== "user" && m.role !== "assistant" && m.role !== "tool") return null;
  const out: Message = { id: m.id, chat: m.chat, parent: isId(m.parent) ? m.parent : null, role: m.role, text: m.text, created: time(m.created), state: "done" };
  if (m.state === "stopped" || m.state === "cut" || m.state === "failed") out.state = m.state;
  for (const key of ["reasoning", "callId", "tool", "error", "finish", "model", "route"] as const) if (isText(m[key])) out[key] = m[key];
  if (typeof m.reasoningMs === "number") out.reasoningMs = m.reasoningMs;
  if (m.failed === true) out.failed = true;
  const calls = (Array.isArray(m.calls) ? m.calls : []).map(object).filter(c => c && isText(c.id) && isText(c.name) && isText(c.arguments));
  if (calls.length) out.calls = calls.map(c => ({ id: c!.id as string, name: c!.name as string, arguments: c!.arguments as string }));
  const files = (Array.isArray(m.attachments) ? m.attachments : []).map(object).filter(a => a && isText(a.name) && isText(a.text));
  if (files.length) out.attachments = files.map(a => ({ name: a!.name as string, text: a!.text as string, kind: a!.kind === "pdf" ? "pdf" : "text", bytes: (a!.text as string).length }));
  const figures = object(m.figures);
  if (figures) {
    out.figures = {};
    for (const key of ["first", "tokens", "rate", "prompt", "cached", "promptRate"] as const) if (typeof figures[key] === "number") out.figures[key] = figures[key];
  }
  return out;
}

/** A conversation as the page kept it before: a list of messages. */
function readOld(value: unknown): { chat: Chat; messages: Message[] } | null {
  const old = object(value);
  if (!old || !Array.isArray(old.messages)) return null;
  const updated = time(old.updated);
  const chat: Chat = { id: crypto.randomUUID(), title: isText(old.title) ? old.title : "", created: updated, updated, picks: {} };
  const messages: Message[] = [];
  let parent: string | null = null;
  for (const entry of old.messages) {
    const m = object(entry);
    if (!m || (m.role !== "user" && m.role !== "assistant") || !isText(m.content)) continue;
    const id: string = crypto.randomUUID();
    messages.push({ id, chat: chat.id, parent, role: m.role, text: m.content, created: updated + messages.length, state: "done", ...(isText(m.reasoning) && m.reasoning ? { reasoning: m.reasoning } : {}), ...(isText(m.error) && m.error ? { error: m.error } : {}) });
    parent = id;
  }
  return { chat, messages };
}

/** Takes over, once, what the page kept before it had a database. */
export async function migrate() {
  const keys = Object.keys(localStorage).filter(key => key.startsWith(OLD_CHAT));
  const all = keys.map(key => {
    try {
      return readOld(JSON.parse(localStorage.getItem(key) ?? ""));
    } catch {
      return null;
    }
  });
  const found = all.filter(old => old !== null);
  if (!found.length) return;
  await putAll(found.map(f => f.chat), found.flatMap(f => f.messages));
  for (const key of keys) localStorage.removeItem(key);
}
