// What is kept in the browser: conversations and messages in IndexedDB, settings in localStorage.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { readOld } from "./imports.ts";
import type { Chat, Message, Settings } from "./types.ts";

interface Kept extends DBSchema {
  chats: { key: string; value: Chat };
  messages: { key: string; value: Message; indexes: { chat: string } };
}

const SETTINGS = "octet.settings.2";
/** Where the page kept conversations before it had a database. */
const OLD_CHAT = "octet.chat.";

/** The database of this browser alone. That of conversations which the server keeps has the user's name behind it. */
const OWN = "octet";
let name = OWN;
let opened: Promise<IDBPDatabase<Kept>> | null = null;

/** Chooses the database: this browser's own, or the copy of a user's conversations on the server. */
export function use(user: string) {
  const wanted = user ? `${OWN}-${user}` : OWN;
  if (wanted === name) return;
  name = wanted;
  opened = null;
}

/** A conversation or a message was written here, or deleted. */
export interface Write {
  kind: "chat" | "message";
  id: string;
  chat: string;
}

/** Called before and after each write of this page, not with what came from the server: a page that is left between a write and the word of
 *  it would never send it. */
export const written: ((all: Write[]) => void)[] = [];
async function telling(all: Write[], write: () => Promise<unknown>) {
  for (const f of written) f(all);
  await write();
  for (const f of written) f(all);
}
const ofChat = (id: string): Write => ({ kind: "chat", id, chat: id });
const ofMessage = (m: { id: string; chat: string }): Write => ({ kind: "message", id: m.id, chat: m.chat });

function db() {
  opened ??= openDB<Kept>(name, 1, {
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

export const putChat = (chat: Chat) => telling([ofChat(chat.id)], async () => (await db()).put("chats", chat));

export const putMessage = (message: Message) => telling([ofMessage(message)], async () => (await db()).put("messages", message));

export const putAll = (chats: Chat[], messages: Message[]) =>
  telling([...chats.map(c => ofChat(c.id)), ...messages.map(ofMessage)], async () => {
    const tx = (await db()).transaction(["chats", "messages"], "readwrite");
    for (const chat of chats) void tx.objectStore("chats").put(chat);
    for (const message of messages) void tx.objectStore("messages").put(message);
    await tx.done;
  });

/** What the server has of these: as it is there, or deleted. */
export async function takeOver(items: { kind: "chat" | "message"; id: string; value: Chat | Message | null }[]) {
  const tx = (await db()).transaction(["chats", "messages"], "readwrite");
  for (const { kind, id, value } of items) {
    const to = tx.objectStore(kind === "chat" ? "chats" : "messages");
    if (value) void to.put(value as never);
    else void to.delete(id);
  }
  await tx.done;
}

/** What is written now under these names. */
export async function current(all: Write[]): Promise<(Write & { value: Chat | Message | null })[]> {
  const tx = (await db()).transaction(["chats", "messages"]);
  return Promise.all(all.map(async w => ({ ...w, value: (await tx.objectStore(w.kind === "chat" ? "chats" : "messages").get(w.id)) ?? null })));
}

/** Everything in this browser's own database. */
export async function everythingOfOwn(): Promise<{ chats: Chat[]; messages: Message[] }> {
  const own = await openDB<Kept>(OWN, 1, {
    upgrade(db) {
      db.createObjectStore("chats", { keyPath: "id" });
      db.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
    },
  });
  const out = { chats: await own.getAll("chats"), messages: await own.getAll("messages") };
  own.close();
  return out;
}

export const removeMessages = (chat: string, ids: string[]) =>
  telling(ids.map(id => ofMessage({ id, chat })), async () => {
    const tx = (await db()).transaction("messages", "readwrite");
    for (const id of ids) void tx.store.delete(id);
    await tx.done;
  });

export const removeChat = (id: string) =>
  telling([ofChat(id)], async () => {
    const tx = (await db()).transaction(["chats", "messages"], "readwrite");
    void tx.objectStore("chats").delete(id);
    const index = tx.objectStore("messages").index("chat");
    for (let cursor = await index.openCursor(id); cursor; cursor = await cursor.continue()) void cursor.delete();
    await tx.done;
  });

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
  serverToolsOff: [],
  serverToolsAllowed: [],
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

export interface Exported {
  format: "octet-conversations";
  version: 2;
  chats: Chat[];
  messages: Message[];
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
