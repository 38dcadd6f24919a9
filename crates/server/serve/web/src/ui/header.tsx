// The line above the messages: model, reasoning, panels.
import { t } from "../i18n.ts";
import * as state from "../state.ts";
import { Icon } from "./icons.tsx";
import type { Settings } from "../types.ts";

const PANELS = ["experts", "performance", "api", "settings"] as const;

export function Header() {
  const s = state.settings.value;
  const canThink = state.canSwitchThinking.value;
  return (
    <header>
      <button type="button" class="bare menu-button" aria-expanded={state.menu.value} aria-controls="side" aria-label={t("conversations")} onClick={() => (state.menu.value = !state.menu.value)}><Icon name="menu" /></button>
      <label>
        <span class="wide-only">{t("model")}</span>
        <select
          id="model"
          aria-label={t("model")}
          value={state.model.value?.id ?? ""}
          onChange={e => {
            state.set("model", e.currentTarget.value);
            void state.loadState();
          }}
        >
          {state.models.value.map(m => <option key={m.id} value={m.id}>{m.id}</option>)}
        </select>
      </label>
      <label title={canThink ? undefined : t("thinking.none")}>
        <span class="wide-only">{t("thinking")}</span>
        <select id="thinking" aria-label={t("thinking")} disabled={!canThink} value={s.thinking} onChange={e => state.set("thinking", e.currentTarget.value as Settings["thinking"])}>
          <option value="">{t("thinking.default")}</option>
          <option value="on">{t("thinking.on")}</option>
          <option value="off">{t("thinking.off")}</option>
        </select>
      </label>
      <span class="spring" />
      <nav aria-label={t("panels")}>
        {PANELS.map(name => (
          <button type="button" key={name} id={`open-${name}`} class="bare" aria-pressed={state.panel.value === name} onClick={() => (state.panel.value = state.panel.value === name ? "" : name)}>
            <Icon name={name} />
            <span class="label">{t(`panel.${name}`)}</span>
          </button>
        ))}
      </nav>
    </header>
  );
}
