// The user's own tools in the settings: called over HTTP, answered by hand, or offered by an MCP server.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { t } from "../i18n.ts";
import { newId } from "../ids.ts";
import * as state from "../state.ts";
import { connect, idOf, isOn, loadServerTools, serverTools } from "../tools.ts";
import type { Tool } from "../types.ts";
import { Icon } from "./icons.tsx";
import { jsonError } from "./jsonerror.ts";

const SCHEMA = `{
  "type": "object",
  "properties": {"city": {"type": "string"}},
  "required": ["city"]
}`;

const edited = signal<string | null>(null);
const offer = signal<Record<string, string>>({});

function add() {
  const tool: Tool = { id: newId(), kind: "http", enabled: true, auto: false, name: "get_weather", description: "", schema: SCHEMA, url: "", method: "POST", headers: "" };
  state.set("tools", [...state.settings.value.tools, tool]);
  edited.value = tool.id;
}

function Form({ tool, change }: { tool: Tool; change: (part: Partial<Tool>) => void }) {
  const wrong = jsonError(tool.schema);
  const ask = async () => {
    try {
      const names = await connect(tool);
      offer.value = { ...offer.value, [tool.id]: t("tools.offered", { names: names.join(", ") }) };
    } catch (e) {
      const why = e instanceof TypeError ? t("error.toolConnection") : state.said(e);
      offer.value = { ...offer.value, [tool.id]: why };
    }
  };
  return (
    <div class="tool-form">
      <div class="grid">
        <label>
          {t("tools.kind")}
          <select value={tool.kind} onChange={e => change({ kind: e.currentTarget.value as Tool["kind"] })}>
            <option value="http">{t("tools.http")}</option>
            <option value="mcp">{t("tools.mcp")}</option>
            <option value="manual">{t("tools.manual")}</option>
          </select>
        </label>
        <label>
          {t("tools.name")}
          <input value={tool.name} pattern="[A-Za-z0-9_\-]+" maxLength={64} onInput={e => change({ name: e.currentTarget.value })} />
        </label>
      </div>
      {tool.kind !== "mcp" && (
        <>
          <label>
            {t("tools.description")}
            <input value={tool.description} onInput={e => change({ description: e.currentTarget.value })} />
          </label>
          <label>
            {t("tools.schema")}
            <textarea class="code-field" rows={5} spellcheck={false} value={tool.schema} aria-invalid={Boolean(wrong)} onInput={e => change({ schema: e.currentTarget.value })} />
            {wrong && <small class="bad">{wrong}</small>}
          </label>
        </>
      )}
      {tool.kind !== "manual" && (
        <>
          <div class="row">
            {tool.kind === "http" && (
              <label>
                {t("tools.method")}
                <select value={tool.method} onChange={e => change({ method: e.currentTarget.value as Tool["method"] })}>
                  <option>POST</option>
                  <option>GET</option>
                </select>
              </label>
            )}
            <label class="grow">
              {t("tools.url")}
              <input type="url" value={tool.url} placeholder="http://127.0.0.1:9000/weather" onInput={e => change({ url: e.currentTarget.value })} />
            </label>
          </div>
          <label>
            {t("tools.headers")}
            <textarea class="code-field" rows={2} spellcheck={false} value={tool.headers} placeholder="Authorization: Bearer …" onInput={e => change({ headers: e.currentTarget.value })} />
          </label>
          <p class="small dim">{t("tools.connectHint")}</p>
        </>
      )}
      {tool.kind === "mcp" && (
        <div class="row">
          <button type="button" disabled={!tool.url} onClick={() => void ask()}>{t("tools.connect")}</button>
          <span class="small dim grow" role="status">{offer.value[tool.id]}</span>
        </div>
      )}
    </div>
  );
}

/** Of a conversation: which tools are on. */
function Switches() {
  const all = state.effective.value.tools;
  const own = state.own.value.tools;
  const put = (id: string, on: boolean) => state.setOwn({ tools: { ...own, [id]: on } });
  return (
    <ul class="tools">
      {all.map(tool => (
        <li key={tool.id}>
          <label class="check"><input type="checkbox" checked={tool.enabled} onChange={e => put(tool.id, e.currentTarget.checked)} /> {tool.name || tool.url || "?"}</label>
        </li>
      ))}
      {serverTools.value.tools.map(tool => (
        <li key={idOf(tool)}>
          <label class="check" title={tool.description}><input type="checkbox" checked={isOn(tool, state.settings.value, own)} onChange={e => put(idOf(tool), e.currentTarget.checked)} /> {tool.name} <span class="small dim">{tool.server}</span></label>
        </li>
      ))}
      {all.length + serverTools.value.tools.length === 0 && <li class="small dim">{t("tools.none")}</li>}
    </ul>
  );
}

export function ToolSettings({ ofChat }: { ofChat: boolean }) {
  useEffect(() => void loadServerTools(), []);
  return (
    <fieldset>
      <legend>{t("settings.tools")}</legend>
      {ofChat ? <Switches /> : <Definitions />}
    </fieldset>
  );
}

/** The operator's tools: whether they are offered, and run without asking. */
function OfServer() {
  const { servers, tools } = serverTools.value;
  const s = state.settings.value;
  const toggle = (key: "serverToolsOff" | "serverToolsAllowed", id: string, on: boolean) => state.set(key, on ? [...new Set([...s[key], id])] : s[key].filter(x => x !== id));
  if (!servers.length) return null;
  return (
    <>
      <p class="small dim">{t("tools.ofServer")}</p>
      <ul class="tools">
        {servers.filter(x => x.error).map(x => <li key={x.name} class="small bad">{t("error.mcp", { url: x.name, why: x.error ?? "" })}</li>)}
        {tools.map(tool => {
          const id = idOf(tool);
          return (
            <li key={id} class="row">
              <label class="check grow" title={tool.description}><input type="checkbox" checked={!s.serverToolsOff.includes(id)} onChange={e => toggle("serverToolsOff", id, !e.currentTarget.checked)} /> {tool.name} <span class="small dim">{tool.server}</span></label>
              <label class="check small"><input type="checkbox" disabled={tool.allowed} checked={tool.allowed || s.serverToolsAllowed.includes(id)} onChange={e => toggle("serverToolsAllowed", id, e.currentTarget.checked)} /> {t("tools.auto")}</label>
            </li>
          );
        })}
      </ul>
    </>
  );
}

function Definitions() {
  const all = state.settings.value.tools;
  const change = (id: string, part: Partial<Tool>) => state.set("tools", all.map(x => (x.id === id ? { ...x, ...part } : x)));
  return (
    <>
      <OfServer />
      <ul class="tools">
        {all.map(tool => (
          <li key={tool.id}>
            <div class="row">
              <label class="check grow">
                <input type="checkbox" checked={tool.enabled} onChange={e => change(tool.id, { enabled: e.currentTarget.checked })} />
                {tool.name || tool.url || "?"}
              </label>
              {tool.kind !== "manual" && (
                <label class="check small">
                  <input type="checkbox" checked={tool.auto} onChange={e => change(tool.id, { auto: e.currentTarget.checked })} />
                  {t("tools.auto")}
                </label>
              )}
              <button type="button" class="bare" aria-expanded={edited.value === tool.id} onClick={() => (edited.value = edited.value === tool.id ? null : tool.id)}>{t("edit")}</button>
              <button type="button" class="bare" aria-label={t("delete.this", { title: tool.name })} onClick={() => state.set("tools", all.filter(x => x.id !== tool.id))}><Icon name="close" /></button>
            </div>
            {edited.value === tool.id && <Form tool={tool} change={part => change(tool.id, part)} />}
          </li>
        ))}
      </ul>
      <button type="button" id="add-tool" onClick={add}>{t("tools.add")}</button>
    </>
  );
}
