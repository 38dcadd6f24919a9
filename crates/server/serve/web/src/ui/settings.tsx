// The panel of settings: of the open conversation, the defaults of new ones, and those of the page. What changes here holds from the next
// answer on.
import { signal } from "@preact/signals";
import { apiKey, call, json } from "../api.ts";
import { LANGUAGES, number, t } from "../i18n.ts";
import * as state from "../state.ts";
import { PARAMETERS, type Parameter, type Settings } from "../types.ts";
import { jsonError } from "./jsonerror.ts";
import { ToolSettings } from "./toolsettings.tsx";

const LIMITS: Record<Parameter, { min?: number; max?: number; step: number | "any" }> = {
  temperature: { min: 0, max: 2, step: 0.05 },
  top_p: { min: 0, max: 1, step: 0.01 },
  top_k: { min: 0, step: 1 },
  min_p: { min: 0, max: 1, step: 0.01 },
  presence_penalty: { min: -2, max: 2, step: 0.1 },
  frequency_penalty: { min: -2, max: 2, step: 0.1 },
  repeat_penalty: { min: 0, max: 10, step: 0.05 },
  seed: { step: 1 },
  max_tokens: { min: 1, step: 1 },
};

/** Whose settings are shown. */
const scope = signal<"chat" | "defaults" | "page">("chat");

type Shared = "system" | "sampling" | "schemaOn" | "schema" | "extra";
const shownSettings = () => (scope.value === "chat" ? state.effective.value : state.settings.value);

/** Changes a setting of what is shown. */
function change<K extends Shared>(key: K, value: Settings[K]) {
  if (scope.peek() === "chat") state.setOwn({ [key]: value } as { [P in K]: Settings[P] });
  else state.set(key, value);
}

/** Takes the defaults again, where the conversation has something of its own. */
function Reset({ keys }: { keys: Shared[] }) {
  const own = state.own.value;
  if (scope.value !== "chat" || !keys.some(key => own[key] !== undefined)) return null;
  return <button type="button" class="bare" onClick={() => state.setOwn(Object.fromEntries(keys.map(key => [key, undefined])))}>{t("settings.takeDefaults")}</button>;
}

/** What the server uses where a field is empty. */
function defaultOf(name: Parameter): string {
  const value = state.props.value?.default_generation_settings?.params?.[name];
  if (name === "seed") return t("settings.random");
  if (name === "max_tokens") return state.context.value ? t("settings.untilContext", { n: number(state.context.value) }) : "";
  return typeof value === "number" ? String(Math.round(value * 1e4) / 1e4) : "";
}

function Sampling() {
  const { sampling } = shownSettings();
  const put = (name: Parameter, text: string, valid: boolean) => {
    const next = { ...sampling };
    if (text === "") delete next[name];
    else if (valid) next[name] = Number(text);
    change("sampling", next);
  };
  return (
    <fieldset>
      <legend>{t("settings.sampling")}</legend>
      <div class="grid">
        {PARAMETERS.map(name => (
          <label key={name}>
            <code>{name}</code>
            <input
              type="number"
              name={name}
              {...LIMITS[name]}
              value={sampling[name] ?? ""}
              placeholder={defaultOf(name)}
              onChange={e => put(name, e.currentTarget.value, e.currentTarget.reportValidity())}
            />
          </label>
        ))}
      </div>
      <div class="row">
        <small class="grow">{t(state.isLocal.value && state.props.value?.is_sleeping ? "settings.samplingAsleep" : "settings.samplingHint")}</small>
        <Reset keys={["sampling"]} />
        <button type="button" class="bare" disabled={!Object.keys(sampling).length} onClick={() => change("sampling", {})}>{t("settings.reset")}</button>
      </div>
    </fieldset>
  );
}

const presetName = signal("");

function System() {
  const s = shownSettings();
  const known = s.presets.find(p => p.text === s.system)?.name ?? "";
  const save = () => {
    const name = presetName.value.trim();
    if (!name) return;
    state.set("presets", [...s.presets.filter(p => p.name !== name), { name, text: s.system }]);
    presetName.value = "";
  };
  return (
    <fieldset>
      <legend>{t("settings.system")}</legend>
      {s.presets.length > 0 && (
        <div class="row">
          <label class="grow">
            {t("settings.preset")}
            <select value={known} onChange={e => change("system", s.presets.find(p => p.name === e.currentTarget.value)?.text ?? "")}>
              <option value="">{t("settings.noPreset")}</option>
              {s.presets.map(p => <option key={p.name} value={p.name}>{p.name}</option>)}
            </select>
          </label>
          <button type="button" class="bare" disabled={!known} onClick={() => state.set("presets", s.presets.filter(p => p.name !== known))}>{t("delete")}</button>
        </div>
      )}
      <label>
        <span class="hidden">{t("settings.system")}</span>
        <textarea id="system" rows={4} value={s.system} placeholder={state.props.value?.system ?? ""} onInput={e => change("system", e.currentTarget.value)} />
      </label>
      <div class="row">
        <label class="grow">
          {t("settings.presetName")}
          <input value={presetName.value} onInput={e => (presetName.value = e.currentTarget.value)} />
        </label>
        <button type="button" disabled={!presetName.value.trim() || !s.system.trim()} onClick={save}>{t("settings.presetSave")}</button>
        <Reset keys={["system"]} />
      </div>
    </fieldset>
  );
}

function Schema() {
  const s = shownSettings();
  const wrong = jsonError(s.schema);
  const wrongExtra = jsonError(s.extra);
  return (
    <fieldset>
      <legend>{t("settings.output")}</legend>
      <label class="check">
        <input type="checkbox" id="schema-on" checked={s.schemaOn} onChange={e => change("schemaOn", e.currentTarget.checked)} />
        {t("settings.schemaOn")}
      </label>
      {s.schemaOn && (
        <label>
          {t("settings.schema")}
          <textarea id="schema" class="code-field" rows={6} spellcheck={false} value={s.schema} placeholder={'{"type": "object", "properties": {"name": {"type": "string"}}}'} aria-invalid={Boolean(wrong)} onInput={e => change("schema", e.currentTarget.value)} />
          {wrong && <small class="bad">{wrong}</small>}
        </label>
      )}
      <label>
        {t("settings.extra")}
        <textarea id="extra" class="code-field" rows={2} spellcheck={false} value={s.extra} placeholder={'{"logit_bias": {}}'} aria-invalid={Boolean(wrongExtra)} onInput={e => change("extra", e.currentTarget.value)} />
        {wrongExtra && <small class="bad">{wrongExtra}</small>}
      </label>
      <Reset keys={["schemaOn", "schema", "extra"]} />
    </fieldset>
  );
}

const switching = signal("");

async function load(model: string, on: boolean) {
  switching.value = model;
  state.note.value = "";
  try {
    // Ollama's way: no prompt loads a model, and to keep it for no time unloads it.
    await call("api/generate", { method: "POST", body: JSON.stringify({ model, stream: false, ...(on ? {} : { keep_alive: 0 }) }) });
    // It is given back when nobody uses it any more, which takes a moment.
    for (let i = 0; i < 50; i++) {
      const { models } = await json<{ models: { model: string; loaded: number | null }[] }>("ready");
      if ((models.find(m => m.model === model)?.loaded === 1) === on) break;
      await new Promise(resolve => window.setTimeout(resolve, 100));
    }
  } catch (e) {
    state.note.value = state.said(e);
  }
  switching.value = "";
  await state.loadState();
}

function Models() {
  const all = state.ready.value;
  if (!all.length) return null;
  return (
    <fieldset>
      <legend>{t("settings.models")}</legend>
      <ul class="models">
        {all.map(m => {
          const loaded = m.loaded === 1;
          const entry = state.models.value.find(x => x.id === m.model);
          const size = entry?.meta?.size ? `${number(entry.meta.size / 2 ** 20)} MiB` : "";
          return (
            <li key={m.model}>
              <span class="grow">{m.model} <span class="dim small">{[size, entry?.max_model_len ? t("settings.context", { n: number(entry.max_model_len) }) : ""].filter(Boolean).join(", ")}</span></span>
              <span class="small dim">{m.error ?? (loaded ? t("model.loaded") : m.loaded ? t("model.loading", { n: number(m.loaded * 100) }) : t("model.unloaded"))}</span>
              <button type="button" disabled={switching.value !== ""} onClick={() => void load(m.model, !loaded)}>{switching.value === m.model ? "…" : loaded ? t("model.unload") : t("model.load")}</button>
            </li>
          );
        })}
      </ul>
    </fieldset>
  );
}

const SCOPES = ["chat", "defaults", "page"] as const;

export function SettingsPanel() {
  return (
    <div class="panel-body">
      <div class="tabs" role="tablist" aria-label={t("settings.scope")}>
        {SCOPES.map((name, i) => (
          <button
            type="button"
            key={name}
            id={`scope-${name}`}
            role="tab"
            aria-selected={scope.value === name}
            aria-controls="scope"
            tabIndex={scope.value === name ? 0 : -1}
            onClick={() => (scope.value = name)}
            onKeyDown={e => {
              const by = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
              if (!by) return;
              scope.value = SCOPES[(i + by + SCOPES.length) % SCOPES.length]!;
              requestAnimationFrame(() => document.getElementById(`scope-${scope.peek()}`)?.focus());
            }}
          >
            {t(`settings.scope.${name}`)}
          </button>
        ))}
      </div>
      <div id="scope" role="tabpanel" aria-labelledby={`scope-${scope.value}`}>
        {scope.value === "page" ? (
          <Page />
        ) : (
          <>
            <p class="small dim">{t(scope.value === "chat" ? "settings.chatHint" : "settings.defaultsHint")}</p>
            <System />
            <Sampling />
            <ToolSettings ofChat={scope.value === "chat"} />
            <Schema />
          </>
        )}
      </div>
    </div>
  );
}

function Page() {
  const s = state.settings.value;
  return (
    <>
      <Models />
      <fieldset>
        <legend>{t("settings.page")}</legend>
        <div class="grid pair">
          <label>
            {t("settings.theme")}
            <select id="theme" value={s.theme} onChange={e => state.set("theme", e.currentTarget.value as Settings["theme"])}>
              <option value="">{t("settings.system.theme")}</option>
              <option value="light">{t("settings.light")}</option>
              <option value="dark">{t("settings.dark")}</option>
            </select>
          </label>
          <label>
            {t("settings.language")}
            <select id="language" value={s.language} onChange={e => state.set("language", e.currentTarget.value as Settings["language"])}>
              <option value="">{t("settings.browser")}</option>
              {Object.entries(LANGUAGES).map(([code, name]) => <option key={code} value={code} lang={code}>{name}</option>)}
            </select>
          </label>
        </div>
        {apiKey.get() && (
          <div class="row">
            <span class="grow small">{t("settings.keyHint")}</span>
            <button type="button" id="log-out" onClick={() => void state.setKey("", false)}>{t("logout")}</button>
          </div>
        )}
      </fieldset>
      <fieldset>
        <legend>{t("settings.keys")}</legend>
        <dl class="keys">
          {(["send", "newline", "stop", "edit", "search", "new", "settings"] as const).map(name => (
            <div key={name}>
              <dt><kbd>{KEYS[name]}</kbd></dt>
              <dd>{t(`keys.${name}`)}</dd>
            </div>
          ))}
        </dl>
      </fieldset>
      <p class="small dim">{state.props.value?.build_info} · {state.props.value?.backend} · <a href="openapi.json">openapi.json</a> · <a href="page/licences.txt">{t("licences")}</a></p>
    </>
  );
}

const KEYS = { send: "Enter", newline: "Shift+Enter", stop: "Esc", edit: "↑", search: "Ctrl+K", new: "Ctrl+Shift+O", settings: "Ctrl+," };
