// Calls of the server: paths are relative, so that the page works behind a proxy's path too.
import { EventSourceParserStream } from "eventsource-parser/stream";
import { t } from "./i18n.ts";

const KEY = "octet.key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key: string) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** An answer that is no success, as text for the user. */
export class ServerError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

export function headers(): Record<string, string> {
  const key = apiKey.get();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** What an error's body says. */
export function errorText(status: number, statusText: string, body: string, retryAfter: string | null): string {
  let what = "";
  try {
    const error = JSON.parse(body)?.error;
    what = typeof error === "string" ? error : typeof error?.message === "string" ? error.message : "";
  } catch {
    what = body.trimStart().startsWith("<") ? t("error.webPage") : body.slice(0, 500);
  }
  const out = [`${status} ${statusText}`.trim(), what].filter(Boolean).join(": ");
  const hints = [retryAfter && /^\d+$/.test(retryAfter) ? t("error.retry", { n: retryAfter }) : "", status === 401 ? t("error.key") : ""];
  return [out, ...hints].filter(Boolean).join(" ");
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
    throw new ServerError(errorText(response.status, response.statusText, body, response.headers.get("Retry-After")), response.status);
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
  meta?: { n_params?: number; size?: number } | null;
}

export interface Props {
  default_generation_settings?: { n_ctx?: number; params?: Record<string, unknown> | null };
  chat_template?: string;
  modalities?: { vision?: boolean };
  build_info?: string;
  backend?: string | null;
  is_sleeping?: boolean;
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
