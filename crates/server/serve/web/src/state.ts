// What the page shows: settings, models, conversations, and the messages of the open one, as signals.
import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import { apiKey, json, ServerError, type ModelEntry, type Props, type Ready } from "./api.ts";
import { chosen, t } from "./i18n.ts";
import * as store from "./store.ts";
import * as tree from "./tree.ts";
import type { Chat, Message, Settings } from "./types.ts";

export const settings = signal<Settings>(store.loadSettings());

export function set<K extends keyof Settings>(key: K, value: Settings[K]) {
  settings.value = { ...settings.value, [key]: value };
}

effect(() => {
  store.saveSettings(settings.value);
  chosen.value = settings.value.language;
  document.documentElement.style.colorScheme = settings.value.theme || "light dark";
});

/** A line above the message field, for what went wrong. */
export const note = signal("");
/** What screen readers are told. */
export const announced = signal("");

export type Panel = "" | "settings" | "experts" | "performance" | "api";
export const panel = signal<Panel>("");
/** On a narrow screen: the list of conversations is open. */
export const menu = signal(false);

// ---- Models.

export const models = signal<ModelEntry[]>([]);
export const ready = signal<Ready["models"]>([]);
export const props = signal<Props | null>(null);

/** The model that answers. */
export const model = computed(() => {
  const all = models.value;
  return all.find(m => m.id === settings.value.model) ?? all[0] ?? null;
});

/** It runs in the server itself, and so takes fields that other servers may not know. */
export const isLocal = computed(() => Boolean(model.value?.meta?.n_params));

/** The model's template reads a switch for reasoning; unknown where it runs elsewhere. */
export const canSwitchThinking = computed(() => props.value?.chat_template?.includes("enable_thinking") ?? true);

export async function loadModels() {
  try {
    models.value = (await json<{ data: ModelEntry[] }>("v1/models")).data;
    note.value = models.value.length ? "" : t("error.noModels");
  } catch (e) {
    note.value = t("error.models", { why: said(e) });
  }
  await loadState();
}

/** Which models are loaded, and what the chosen one can do. */
export async function loadState() {
  try {
    ready.value = (await fetch("ready").then(r => r.json() as Promise<Ready>)).models;
  } catch {
    ready.value = [];
  }
  const id = model.value?.id;
  if (!id || !isLocal.value) {
    props.value = null;
    return;
  }
  try {
    props.value = await json<Props>(`props?model=${encodeURIComponent(id)}`);
  } catch {
    props.value = null;
  }
}

export const said = (e: unknown) => (e instanceof Error ? e.message : String(e));
export const isRefused = (e: unknown) => e instanceof ServerError && e.status === 401;

export function setKey(key: string) {
  apiKey.set(key);
  void loadModels();
}

// ---- Conversations.

export const chats = signal<Chat[]>([]);
export const current = signal<string | null>(null);
/** The messages of the open conversation. Each is a signal of its own: while an answer runs, it alone is drawn again. */
export const messages = signal<ReadonlyMap<string, Signal<Message>>>(new Map());

export const chat = computed(() => chats.value.find(c => c.id === current.value) ?? null);

/** The messages as they are, without being told of changes within them. */
export const plain = () => new Map([...messages.value].map(([id, m]) => [id, m.peek()]));

export const shown = computed(() => tree.path(plain(), chat.value?.picks ?? {}).map(m => m.id));

const tabs = "BroadcastChannel" in window ? new BroadcastChannel("octet") : null;

function changed(id: string) {
  tabs?.postMessage(id);
}

tabs?.addEventListener("message", () => void refreshChats());

async function refreshChats() {
  try {
    chats.value = sorted(await store.allChats());
  } catch {
    // The list stays as it is.
  }
}

const sorted = (all: Chat[]) => all.sort((a, b) => b.updated - a.updated);

function keep(what: Promise<void>) {
  what.catch((e: unknown) => {
    note.value = t("error.storage", { why: said(e) });
  });
}

export function saveChat(changedChat: Chat) {
  const others = chats.peek().filter(c => c.id !== changedChat.id);
  chats.value = sorted([...others, changedChat]);
  keep(store.putChat(changedChat).then(() => changed(changedChat.id)));
}

/** Keeps a message, and shows it where its conversation is open. Gives the signal that holds it. */
export function saveMessage(m: Message): Signal<Message> {
  keep(store.putMessage(m));
  const known = messages.peek().get(m.id);
  if (known) {
    known.value = m;
    return known;
  }
  const fresh = signal(m);
  if (m.chat === current.peek()) messages.value = new Map([...messages.peek(), [m.id, fresh]]);
  return fresh;
}

/** Answers that run, by message: their conversation need not be open. */
export const runs = signal<ReadonlyMap<string, Signal<Message>>>(new Map());

/** Called with the messages of a conversation when it is opened. */
export const opened: ((all: Message[]) => void)[] = [];

export async function open(id: string | null) {
  menu.value = false;
  if (id === null) {
    batch(() => {
      current.value = null;
      messages.value = new Map();
    });
    location.hash = "";
    return;
  }
  try {
    const all = await store.messagesOf(id);
    batch(() => {
      current.value = id;
      messages.value = new Map(all.map(m => [m.id, runs.peek().get(m.id) ?? signal(m)]));
    });
    location.hash = id;
    for (const f of opened) f(all);
  } catch (e) {
    note.value = t("error.storage", { why: said(e) });
  }
}

/** The open conversation; a new one if none is. */
export function ensureChat(title: string): Chat {
  if (chat.value) return chat.value;
  const now = Date.now();
  const fresh: Chat = { id: crypto.randomUUID(), title, created: now, updated: now, picks: {} };
  current.value = fresh.id;
  saveChat(fresh);
  location.hash = fresh.id;
  return fresh;
}

export function pick(m: Message) {
  const c = chats.peek().find(c => c.id === m.chat);
  if (c) saveChat({ ...c, picks: { ...c.picks, [m.parent ?? ""]: m.id } });
}

export function rename(c: Chat, title: string) {
  saveChat({ ...c, title: title.slice(0, 200) });
}

export async function remove(c: Chat) {
  chats.value = chats.peek().filter(other => other.id !== c.id);
  if (current.peek() === c.id) await open(null);
  keep(store.removeChat(c.id).then(() => changed(c.id)));
}

export async function exportChats(only?: Chat): Promise<store.Exported> {
  const all = only ? [only] : chats.peek();
  const ids = new Set(all.map(c => c.id));
  const kept = (await store.allMessages()).filter(m => ids.has(m.chat));
  return { format: "octet-conversations", version: 2, chats: all, messages: kept };
}

export async function importChats(text: string): Promise<number> {
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    return 0;
  }
  const read = store.readExport(value);
  await store.putAll(read.chats, read.messages);
  await refreshChats();
  return read.chats.length;
}

export async function start() {
  try {
    await store.migrate();
    chats.value = sorted(await store.allChats());
  } catch (e) {
    note.value = t("error.storage", { why: said(e) });
  }
  const wanted = location.hash.slice(1);
  if (chats.value.some(c => c.id === wanted)) await open(wanted);
  await loadModels();
  // In conversations that are not open, too: the server waits for a minute.
  const left = await store.interrupted().catch(() => []);
  for (const f of opened) f(left);
}

addEventListener("hashchange", () => {
  const wanted = location.hash.slice(1);
  if (wanted !== (current.peek() ?? "") && (!wanted || chats.peek().some(c => c.id === wanted))) void open(wanted || null);
});
