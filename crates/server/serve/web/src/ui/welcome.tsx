// What is shown before the first message: what this model is, and four things to try.
import { total } from "../experts.ts";
import { number, t, type Key } from "../i18n.ts";
import { setPanel, type Panel } from "../nav.ts";
import * as state from "../state.ts";
import { ask } from "./composer.tsx";
import { Mark } from "./icons.tsx";

/** 8 M, 35 B: a number of parameters, for people. */
function parameters(n: number): string {
  const [unit, by] = n >= 1e9 ? (["B", 1e9] as const) : (["M", 1e6] as const);
  return `${number(n / by, n / by < 10 && unit === "B" ? 1 : 0)} ${unit}`;
}

function facts(): string[] {
  const m = state.model.value;
  const out: string[] = [];
  if (!m) return out;
  if (m.meta?.n_params) out.push(t("welcome.parameters", { n: parameters(m.meta.n_params) }));
  const experts = total.value;
  if (state.isLocal.value && experts?.model === m.id && experts.experts) out.push(t("welcome.experts", { n: number(experts.experts), k: number(experts.experts_per_token) }));
  const context = state.context.value;
  if (context) out.push(t("welcome.context", { n: number(context) }));
  return out;
}

interface Example {
  key: "story" | "cache" | "speed" | "format" | "think" | "page";
  panel?: Panel;
}

/** Four examples: what the model can do, and what is seen here alone. */
function examples(): Example[] {
  const sparse = state.isLocal.value && (total.value?.experts ?? 0) > 0;
  const here = state.isLocal.value;
  const thinks = Boolean(here && state.props.value?.chat_template?.includes("enable_thinking"));
  const first: Example = here && (sparse || total.value?.is_sleeping) ? { key: "story", panel: "experts" } : { key: "page" };
  const third: Example = thinks ? { key: "think" } : here && first.key === "page" ? { key: "format" } : { key: "page" };
  return [first, here ? { key: "speed", panel: "performance" } : { key: "format" }, third, here ? { key: "cache" } : { key: "think" }];
}

export function Welcome() {
  const m = state.model.value;
  const all = examples().filter((e, i, every) => every.findIndex(x => x.key === e.key) === i);
  return (
    <div class="empty">
      <h1><Mark /> {m ? t("welcome.title", { model: m.id }) : t(state.knowsModels.value ? "welcome.none" : "welcome.loading")}</h1>
      <p class="dim">{facts().join(" · ") || " "}</p>
      {m && (
        <ul class="examples" aria-label={t("welcome.examples")}>
          {all.map(({ key, panel }) => (
            <li key={key}>
              <button
                type="button"
                onClick={() => {
                  // On a phone it would cover the answer.
                  if (panel && matchMedia("(min-width: 56rem)").matches) setPanel(panel);
                  void ask(t(`example.${key}` as Key));
                }}
              >
                <strong>{t(`example.${key}.title` as Key)}</strong>
                <span class="dim">{t(`example.${key}.why` as Key)}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
