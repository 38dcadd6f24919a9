// A client of MCP servers over streamable HTTP (modelcontextprotocol.io, 2025-06-18): lists tools and calls them. The official SDK is
// larger than the rest of the page.
import { EventSourceParserStream } from "eventsource-parser/stream";
import type { Result } from "./types.ts";

const VERSION = "2025-06-18";
/** Pages of a list of tools. */
const PAGES_MAX = 20;

export interface McpTool {
  name: string;
  description?: string;
  inputSchema?: unknown;
}

interface Reply {
  id?: number;
  result?: Record<string, unknown>;
  error?: { message?: string };
}

export class McpClient {
  #session: string | null = null;
  #version = VERSION;
  #next = 1;
  #ready: Promise<void> | null = null;

  constructor(readonly url: string, readonly headers: Record<string, string>) {}

  async #send(message: object, signal: AbortSignal): Promise<Response> {
    const response = await fetch(this.url, {
      method: "POST",
      signal,
      credentials: "omit",
      headers: {
        ...this.headers,
        "Content-Type": "application/json",
        Accept: "application/json, text/event-stream",
        ...(this.#session ? { "Mcp-Session-Id": this.#session } : {}),
        ...(this.#ready ? { "MCP-Protocol-Version": this.#version } : {}),
      },
      body: JSON.stringify({ jsonrpc: "2.0", ...message }),
    });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText} ${(await response.text()).slice(0, 300)}`.trim());
    this.#session = response.headers.get("Mcp-Session-Id") ?? this.#session;
    return response;
  }

  async #request(method: string, params: object, signal: AbortSignal): Promise<Record<string, unknown>> {
    const id = this.#next++;
    const response = await this.#send({ id, method, params }, signal);
    const reply = await answerTo(response, id);
    if (reply.error) throw new Error(reply.error.message ?? JSON.stringify(reply.error));
    return reply.result ?? {};
  }

  async #initialize(signal: AbortSignal) {
    const clientInfo = { name: "octet-page", version: "1" };
    const result = await this.#request("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo }, signal);
    if (typeof result.protocolVersion === "string") this.#version = result.protocolVersion;
    await this.#send({ method: "notifications/initialized" }, signal);
  }

  #begin(signal: AbortSignal): Promise<void> {
    this.#ready ??= this.#initialize(signal).catch((e: unknown) => {
      this.#ready = null;
      throw e;
    });
    return this.#ready;
  }

  async tools(signal: AbortSignal): Promise<McpTool[]> {
    await this.#begin(signal);
    const out: McpTool[] = [];
    let cursor: unknown;
    for (let page = 0; page < PAGES_MAX; page++) {
      const result = await this.#request("tools/list", cursor ? { cursor } : {}, signal);
      for (const tool of Array.isArray(result.tools) ? (result.tools as McpTool[]) : []) if (typeof tool?.name === "string") out.push(tool);
      cursor = result.nextCursor;
      if (!cursor) break;
    }
    return out;
  }

  async call(name: string, args: unknown, signal: AbortSignal): Promise<Result> {
    await this.#begin(signal);
    const result = await this.#request("tools/call", { name, arguments: args }, signal);
    const parts = Array.isArray(result.content) ? (result.content as { type?: string; text?: string }[]) : [];
    const text = parts.map(p => (p.type === "text" ? (p.text ?? "") : JSON.stringify(p))).join("\n");
    return { text: text || JSON.stringify(result.structuredContent ?? result), failed: result.isError === true };
  }
}

/** The reply with that id: a body of JSON, or one of the events of a stream. */
async function answerTo(response: Response, id: number): Promise<Reply> {
  if (!/^text\/event-stream/i.test(response.headers.get("Content-Type") ?? "")) return (await response.json()) as Reply;
  const text = new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>;
  const reader = response.body!.pipeThrough(text).pipeThrough(new EventSourceParserStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the MCP server ended its stream without an answer");
    const reply = JSON.parse(value.data) as Reply;
    if (reply.id === id) {
      void reader.cancel();
      return reply;
    }
  }
}
