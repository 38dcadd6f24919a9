// Calls of the server: paths are relative, so that the page works behind a proxy's path too.
import { EventSourceParserStream } from "eventsource-parser/stream";
import { t } from "./i18n.ts";
import { isTooLong } from "./toolong.ts";

const [KEY, USER] = ["octet.key", "octet.store.user"];

/** Where the key is, and who has it. */
const place = () => (sessionStorage.getItem(KEY) === null ? localStorage : sessionStorage);

/** The key: kept for the tab, or for this browser if its user wants that. */
export const apiKey = {
  get: () => place().getItem(KEY) ?? "",
  set(key: string, remember: boolean) {
    for (const storage of [sessionStorage, localStorage]) for (const name of [KEY, USER]) storage.removeItem(name);
    if (key) (remember ? localStorage : sessionStorage).setItem(KEY, key);
  },
  /** The user whose key it is, as the server said last; "" if nobody knows. */
  user: () => place().getItem(USER) ?? "",
  setUser(user: string) {
    if (user) place().setItem(USER, user);
    else place().removeItem(USER);
  },
};

/** An answer that is no success: the message is for the user, the detail is what the server wrote. */
export class ServerError extends Error {
  constructor(message: string, readonly status: number, readonly detail = "") {
    super(message);
  }
}

export function headers(): Record<string, string> {
  const key = apiKey.get();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** What an error's body says. */
function written(body: string): string {
  try {
    const error = JSON.parse(body)?.error;
    return typeof error === "string" ? error : typeof error?.message === "string" ? error.message : "";
  } catch {
    return body.trimStart().startsWith("<") ? t("error.webPage") : body.slice(0, 500);
  }
}

/** What went wrong, for the user; null if the server's words are the best there are. */
export function userWords(status: number, what: string): string | null {
  if (isTooLong(what)) return t("error.tooLong");
  if (/budget/i.test(what) && (status === 429 || status === 402 || status === 400)) return t("error.budget");
  if (status === 401) return t("error.key");
  if (status === 403) return t("error.forbidden");
  if (status === 413) return t("error.tooLarge");
  if (status === 429) return t("error.busy");
  if (status === 503 || status === 529) return t("error.overloaded");
  if (status === 502 || status === 504) return t("error.upstream");
  if (status >= 500) return t("error.server");
  return null;
}

/** An answer that is no success, as an error. */
export function errorOf(status: number, statusText: string, body: string, retryAfter: string | null): ServerError {
  const what = written(body);
  const words = userWords(status, what);
  const again = retryAfter && /^\d+$/.test(retryAfter) ? t("error.retry", { n: retryAfter }) : "";
  const detail = [`${status} ${statusText}`.trim(), what].filter(Boolean).join(": ");
  if (words === null) return new ServerError([what || detail, again].filter(Boolean).join(" "), status, what ? `${status} ${statusText}`.trim() : "");
  return new ServerError([words, again].filter(Boolean).join(" "), status, detail);
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers: { ...headers(), ...init.headers } });
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") throw e;
    throw new ServerError(t("error.connection"), 0);
  }
  if (!response.ok) {
    const body = await response.text().catch(() => "");
    throw errorOf(response.status, response.statusText, body, response.headers.get("Retry-After"));
  }
  return response;
}

export async function json<T>(path: string, init?: RequestInit): Promise<T> {
  return (await (await call(path, init)).json()) as T;
}

/** The data of a stream's events. Throws where the connection breaks. */
export async function* events(response: Response): AsyncGenerator<string> {
  const type = response.headers.get("Content-Type") ?? "";
  if (!/^text\/event-stream/i.test(type) || !response.body) throw new ServerError(t("error.noStream", { type }), 0);
  const text = new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>;
  const stream = response.body.pipeThrough(text).pipeThrough(new EventSourceParserStream());
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value.data;
  }
}

export interface ModelEntry {
  id: string;
  owned_by?: string;
  max_model_len?: number;
  capabilities?: { vision?: boolean; function_calling?: boolean; reasoning?: boolean } | null;
  meta?: { n_params?: number; n_ctx_train?: number; size?: number } | null;
}

export interface Props {
  default_generation_settings?: { n_ctx?: number; params?: Record<string, unknown> | null };
  chat_template?: string;
  modalities?: { vision?: boolean };
  build_info?: string;
  backend?: string | null;
  is_sleeping?: boolean;
  /** What the model's maker begins conversations with. */
  system?: string | null;
}

export interface Ready {
  models: { model: string; loaded: number | null; waiting: number; error?: string }[];
}

export interface Experts {
  experts: number;
  experts_per_token: number;
  is_sleeping: boolean;
  model: string;
  layers: { layer: number; tokens: number; effective_experts: number; counts: number[] }[];
}
