// The body of a request, from the conversation and the settings. The API panel shows the same.
import { t } from "./i18n.ts";
import * as state from "./state.ts";
import { toolDefinitions } from "./tools.ts";
import type { Message } from "./types.ts";

type Body = Record<string, unknown>;

const fence = (text: string) => {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(m => m[0].length));
  return "`".repeat(longest + 1);
};

/** A message with its attachments, as the model reads it; pictures apart. */
export function content(m: Message): string {
  const files = (m.attachments ?? []).filter(a => a.kind !== "image").map(a => {
    const bar = fence(a.text);
    return `${a.name}:\n${bar}\n${a.text}\n${bar}`;
  });
  return [...files, m.text].filter(Boolean).join("\n\n");
}

function withPictures(m: Message): string | Body[] {
  const pictures = (m.attachments ?? []).filter(a => a.kind === "image");
  if (!pictures.length) return content(m);
  const text = content(m);
  return [...pictures.map(a => ({ type: "image_url", image_url: { url: a.text } })), ...(text ? [{ type: "text", text }] : [])];
}

function wire(m: Message): Body {
  if (m.role === "tool") return { role: "tool", tool_call_id: m.callId, content: m.text };
  if (m.role === "user") return { role: "user", content: withPictures(m) };
  const calls = m.calls?.map(c => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
  return { role: "assistant", content: m.text || (calls ? null : ""), ...(calls ? { tool_calls: calls } : {}), ...(m.reasoning && calls ? { reasoning_content: m.reasoning } : {}) };
}

function parsed(text: string, what: string): Body {
  try {
    const value: unknown = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value as Body;
  } catch (e) {
    throw new Error(t("error.json", { what, why: state.said(e) }));
  }
  throw new Error(t("error.jsonObject", { what }));
}

/** The body for an answer to these messages. Throws where a setting is no JSON. */
export function requestBody(before: Message[]): Body {
  const chat = before.at(-1)?.chat ?? "";
  const s = state.effectiveOf(chat);
  // An answer that said nothing, or failed before it did, is no turn.
  const turns = before.filter(m => m.role !== "assistant" || m.text || m.calls?.length).map(wire);
  const messages = s.system.trim() ? [{ role: "system", content: s.system }, ...turns] : turns;
  const model = state.modelOf(s);
  const body: Body = { ...(model ? { model: model.id } : {}), messages, stream: true, stream_options: { include_usage: true } };
  for (const [name, value] of Object.entries(s.sampling)) if (typeof value === "number") body[name] = value;
  if (s.thinking && state.canSwitchThinking.value) body.chat_template_kwargs = { enable_thinking: s.thinking === "on" };
  const tools = toolDefinitions(s);
  if (tools.length) body.tools = tools;
  if (s.schemaOn && s.schema.trim()) {
    const schema = parsed(s.schema, t("settings.schema"));
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  if (state.isLocal.value) Object.assign(body, { return_progress: true, timings_per_token: true });
  if (s.extra.trim()) Object.assign(body, parsed(s.extra, t("settings.extra")));
  return body;
}

/** The body that goes on with an answer. */
export function continuation(before: Message[], m: Message): Body {
  const body = requestBody(before);
  // Other servers may not know how to go on with a message: they are asked to.
  if (!state.isLocal.value) return { ...body, messages: [...(body.messages as Body[]), { role: "assistant", content: m.text }, { role: "user", content: t("continue.ask") }] };
  const last: Body = { role: "assistant", content: m.text };
  if (m.reasoning) last.reasoning_content = m.reasoning;
  return { ...body, messages: [...(body.messages as Body[]), last], continue_final_message: true, add_generation_prompt: false };
}
