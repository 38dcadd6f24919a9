// Conversations on the server: what is written here goes there, and what is new there comes here. The browser's database is a copy, so that
// the page works while the server is away.
import { apiKey, call, headers, json, ServerError } from "./api.ts";
import * as store from "./store.ts";
import type { Chat, Message } from "./types.ts";

interface Item extends store.Write {
  value: Chat | Message | null;
}

interface Changes {
  kept: boolean;
  user?: string;
  seq?: number;
  more?: boolean;
  items?: Item[];
}

const [SEQ, UNSENT, COPIED] = ["octet.store.seq.", "octet.store.unsent.", "octet.store.copied."];
/** How long a write waits for further ones, and how often the server is asked while somebody looks and while not. */
const [WAIT_MS, LOOK_MS, QUIET_MS] = [700, 3000, 30_000];
const REFRESH_MS = 800;
/** When a request counts as lost: a connection that a phone's sleep has cut may never say so, and the next one waits for it. */
const LOST_MS = 30_000;
/** Length of one request, roughly. */
const CHARS_MAX = 4 << 20;
/** What a browser sends while the page is left. */
const LEAVING_CHARS_MAX = 60_000;

let user = "";
/** The key of this user. What is written here goes out with no other: another tab may have logged somebody else in. */
let key = "";
let seq = 0;
let unsent = new Map<string, store.Write>();
/** What is on its way: nobody knows yet whether it arrives. */
let underWay = new Map<string, store.Write>();
let timer = 0;
let sending: Promise<void> | null = null;

/** Called with what came from the server and is in the database now. */
export const received: ((items: Item[]) => void)[] = [];
/** Says whether an item may not be overwritten now: an answer that runs here. */
export let isBusy: (id: string) => boolean = () => false;
export function setBusy(f: (id: string) => boolean) {
  isBusy = f;
}

const all = () => [...new Map([...underWay, ...unsent]).values()];

/** Whether the user for whom something was begun is still the one whose conversations these are, and whose key is sent. */
const still = (whose: string) => user === whose && apiKey.get() === key;

function keepUnsent() {
  try {
    localStorage.setItem(UNSENT + user, JSON.stringify(all()));
  } catch {
    // They are sent while the page is open.
  }
}

const ask = (since: number) => json<Changes>(`page-store?since=${since}`, { signal: AbortSignal.timeout(LOST_MS) });

/** Asks the server whether it keeps conversations, and for whom. Chooses the database; gives whether the server keeps them. Without a server
 *  it is as it was last time with this key; a key that the server refuses opens nobody's. */
export async function begin(): Promise<boolean> {
  const sent = apiKey.get();
  let kept: Changes;
  try {
    kept = await ask(Number.MAX_SAFE_INTEGER);
  } catch (e) {
    const isRefused = e instanceof ServerError && e.status === 401;
    kept = { kept: !isRefused && apiKey.user() !== "", user: apiKey.user() };
  }
  // Somebody else has logged in meanwhile: what was asked is not theirs.
  if (apiKey.get() !== sent) return begin();
  user = kept.kept ? (kept.user ?? "") : "";
  key = sent;
  apiKey.setUser(user);
  store.use(user);
  clearTimeout(timer);
  due = Infinity;
  if (!user) return false;
  const here = await store.allChats();
  seq = here.length ? Number(localStorage.getItem(SEQ + user) ?? 0) : 0;
  unsent = new Map((JSON.parse(localStorage.getItem(UNSENT + user) ?? "[]") as store.Write[]).map(w => [w.id, w]));
  await pull().catch(() => {});
  // What this browser kept alone until now belongs to the only user of the server.
  if (user === "local" && !localStorage.getItem(COPIED + user)) {
    const own = await store.everythingOfOwn();
    const known = new Set((await store.allChats()).map(c => c.id));
    const chats = own.chats.filter(c => !known.has(c.id));
    const fresh = new Set(chats.map(c => c.id));
    if (chats.length) await store.putAll(chats, own.messages.filter(m => fresh.has(m.chat)));
    localStorage.setItem(COPIED + user, "1");
  }
  next();
  return true;
}

/** Ends the work for this user, before the key becomes another's: sends what is not sent yet, or else keeps it until the user comes back.
 *  The page has to be loaded anew then, since answers that run belong to the user who leaves. Gives whether there was one. */
export async function leave(): Promise<boolean> {
  if (!user) return false;
  clearTimeout(timer);
  due = -Infinity;
  await Promise.race([push().catch(() => {}), new Promise(resolve => window.setTimeout(resolve, REFRESH_MS))]);
  user = "";
  return true;
}

/** When the next turn is. */
let due = Infinity;

/** Plans a turn. An earlier one stays: an answer that runs writes all the time. */
function next() {
  const wait = unsent.size ? WAIT_MS : document.hidden ? QUIET_MS : LOOK_MS;
  if (performance.now() + wait >= due) return;
  due = performance.now() + wait;
  clearTimeout(timer);
  timer = window.setTimeout(() => void turn(), wait);
}

async function turn() {
  if (!user || !still(user)) return;
  due = Infinity;
  try {
    await push();
    await pull();
  } catch {
    // Later again: nothing is lost.
  }
  next();
}

/** Takes what is new, before something old is taken for new; waits only a moment for that. */
export async function refresh() {
  if (user) await Promise.race([pull().catch(() => {}), new Promise(resolve => window.setTimeout(resolve, REFRESH_MS))]);
}

/** Sends what was written here. */
async function push(): Promise<void> {
  sending ??= send().finally(() => (sending = null));
  return sending;
}

async function send() {
  const whose = user;
  while (unsent.size) {
    const batch = [...unsent.values()].slice(0, 200);
    const items: Item[] = [];
    let chars = 0;
    for (const item of await store.current(batch)) {
      const size = JSON.stringify(item).length;
      if (items.length && chars + size > CHARS_MAX) break;
      chars += size;
      items.push(item);
    }
    if (!still(whose)) return;
    underWay = new Map(items.map(({ kind, id, chat }) => [id, { kind, id, chat }]));
    for (const id of underWay.keys()) unsent.delete(id);
    try {
      await call("page-store", { method: "POST", body: JSON.stringify({ user: whose, items }), signal: AbortSignal.timeout(LOST_MS) });
    } catch (e) {
      unsent = new Map([...underWay, ...unsent]);
      throw e;
    } finally {
      underWay = new Map();
      if (user === whose) keepUnsent();
    }
  }
}

/** Takes what is new on the server. */
async function pull() {
  const whose = user;
  for (;;) {
    const changes = await ask(seq);
    if (!changes.kept || changes.user !== whose || !still(whose)) return;
    const items = (changes.items ?? []).filter(item => !unsent.has(item.id) && !underWay.has(item.id) && !isBusy(item.id));
    if (items.length) {
      const here = new Map((await store.current(items)).map(item => [item.id, JSON.stringify(item.value)]));
      const fresh = items.filter(item => here.get(item.id) !== JSON.stringify(item.value));
      if (!still(whose)) return;
      await store.takeOver(fresh);
      if (!still(whose)) return;
      if (fresh.length) for (const f of received) f(fresh);
    }
    seq = changes.seq ?? seq;
    localStorage.setItem(SEQ + whose, String(seq));
    if (!changes.more) return;
  }
}

store.written.push(writes => {
  if (!user) return;
  for (const w of writes) unsent.set(w.id, w);
  keepUnsent();
  next();
});

addEventListener("visibilitychange", () => {
  if (user && !document.hidden) void turn();
});

// Another tab has logged somebody else in, for the whole browser.
addEventListener("storage", () => {
  if (user && apiKey.get() !== key) location.reload();
});

// The last writes, if they are short; the others are sent when the page is opened again.
addEventListener("pagehide", () => {
  const whose = user;
  if (!user || !all().length) return;
  void store.current(all()).then(items => {
    if (!still(whose)) return;
    const body = JSON.stringify({ user: whose, items });
    if (body.length < LEAVING_CHARS_MAX) fetch("page-store", { method: "POST", body, headers: headers(), keepalive: true }).catch(() => {});
  });
});
