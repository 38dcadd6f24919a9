// What the operator's page shows, and when it is asked for again.
import { effect, signal } from "@preact/signals";
import { chosen, type Language } from "../language.ts";
import { ask, listKeys, listTeams, listUsers, masterKey, ServerError, type Day, type Requests, type Status, type Team, type User, type VirtualKey } from "./api.ts";

export const VIEWS = ["models", "requests", "keys", "users", "teams", "spend"] as const;
export type View = (typeof VIEWS)[number];

const LANGUAGE = "octet.admin.language";
/** How often the models and the requests are looked at. */
const EVERY_MS = 3000;

export const view = signal<View>("models");
export const isIn = signal(false);
export const error = signal("");
/** What a screen reader is told. */
export const said = signal("");
export const status = signal<Status | null>(null);
export const requests = signal<Requests>({ running: [], ended: [] });
export const keys = signal<VirtualKey[]>([]);
export const users = signal<User[]>([]);
export const teams = signal<Team[]>([]);
export const days = signal<Day[]>([]);
export const range = signal(30);

/** Runs it, and shows what goes wrong. */
export async function attempt(work: () => Promise<void>): Promise<boolean> {
  try {
    await work();
    error.value = "";
    return true;
  } catch (e) {
    if (e instanceof ServerError && e.status === 401) logOut();
    error.value = e instanceof Error ? e.message : String(e);
    return false;
  }
}

async function readStatus() {
  status.value = await ask<Status>("admin/status");
  if (view.value === "requests") requests.value = await ask<Requests>("admin/requests");
}

/** Tries a key, and keeps it for this tab if it is the server's own. */
export async function logIn(key: string): Promise<void> {
  masterKey.set(key);
  isIn.value = await attempt(async () => {
    await readStatus();
    await load();
  });
  if (!isIn.value) masterKey.set("");
}

export function logOut() {
  masterKey.set("");
  isIn.value = false;
  loads++;
  for (const list of [keys, users, teams, days]) list.value = [];
  status.value = null;
  requests.value = { running: [], ended: [] };
  error.value = "";
}

let loads = 0;

/** Reads what the view shows. What was read before a change must not be shown after it: of two at a time, the later counts. */
export async function load(): Promise<void> {
  if (!status.value?.has_keys) return;
  const mine = ++loads;
  const lists = await Promise.all([listKeys(), listUsers(), listTeams()]);
  if (mine !== loads) return;
  [keys.value, users.value, teams.value] = lists;
  if (view.value === "spend") {
    const from = new Date(Date.now() - (range.value - 1) * 86_400_000).toISOString().slice(0, 10);
    const read = await ask<Day[]>(`spend/logs?start_date=${from}`);
    if (mine === loads) days.value = read;
  }
}

/** Changes something at the server, and reads the lists again. */
export function change(path: string, body: unknown): Promise<boolean> {
  return attempt(async () => {
    await ask(path, body);
    await load();
  });
}

function go() {
  const named = location.hash.slice(1);
  view.value = VIEWS.find(v => v === named) ?? "models";
  error.value = "";
}

export function start() {
  const language = localStorage.getItem(LANGUAGE);
  if (language === "en" || language === "de") chosen.value = language;
  effect(() => localStorage.setItem(LANGUAGE, chosen.value satisfies "" | Language));
  go();
  addEventListener("hashchange", () => {
    go();
    if (isIn.value) void attempt(view.value === "requests" ? readStatus : load);
  });
  if (masterKey.get()) void logIn(masterKey.get());
  setInterval(() => {
    if (isIn.value && (view.value === "models" || view.value === "requests") && !document.hidden) void attempt(readStatus);
  }, EVERY_MS);
}
