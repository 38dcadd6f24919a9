// What the page shows: settings, models, conversations, and the messages of the open one, as signals.
import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import { apiKey, json, ServerError, type ModelEntry, type Props, type Ready } from "./api.ts";
import { chosen, t } from "./i18n.ts";
import { newId } from "./ids.ts";
import { readExport } from "./imports.ts";
import { inAddress, navigate, travelled } from "./nav.ts";
import * as store from "./store.ts";
import * as sync from "./sync.ts";
import * as tree from "./tree.ts";
import type { Chat, Message, Own, Settings } from "./types.ts";

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

export { menu, panel, setMenu, setPanel, type Panel } from "./nav.ts";

// ---- Models.

export const models = signal<ModelEntry[]>([]);
export const ready = signal<Ready["models"]>([]);
export const props = signal<Props | null>(null);

/** The model that answers. */
export const model = computed(() => modelOf(effective.value));

/** The model that settings name; the first if it is not there. */
export function modelOf(s: Settings): ModelEntry | null {
  const all = models.value;
  return all.find(m => m.id === s.model) ?? all[0] ?? null;
}

/** It runs in the server itself, and so takes fields that other servers may not know. */
export const isLocal = computed(() => Boolean(model.value?.meta?.n_params));

/** The model's template reads a switch for reasoning; unknown where it runs elsewhere. */
export const canSwitchThinking = computed(() => props.value?.chat_template?.includes("enable_thinking") ?? true);

/** The server wants a key, and has none or a wrong one. */
export const locked = signal<"" | "wanted" | "wrong">("");

/** The list of models was read, or could not be. */
export const knowsModels = signal(false);

export const loadModels = () => listModels().finally(() => (knowsModels.value = true));

async function listModels() {
  try {
    models.value = (await json<{ data: ModelEntry[] }>("v1/models")).data;
    locked.value = "";
    note.value = models.value.length ? "" : t("error.noModels");
  } catch (e) {
    if (isRefused(e)) locked.value = apiKey.get() ? "wrong" : "wanted";
    else note.value = t("error.models", { why: said(e) });
    return;
  }
  await Promise.all([loadState(), loadVision()]);
}

/** Names of models that say of themselves that they read pictures. */
const seeing = signal<ReadonlySet<string>>(new Set());

/** The chosen model reads pictures. */
export const seesImages = computed(() => {
  const m = model.value;
  return Boolean(m && (m.capabilities?.vision || seeing.value.has(m.id) || props.value?.modalities?.vision));
});

/** What a router's file says of its models. */
async function loadVision() {
  try {
    const { data } = await json<{ data: { model_name: string; model_info?: { supports_vision?: boolean } }[] }>("v1/model/info");
    seeing.value = new Set(data.filter(m => m.model_info?.supports_vision).map(m => m.model_name));
  } catch {
    // Nothing is known of pictures then.
  }
}

/** Called when another model is chosen, and when one was loaded or unloaded. */
export const modelChanged: (() => void)[] = [];

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
  for (const f of modelChanged) f();
  try {
    props.value = await json<Props>(`props?model=${encodeURIComponent(id)}`);
  } catch {
    props.value = null;
  }
}

export const said = (e: unknown) => (e instanceof Error ? e.message : String(e));
export const isRefused = (e: unknown) => e instanceof ServerError && e.status === 401;

/** Logs in, or out without a key; `remember` keeps the key when the tab is closed. Another user may have other conversations: nothing that
 *  was begun for the one before (answers, writes, what is on its way) may reach them, so the page begins anew. */
export async function setKey(key: string, remember: boolean) {
  const left = await sync.leave();
  apiKey.set(key, remember);
  if (left) {
    location.reload();
    // Until then this page does nothing more.
    return new Promise<void>(() => {});
  }
  // What the user before had written is not shown to the next.
  batch(() => {
    chats.value = [];
    current.value = null;
    messages.value = new Map();
  });
  opening = loadModels().then(() => (locked.peek() ? undefined : openStore()));
  await opening;
}

// ---- Conversations.

let opening: Promise<void> = Promise.resolve();

/** The conversations of this user are there. What was begun before would be in no list: the opening shows another one. */
export const storeOpened = () => opening;

export const chats = signal<Chat[]>([]);
export const current = signal<string | null>(null);
/** The messages of the open conversation. Each is a signal of its own: while an answer runs, it alone is drawn again. */
export const messages = signal<ReadonlyMap<string, Signal<Message>>>(new Map());

export const chat = computed(() => chats.value.find(c => c.id === current.value) ?? null);

// ---- Settings of the open conversation.

/** Of a conversation that has not begun. */
const ownOfNew = signal<Own>({});
export const own = computed(() => (chat.value ? (chat.value.own ?? {}) : ownOfNew.value));

function merged(own: Own): Settings {
  const { tools: on, ...rest } = own;
  const tools = settings.value.tools.map(tool => ({ ...tool, enabled: on?.[tool.id] ?? tool.enabled }));
  return { ...settings.value, ...rest, tools };
}

/** The settings that hold in the open conversation: its own, and else the defaults. */
export const effective = computed(() => merged(own.value));

/** Those of any conversation. */
export function effectiveOf(id: string): Settings {
  const found = chats.value.find(c => c.id === id);
  return found ? merged(found.own ?? {}) : effective.value;
}

/** Changes settings of the open conversation alone; `undefined` takes the default again. */
export function setOwn(change: { [K in keyof Own]: Own[K] | undefined }) {
  const next = Object.fromEntries(Object.entries({ ...own.peek(), ...change }).filter(([, value]) => value !== undefined)) as Own;
  if (chat.peek()) saveChat({ ...chat.peek()!, own: next });
  else ownOfNew.value = next;
}

/** What is written in the message field of a conversation that has not begun. */
let draftOfNew = "";
let drafting = 0;

export const draft = () => (chat.peek() ? (chat.peek()!.draft ?? "") : draftOfNew);

/** Keeps what is written in the message field, a moment later. */
export function setDraft(text: string) {
  const id = current.peek();
  clearTimeout(drafting);
  if (id === null) {
    draftOfNew = text;
    return;
  }
  drafting = window.setTimeout(() => keepDraft(id, text), 400);
}

function keepDraft(id: string, text: string) {
  const c = chats.peek().find(c => c.id === id);
  if (!c || (c.draft ?? "") === text) return;
  const { draft: _, ...rest } = c;
  saveChat(text ? { ...rest, draft: text } : rest);
}

/** The messages as they are, without being told of changes within them. */
export const plain = () => new Map([...messages.value].map(([id, m]) => [id, m.peek()]));

export const shown = computed(() => tree.path(plain(), chat.value?.picks ?? {}).map(m => m.id));

/** Tokens of the chosen model's context; 0 if unknown. */
export const context = computed(() => props.value?.default_generation_settings?.n_ctx ?? model.value?.max_model_len ?? 0);

/** Tokens that the conversation had when it was answered last. */
export const used = computed(() => {
  for (const id of [...shown.value].reverse()) {
    const figures = messages.value.get(id)?.value.figures;
    if (figures?.prompt) return figures.prompt + (figures.tokens ?? 0);
  }
  return 0;
});

/** Conversations are kept by the server, not by this browser alone. */
export const onServer = signal(false);

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
  if (id === null) {
    batch(() => {
      current.value = null;
      messages.value = new Map();
    });
    navigate("");
    return;
  }
  try {
    // An answer that seems to run may have ended elsewhere meanwhile.
    if (onServer.peek()) await sync.refresh();
    const all = await store.messagesOf(id);
    batch(() => {
      current.value = id;
      messages.value = new Map(all.map(m => [m.id, runs.peek().get(m.id) ?? signal(m)]));
    });
    navigate(id);
    for (const f of opened) f(all);
  } catch (e) {
    note.value = t("error.storage", { why: said(e) });
  }
}

/** The open conversation; a new one if none is. */
export function ensureChat(title: string): Chat {
  if (chat.value) return chat.value;
  const now = Date.now();
  // It stays with its model, whatever becomes the default.
  const own: Own = { ...(model.peek() ? { model: model.peek()!.id } : {}), ...ownOfNew.peek() };
  const fresh: Chat = { id: newId(), title, created: now, updated: now, picks: {}, own };
  ownOfNew.value = {};
  draftOfNew = "";
  batch(() => {
    current.value = fresh.id;
    saveChat(fresh);
  });
  navigate(fresh.id);
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

export interface Imported {
  /** Conversations that the file holds. */
  found: number;
  /** Those that were not here yet, or had fewer messages. */
  fresh: number;
  /** Entries that are no conversations. */
  unread: number;
}

/** Reads the export of this page or another program. What is here already stays as it is. */
export async function importChats(text: string): Promise<Imported> {
  const read = readExport(text);
  const here = new Map((await store.allChats()).map(c => [c.id, c]));
  const known = new Set((await store.allMessages()).map(m => m.id));
  const messages = read.messages.filter(m => !known.has(m.id));
  const grown = new Set(messages.map(m => m.chat));
  const fresh = read.chats.filter(c => !here.has(c.id) || grown.has(c.id));
  await store.putAll(fresh.filter(c => !here.has(c.id)), messages);
  await refreshChats();
  return { found: read.chats.length, fresh: fresh.length, unread: read.unread };
}

/** Opens the conversations of this user. */
async function openStore() {
  try {
    onServer.value = await sync.begin();
    await store.migrate();
    chats.value = sorted(await store.allChats());
  } catch (e) {
    note.value = t("error.storage", { why: said(e) });
  }
  const wanted = inAddress();
  if (chats.value.some(c => c.id === wanted)) await open(wanted);
  else if (current.peek()) await open(null);
}

sync.setBusy(id => runs.peek().has(id));
sync.received.push(items => {
  void refreshChats();
  const open = current.peek();
  const all = new Map(messages.peek());
  let grown = false;
  batch(() => {
    for (const { kind, id, chat, value } of items) {
      if (kind !== "message" || chat !== open) continue;
      const known = all.get(id);
      if (known && value) known.value = value as Message;
      else if (value) all.set(id, signal(value as Message));
      else all.delete(id);
      grown ||= !known || !value;
    }
    if (grown) messages.value = all;
  });
});

export async function start() {
  opening = openStore();
  await Promise.all([loadModels(), opening]);
  // In conversations that are not open, too: the server waits for a minute.
  const left = await store.interrupted().catch(() => []);
  for (const f of opened) f(left);
}

/** Deletes a message; what follows it stays, behind the message before it. */
export async function removeMessage(m: Message) {
  const all = plain();
  const results = m.calls?.length ? [...all.values()].filter(x => x.role === "tool" && tree.line(all, x.id).some(y => y.id === m.id) && m.calls!.some(c => c.id === x.callId)) : [];
  const gone = new Set([m.id, ...results.map(r => r.id)]);
  const c = chats.peek().find(c => c.id === m.chat);
  const left = new Map(messages.peek());
  for (const id of gone) left.delete(id);
  const above = (id: string | null): string | null => (id !== null && gone.has(id) ? above(all.get(id)?.parent ?? null) : id);
  const moved = [...left.values()].map(s => s.peek()).filter(x => x.parent !== null && gone.has(x.parent));
  batch(() => {
    messages.value = left;
    for (const x of moved) saveMessage({ ...x, parent: above(x.parent) });
    if (!c) return;
    const shownNext = moved.find(x => all.get(x.parent!)?.id === m.id && c.picks[m.id] === x.id) ?? moved.at(-1);
    const picks = Object.fromEntries(Object.entries(c.picks).filter(([parent, child]) => !gone.has(parent) && !gone.has(child)));
    if (shownNext) picks[above(shownNext.parent) ?? ""] = shownNext.id;
    saveChat({ ...c, picks });
  });
  keep(store.removeMessages(m.chat, [...gone]).then(() => changed(m.chat)));
}

travelled.push(wanted => {
  if (wanted !== (current.peek() ?? "") && (!wanted || chats.peek().some(c => c.id === wanted))) void open(wanted || null);
});
