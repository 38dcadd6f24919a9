// The line above the messages: the model, and the panels.
import { t } from "../i18n.ts";
import * as state from "../state.ts";
import { Icon } from "./icons.tsx";

const PANELS = ["experts", "performance", "api", "settings"] as const;

/** Chooses the model: of the open conversation, or of those to come. */
function choose(id: string) {
  if (state.chat.peek()) {
    state.setOwn({ model: id });
  } else {
    state.setOwn({ model: undefined });
    state.set("model", id);
  }
  void state.loadState();
}

export function Header() {
  const many = state.models.value.length > 1;
  return (
    <header>
      <button type="button" class="bare menu-button" aria-expanded={state.menu.value} aria-controls="side" aria-label={t("conversations")} title={t("conversations")} onClick={() => state.setMenu(!state.menu.value)}><Icon name="menu" /></button>
      <select id="model" class={many ? "" : "only"} aria-label={t("model")} title={t("model")} value={state.model.value?.id ?? ""} onChange={e => choose(e.currentTarget.value)}>
        {state.models.value.map(m => <option key={m.id} value={m.id}>{m.id}</option>)}
      </select>
      <span class="spring" />
      <nav aria-label={t("panels")}>
        {PANELS.map(name => (
          <button type="button" key={name} id={`open-${name}`} class="bare" title={t(`panel.${name}`)} aria-pressed={state.panel.value === name} onClick={() => state.setPanel(state.panel.value === name ? "" : name)}>
            <Icon name={name} />
            <span class="label">{t(`panel.${name}`)}</span>
          </button>
        ))}
      </nav>
    </header>
  );
}
