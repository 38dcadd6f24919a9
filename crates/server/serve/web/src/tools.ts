// Tools of the user's own: what the model is told of them, and how they are called. Nothing here starts by itself.
import { t } from "./i18n.ts";
import { McpClient } from "./mcp.ts";
import * as state from "./state.ts";
import type { Result, Settings, Tool, ToolCall } from "./types.ts";

const RESULT_CHARS_MAX = 200_000;
const TIMEOUT_MS = 60_000;

interface Definition {
  type: "function";
  function: { name: string; description?: string; parameters: unknown };
}

/** What MCP servers offer, by the id of the user's entry. */
const offered = new Map<string, Definition[]>();
const clients = new Map<string, McpClient>();

function schema(tool: Tool): unknown {
  try {
    return JSON.parse(tool.schema || "{}");
  } catch (e) {
    throw new Error(t("error.json", { what: `${t("tools.schema")} (${tool.name})`, why: state.said(e) }));
  }
}

/** The tools that are on, as requests name them. */
export function toolDefinitions(s: Settings): Definition[] {
  const own = s.tools.filter(tool => tool.enabled).flatMap(tool => {
    if (tool.kind === "mcp") return offered.get(tool.id) ?? [];
    if (!tool.name) return [];
    return [{ type: "function" as const, function: { name: tool.name, description: tool.description, parameters: schema(tool) } }];
  });
  return own;
}

/** Headers of lines `Name: value`. */
export function headerLines(text: string): Record<string, string> {
  const pairs = text.split("\n").filter(l => l.includes(":")).map(l => [l.slice(0, l.indexOf(":")).trim(), l.slice(l.indexOf(":") + 1).trim()]);
  return Object.fromEntries(pairs) as Record<string, string>;
}

/** The user's entry that a call is for. */
export function toolOf(call: ToolCall): Tool | undefined {
  return state.effective.value.tools.find(tool =>
    tool.enabled && (tool.kind === "mcp" ? offered.get(tool.id)?.some(d => d.function.name === call.name) : tool.name === call.name));
}

/** Asks an MCP server for its tools. Gives their names. */
export async function connect(tool: Tool): Promise<string[]> {
  const client = new McpClient(tool.url, headerLines(tool.headers));
  const tools = await client.tools(AbortSignal.timeout(TIMEOUT_MS));
  clients.set(tool.id, client);
  offered.set(tool.id, tools.map(x => ({ type: "function", function: { name: x.name, description: x.description ?? "", parameters: x.inputSchema ?? { type: "object" } } })));
  return tools.map(x => x.name);
}

export async function connectAll() {
  const wanted = state.effective.peek().tools.filter(tool => tool.kind === "mcp" && tool.enabled && !offered.has(tool.id));
  for (const tool of wanted) {
    try {
      await connect(tool);
    } catch (e) {
      state.note.value = t("error.mcp", { url: tool.url, why: why(e) });
    }
  }
}

/** Of a refused connection browsers say little; the policy of the page is the usual reason. */
function why(e: unknown): string {
  return e instanceof TypeError ? t("error.toolConnection") : state.said(e);
}

async function http(tool: Tool, args: Record<string, unknown>): Promise<Result> {
  const headers = headerLines(tool.headers);
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const url = new URL(tool.url, location.href);
  let init: RequestInit = { method: tool.method, headers, signal, credentials: "omit" };
  if (tool.method === "GET") {
    for (const [name, value] of Object.entries(args)) url.searchParams.set(name, typeof value === "string" ? value : JSON.stringify(value));
  } else {
    init = { ...init, headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(args) };
  }
  const response = await fetch(url, init);
  const text = (await response.text()).slice(0, RESULT_CHARS_MAX);
  return response.ok ? { text, failed: false } : { text: `${response.status} ${response.statusText}\n${text}`.trim(), failed: true };
}

/** Calls a tool. What goes wrong is a result too: the model may do better next time. */
export async function invoke(call: ToolCall): Promise<Result> {
  const tool = toolOf(call);
  if (!tool || tool.kind === "manual") return { text: t("tools.unknown", { name: call.name }), failed: true };
  let args: unknown;
  try {
    args = JSON.parse(call.arguments || "{}");
  } catch (e) {
    return { text: t("error.json", { what: t("tools.arguments"), why: state.said(e) }), failed: true };
  }
  if (!args || typeof args !== "object") return { text: t("error.jsonObject", { what: t("tools.arguments") }), failed: true };
  try {
    if (tool.kind === "http") return await http(tool, args as Record<string, unknown>);
    const client = clients.get(tool.id);
    if (!client) return { text: t("tools.unknown", { name: call.name }), failed: true };
    const result = await client.call(call.name, args, AbortSignal.timeout(TIMEOUT_MS));
    return { ...result, text: result.text.slice(0, RESULT_CHARS_MAX) };
  } catch (e) {
    return { text: why(e), failed: true };
  }
}
