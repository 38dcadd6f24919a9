// Reads exports of conversations: of this page, and of ChatGPT, Open WebUI and llama.cpp's page. Pure functions; what they read is untrusted:
// only what is known is taken over. Names stay those of the file, so that what is read twice is there once.
import { newId } from "./ids.ts";
import type { Attachment, Chat, Message } from "./types.ts";

export interface Read {
  chats: Chat[];
  messages: Message[];
}

/** What a file holds; `unread` entries of it are no conversations. */
export interface ReadFile extends Read {
  unread: number;
}

type Json = Record<string, unknown>;

const isText = (x: unknown): x is string => typeof x === "string";
const isId = (x: unknown): x is string => isText(x) && /^[\w-]{1,64}$/.test(x);
const object = (x: unknown): Json | null => (x && typeof x === "object" && !Array.isArray(x) ? (x as Json) : null);
const list = (x: unknown): unknown[] => (Array.isArray(x) ? x : []);
const time = (x: unknown) => (typeof x === "number" && Number.isFinite(x) ? x : Date.now());
/** Seconds or milliseconds since 1970, or a text, as milliseconds. */
function moment(x: unknown, or: number): number {
  const n = isText(x) ? Date.parse(x) : typeof x === "number" ? x : NaN;
  if (!Number.isFinite(n)) return or;
  return Math.round(n < 1e11 ? n * 1000 : n);
}
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/;

/** Reads the text of a file, whichever program wrote it. */
export function readExport(text: string): ReadFile {
  const out: ReadFile = { chats: [], messages: [], unread: 0 };
  for (const value of values(text)) {
    for (const entry of Array.isArray(value) ? value : [value]) {
      const read = readAny(entry);
      out.chats.push(...read.chats);
      for (const m of read.messages) out.messages.push(m);
      if (!read.chats.length) out.unread++;
    }
  }
  return out;
}

/** The JSON values of a text: one, or one in each line. */
function values(text: string): unknown[] {
  try {
    return [JSON.parse(text)];
  } catch {
    const lines = text.split("\n").filter(line => line.trim());
    try {
      return lines.map(line => JSON.parse(line) as unknown);
    } catch {
      return [];
    }
  }
}

function readAny(value: unknown): Read {
  const root = object(value);
  if (!root) return { chats: [], messages: [] };
  if (root.format === "octet-conversations") return readOwn(root);
  if (object(root.mapping)) return readChatGpt(root);
  if (object(object(root.chat)?.history) || Array.isArray(object(root.chat)?.messages)) return readOpenWebUi(root);
  if (object(root.conv) && Array.isArray(root.messages)) return readLlama(object(root.conv)!, root.messages);
  if (isText(root.name) && isText(root.id) && Array.isArray(root.messages)) return readLlama(root, root.messages);
  return { chats: [], messages: [] };
}

// ---- This page's own.

function readOwn(root: Json): Read {
  const out: Read = { chats: [], messages: [] };
  for (const entry of list(root.conversations)) {
    const old = readOld(entry);
    if (old) {
      out.chats.push(old.chat);
      out.messages.push(...old.messages);
    }
  }
  const ids = new Set<string>();
  for (const entry of list(root.chats)) {
    const c = object(entry);
    if (!c || !isId(c.id) || ids.has(c.id)) continue;
    const chat: Chat = { id: c.id, title: isText(c.title) ? c.title.slice(0, 200) : "", created: time(c.created), updated: time(c.updated), picks: {} };
    for (const [parent, child] of Object.entries(object(c.picks) ?? {})) if (isId(child)) chat.picks[parent] = child;
    const own = object(c.own);
    if (own) {
      chat.own = {};
      for (const key of ["model", "system", "schema", "extra"] as const) if (isText(own[key])) chat.own[key] = own[key];
      if (own.thinking === "on" || own.thinking === "off") chat.own.thinking = own.thinking;
      const sampling = Object.entries(object(own.sampling) ?? {}).filter(([, n]) => typeof n === "number");
      if (sampling.length) chat.own.sampling = Object.fromEntries(sampling);
      if (own.schemaOn === true) chat.own.schemaOn = true;
    }
    ids.add(c.id);
    out.chats.push(chat);
  }
  for (const entry of list(root.messages)) {
    const m = readMessage(object(entry));
    if (m && ids.has(m.chat)) out.messages.push(m);
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
  if (files.length) out.attachments = files.map(a => ({ name: a!.name as string, text: a!.text as string, kind: a!.kind === "pdf" || a!.kind === "image" ? a!.kind : "text", bytes: (a!.text as string).length }));
  const figures = object(m.figures);
  if (figures) {
    out.figures = {};
    for (const key of ["first", "tokens", "rate", "prompt", "cached", "promptRate"] as const) if (typeof figures[key] === "number") out.figures[key] = figures[key];
  }
  return out;
}

/** A conversation as the page kept it before: a list of messages. */
export function readOld(value: unknown): { chat: Chat; messages: Message[] } | null {
  const old = object(value);
  if (!old || !Array.isArray(old.messages)) return null;
  const updated = time(old.updated);
  const chat: Chat = { id: newId(), title: isText(old.title) ? old.title : "", created: updated, updated, picks: {} };
  const messages: Message[] = [];
  let parent: string | null = null;
  for (const entry of old.messages) {
    const m = object(entry);
    if (!m || (m.role !== "user" && m.role !== "assistant") || !isText(m.content)) continue;
    const id: string = newId();
    messages.push({ id, chat: chat.id, parent, role: m.role, text: m.content, created: updated + messages.length, state: "done", ...(isText(m.reasoning) && m.reasoning ? { reasoning: m.reasoning } : {}), ...(isText(m.error) && m.error ? { error: m.error } : {}) });
    parent = id;
  }
  return { chat, messages };
}

// ---- Others'.

/** A message of another program's tree; without a role it is only a link. */
interface Node {
  id: string;
  parent: string | null;
  role?: "user" | "assistant";
  text?: string;
  created?: number;
  reasoning?: string;
  model?: string;
  attachments?: Attachment[];
}

/** A conversation from a tree of nodes. Links without a message are left out; `end` is the last message that is shown. */
function assemble(chat: Chat, nodes: Node[], end: unknown): Read {
  const byId = new Map(nodes.map(n => [n.id, n]));
  const own = (id: string) => (/^[0-9a-f-]{36}$/i.test(id) ? id : `${chat.id.slice(0, 24)}-${id.replace(/[^\w-]/g, "_").slice(0, 36)}`);
  /** The nearest message above a node. */
  const above = (n: Node): Node | null => {
    const seen = new Set<string>([n.id]);
    for (let at = n.parent; at !== null && !seen.has(at);) {
      const next = byId.get(at);
      if (!next) return null;
      if (next.role) return next;
      seen.add(at);
      at = next.parent;
    }
    return null;
  };
  const messages: Message[] = [];
  nodes.forEach((n, i) => {
    if (!n.role) return;
    const parent = above(n);
    messages.push({
      id: own(n.id), chat: chat.id, parent: parent ? own(parent.id) : null, role: n.role, text: n.text ?? "", created: n.created ?? chat.created + i, state: "done",
      ...(n.reasoning ? { reasoning: n.reasoning } : {}), ...(n.model ? { model: n.model } : {}), ...(n.attachments?.length ? { attachments: n.attachments } : {}),
    });
  });
  const seen = new Set<string>();
  for (let at = isText(end) ? (byId.get(end) ?? null) : null; at && !seen.has(at.id); at = above(at)) {
    seen.add(at.id);
    const parent = above(at);
    if (at.role) chat.picks[parent ? own(parent.id) : ""] = own(at.id);
  }
  return messages.length ? { chats: [chat], messages } : { chats: [], messages: [] };
}

function conversation(id: unknown, title: unknown, created: number, updated: number): Chat {
  return { id: isId(id) ? id : newId(), title: isText(title) ? title.slice(0, 200) : "", created, updated, picks: {} };
}

/** ChatGPT's conversations.json: a map of nodes. */
function readChatGpt(root: Json): Read {
  const created = moment(root.create_time, Date.now());
  const chat = conversation(root.conversation_id ?? root.id, root.title, created, moment(root.update_time, created));
  const nodes = Object.entries(object(root.mapping) ?? {}).map(([id, value]): Node => {
    const node = object(value);
    const m = object(node?.message);
    const link: Node = { id, parent: isText(node?.parent) ? node.parent : null };
    const [content, role] = [object(m?.content), object(m?.author)?.role];
    const hidden = object(m?.metadata)?.is_visually_hidden_from_conversation === true || (isText(m?.recipient) && m.recipient !== "all");
    if (!m || !content || hidden || (role !== "user" && role !== "assistant")) return link;
    const kind = content.content_type;
    if (kind !== "text" && kind !== "multimodal_text" && kind !== "code") return link;
    const text = kind === "code" && isText(content.text) ? `\`\`\`\n${content.text}\n\`\`\`` : list(content.parts).map(p => (isText(p) ? p : isText(object(p)?.text) ? (object(p)!.text as string) : "")).filter(Boolean).join("\n\n");
    if (!text.trim()) return link;
    const model = object(m.metadata)?.model_slug;
    return { ...link, role, text, created: moment(m.create_time, created), ...(role === "assistant" && isText(model) ? { model } : {}) };
  });
  return assemble(chat, nodes, root.current_node);
}

/** Open WebUI's export: a list of these, with the tree in `chat.history`, or a plain list of messages. */
function readOpenWebUi(root: Json): Read {
  const inner = object(root.chat)!;
  const created = moment(root.created_at ?? inner.timestamp, Date.now());
  const chat = conversation(root.id, root.title ?? inner.title, created, moment(root.updated_at, created));
  const history = object(inner.history);
  const tree = object(history?.messages);
  const all = tree ? Object.values(tree) : list(inner.messages);
  let before: string | null = null;
  const nodes = all.flatMap((value): Node[] => {
    const m = object(value);
    if (!m || !isText(m.id)) return [];
    const parent = tree ? (isText(m.parentId) ? m.parentId : null) : before;
    before = m.id;
    if (m.role !== "user" && m.role !== "assistant") return [{ id: m.id, parent }];
    const { text, reasoning } = apart(isText(m.content) ? m.content : "");
    const attachments = list(m.files).flatMap((f): Attachment[] => {
      const file = object(f);
      const name = isText(file?.name) ? file.name : "file";
      if (isText(file?.url) && PICTURE.test(file.url)) return [{ name, kind: "image", text: file.url, bytes: file.url.length }];
      const content = object(object(file?.file)?.data)?.content;
      return isText(content) ? [{ name, kind: "text", text: content, bytes: content.length }] : [];
    });
    return [{ id: m.id, parent, role: m.role, text, created: moment(m.timestamp, created), attachments, ...(reasoning ? { reasoning } : {}), ...(isText(m.model) ? { model: m.model } : {}) }];
  });
  return assemble(chat, nodes, history?.currentId ?? before);
}

/** Open WebUI writes reasoning as `<details type="reasoning">` before the answer. */
function apart(content: string): { text: string; reasoning: string } {
  const found = /^\s*<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*<\/summary>)?([^]*?)<\/details>\s*/.exec(content);
  if (!found) return { text: content, reasoning: "" };
  const quoted = found[1]!.trim().replace(/^(?:> ?|&gt; ?)/gm, "");
  return { text: content.slice(found[0].length), reasoning: quoted };
}

/** llama.cpp's page: `{conv, messages}`, or a list of these. The root is a message without text. */
function readLlama(conv: Json, messages: unknown[]): Read {
  const updated = moment(conv.lastModified, Date.now());
  const chat = conversation(conv.id, conv.name, updated, updated);
  const nodes = messages.flatMap((value): Node[] => {
    const m = object(value);
    const id = isText(m?.id) ? m.id : typeof m?.id === "number" ? String(m.id) : null;
    if (!m || id === null) return [];
    const parent = isText(m.parent) && m.parent !== "" ? m.parent : typeof m.parent === "number" && m.parent >= 0 ? String(m.parent) : null;
    if (m.type === "root" || (m.role !== "user" && m.role !== "assistant")) return [{ id, parent }];
    const attachments = list(m.extra).flatMap((e): Attachment[] => {
      const extra = object(e);
      const name = isText(extra?.name) ? extra.name : "file";
      if (isText(extra?.base64Url) && PICTURE.test(extra.base64Url)) return [{ name, kind: "image", text: extra.base64Url, bytes: extra.base64Url.length }];
      if (!isText(extra?.content)) return [];
      return [{ name, kind: extra.type === "pdfFile" ? "pdf" : "text", text: extra.content, bytes: extra.content.length }];
    });
    const reasoning = isText(m.reasoningContent) ? m.reasoningContent : isText(m.thinking) ? m.thinking : "";
    return [{ id, parent, role: m.role, text: isText(m.content) ? m.content : "", created: moment(m.timestamp, updated), attachments, ...(reasoning ? { reasoning } : {}), ...(isText(m.model) ? { model: m.model } : {}) }];
  });
  const end = isText(conv.currNode) ? conv.currNode : typeof conv.currNode === "number" ? String(conv.currNode) : nodes.at(-1)?.id;
  return assemble(chat, nodes, end);
}
