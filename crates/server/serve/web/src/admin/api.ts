// Requests of the operator's page. The key is kept for this tab, and sent as a header alone.
import { t } from "./i18n.ts";

const KEY = "octet.admin.key";

export const masterKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key: string) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** An answer that is no success, as text for the user. */
export class ServerError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

export async function ask<T>(path: string, body?: unknown): Promise<T> {
  const headers = { Authorization: `Bearer ${masterKey.get()}`, "Content-Type": "application/json" };
  const init: RequestInit = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  let response: Response;
  try {
    response = await fetch(path, { ...init, cache: "no-store" });
  } catch {
    throw new ServerError(t("error.connection"), 0);
  }
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  let what = "";
  try {
    what = JSON.parse(text)?.error?.message ?? "";
  } catch {
    what = text.slice(0, 300);
  }
  throw new ServerError([`${response.status} ${response.statusText}`.trim(), what].filter(Boolean).join(": "), response.status);
}

/** What limits a key, a user or a team, and what is spent. */
export interface Limited {
  models: string[];
  spend: number;
  max_budget: number | null;
  budget_duration: string | null;
  budget_reset_at: string | null;
  rpm_limit: number | null;
  tpm_limit: number | null;
  max_parallel_requests: number | null;
  blocked: boolean;
}

export interface VirtualKey extends Limited {
  token: string;
  key_alias: string | null;
  user_id: string | null;
  team_id: string | null;
  expires: string | null;
}

export interface User extends Limited {
  user_id: string;
  user_alias: string | null;
  user_email: string | null;
  teams: string[];
}

export interface Team extends Limited {
  team_id: string;
  team_alias: string | null;
  members_with_roles: { user_id: string; role: string }[];
}

export interface Deployment {
  group: string;
  deployment: string;
  model: string;
  state: "ready" | "trial" | "cooling" | "unhealthy";
  /** It has answered, or passed a health check. */
  has_answered: boolean;
  cooling_s: number;
  in_flight: number;
  requests: number;
  tokens: number;
  first_s: number | null;
  rpm: number | null;
  tpm: number | null;
  max_parallel: number | null;
  /** Of a model in this process: from 0 to 1, where known. */
  loaded: number | null;
}

export interface Status {
  version: string;
  busy: number;
  has_keys: boolean;
  budget: { spend: number; max_budget: number; budget_reset_at: string | null } | null;
  deployments: Deployment[];
  left_out: { group: string; reason: string }[];
}

/** A request for a model: names, times, tokens and costs. */
export interface Request {
  id: string;
  began_ms: number;
  path: string;
  /** null while it runs. */
  status: number | null;
  duration_ms: number;
  ttft_ms: number | null;
  key: string | null;
  user: string | null;
  requested: string | null;
  model: string | null;
  deployment: string | null;
  route: string | null;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  cost_usd: number | null;
  error: string | null;
}

export interface Requests {
  running: Request[];
  ended: Request[];
}

export interface Day {
  startTime: string;
  spend: number;
  requests: number;
  total_input_tokens: number;
  total_output_tokens: number;
  models: Record<string, number>;
  api_keys: Record<string, number>;
  users: Record<string, number>;
  teams: Record<string, number>;
}

/** All pages of a list. */
async function pages<T>(path: string, size: string, of: string): Promise<T[]> {
  const out: T[] = [];
  for (let page = 1; ; page++) {
    const answer = await ask<Record<string, unknown>>(`${path}${path.includes("?") ? "&" : "?"}${size}=100&page=${page}`);
    out.push(...(answer[of] as T[]));
    if (page >= (answer.total_pages as number)) return out;
  }
}

export const listKeys = () => pages<VirtualKey>("key/list?return_full_object=true", "size", "keys");
export const listUsers = () => pages<User>("user/list", "page_size", "users");
export const listTeams = () => pages<Team>("v2/team/list", "page_size", "teams");
