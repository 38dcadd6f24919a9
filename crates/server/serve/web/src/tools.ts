// Tools, the user's own and the operator's: what the model is told of them, and how they are called.
import { signal } from "@preact/signals";
import { json } from "./api.ts";
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

/** A tool of the operator's MCP servers, which this server runs. */
export interface ServerTool {
  name: string;
  server: string;
  description: string;
  parameters: unknown;
  /** The operator lets it run without asking. */
  allowed: boolean;
}

export interface ServerTools {
  servers: { name: string; tools: number; error?: string }[];
  tools: ServerTool[];
}

/** The operator's tools, as they were read last. */
export const serverTools = signal<ServerTools>({ servers: [], tools: [] });
let reading: Promise<void> | null = null;

/** Reads the operator's tools. The first time takes as long as their servers take to start. */
export function loadServerTools(): Promise<void> {
  reading ??= json<ServerTools>("mcp/tools").then(
    all => {
      serverTools.value = all;
      // A server that failed is tried once more with the next message.
      if (all.servers.some(s => s.error)) reading = null;
    },
    () => {
      reading = null;
    },
  );
  return reading;
}

export const idOf = (tool: ServerTool) => `${tool.server}/${tool.name}`;
export const isOn = (tool: ServerTool, s: Settings, own: Record<string, boolean> | undefined) => own?.[idOf(tool)] ?? !s.serverToolsOff.includes(idOf(tool));
export const serverTool = (call: ToolCall) => serverTools.value.tools.find(tool => tool.name === call.name);

/** Whether a call runs without a question. */
export function runsAlone(call: ToolCall): boolean {
  const own = toolOf(call);
  if (own) return own.kind !== "manual" && own.auto;
  const tool = serverTool(call);
  return Boolean(tool && (tool.allowed || state.settings.value.serverToolsAllowed.includes(idOf(tool))));
}

/** From now on a tool runs without a question. */
export function allow(call: ToolCall) {
  const own = toolOf(call);
  if (own) state.set("tools", state.settings.value.tools.map(tool => (tool.id === own.id ? { ...tool, auto: true } : tool)));
  const tool = serverTool(call);
  if (!own && tool) state.set("serverToolsAllowed", [...new Set([...state.settings.value.serverToolsAllowed, idOf(tool)])]);
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
  // A model that knows no tools would refuse the request.
  if (state.modelOf(s)?.capabilities?.function_calling === false) return own;
  const taken = new Set(own.map(d => d.function.name));
  const ofServer = serverTools.value.tools.filter(tool => isOn(tool, s, state.own.value.tools) && !taken.has(tool.name));
  return [...own, ...ofServer.map(({ name, description, parameters }) => ({ type: "function" as const, function: { name, description, parameters } }))];
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
  await loadServerTools();
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
  const ofServer = tool ? undefined : serverTool(call);
  if (!ofServer && (!tool || tool.kind === "manual")) return { text: t("tools.unknown", { name: call.name }), failed: true };
  let args: unknown;
  try {
    args = JSON.parse(call.arguments || "{}");
  } catch (e) {
    return { text: t("error.json", { what: t("tools.arguments"), why: state.said(e) }), failed: true };
  }
  if (!args || typeof args !== "object") return { text: t("error.jsonObject", { what: t("tools.arguments") }), failed: true };
  try {
    if (ofServer || !tool) return await json<Result>("mcp/call", { method: "POST", body: JSON.stringify({ name: call.name, arguments: args }) });
    if (tool.kind === "http") return await http(tool, args as Record<string, unknown>);
    const client = clients.get(tool.id);
    if (!client) return { text: t("tools.unknown", { name: call.name }), failed: true };
    const result = await client.call(call.name, args, AbortSignal.timeout(TIMEOUT_MS));
    return { ...result, text: result.text.slice(0, RESULT_CHARS_MAX) };
  } catch (e) {
    return { text: why(e), failed: true };
  }
}
