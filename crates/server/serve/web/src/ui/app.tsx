// The page: conversations to the left, messages in the middle, a panel to the right.
import { useEffect } from "preact/hooks";
import { isRunning, stopAll } from "../answer.ts";
import { language, t } from "../i18n.ts";
import { watch } from "../metrics.ts";
import * as state from "../state.ts";
import { loadServerTools } from "../tools.ts";
import { Composer, focusComposer } from "./composer.tsx";
import { Confirm } from "./confirm.tsx";
import { Experts } from "./experts.tsx";
import { Header } from "./header.tsx";
import { Icon } from "./icons.tsx";
import { Login } from "./login.tsx";
import { Messages } from "./messages.tsx";
import { Performance } from "./performance.tsx";
import { Playground } from "./playground.tsx";
import { focusSearch, Sidebar } from "./sidebar.tsx";
import { SettingsPanel } from "./settings.tsx";

const PANELS = { settings: SettingsPanel, experts: Experts, performance: Performance, api: Playground } as const;

function onKey(e: KeyboardEvent) {
  const ctrl = e.ctrlKey || e.metaKey;
  if (e.key === "Escape") {
    if (document.querySelector("dialog[open]") || e.defaultPrevented) return;
    if (isRunning()) stopAll();
    else if (state.panel.value) closePanel();
    else if (state.menu.value) state.setMenu(false);
  } else if (ctrl && e.key.toLowerCase() === "k") {
    e.preventDefault();
    focusSearch();
  } else if (ctrl && e.shiftKey && e.key.toLowerCase() === "o") {
    e.preventDefault();
    void state.open(null).then(focusComposer);
  } else if (ctrl && e.key === ",") {
    e.preventDefault();
    if (state.panel.value === "settings") {
      closePanel();
      return;
    }
    state.setPanel("settings");
    requestAnimationFrame(() => document.querySelector<HTMLElement>("aside [role=tab][aria-selected=true]")?.focus());
  }
}

function closePanel() {
  const name = state.panel.peek();
  state.setPanel("");
  document.getElementById(`open-${name}`)?.focus();
}

export function App() {
  const name = state.panel.value;
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  useEffect(() => {
    document.documentElement.lang = language.value;
  }, [language.value]);
  useEffect(() => {
    document.title = state.chat.value?.title ? `${state.chat.value.title} · Octet` : "Octet";
  }, [state.chat.value?.title]);
  const model = state.isLocal.value ? (state.model.value?.id ?? "") : "";
  useEffect(() => watch(model, name === "performance"), [model, name]);
  // Calls that wait for their user can run once it is known who runs them.
  const known = !state.locked.value && state.models.value.length > 0;
  useEffect(() => {
    if (known) void loadServerTools();
  }, [known]);
  if (state.locked.value) return <Login />;
  const Panel = name ? PANELS[name] : null;
  return (
    <div class={`page${name ? " with-panel" : ""}${state.menu.value ? " with-menu" : ""}`}>
      <a class="hidden skip" href="#prompt" onClick={e => { e.preventDefault(); focusComposer(); }}>{t("skip")}</a>
      <Sidebar />
      {state.menu.value && <div class="shade" onClick={() => state.setMenu(false)} />}
      <main>
        <Header />
        <Messages />
        <Composer />
      </main>
      {Panel && name && (
        <aside aria-labelledby="panel-title">
          <div class="panel-head">
            <h2 id="panel-title">{t(`panel.${name}`)}</h2>
            <button type="button" class="bare" onClick={closePanel} aria-label={t("close")} title={t("close")}><Icon name="close" /></button>
          </div>
          <Panel />
        </aside>
      )}
      <Confirm />
      <p class="hidden" role="status">{state.announced.value}</p>
    </div>
  );
}
