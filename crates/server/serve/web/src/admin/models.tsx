// Models: who answers, how they are, and what runs now.
import { number } from "../language.ts";
import type { Deployment } from "./api.ts";
import { t, time } from "./i18n.ts";
import { status } from "./state.ts";
import { Meter } from "./meter.tsx";

function stateOf(d: Deployment): { text: string; tone: "good" | "dim" | "bad" } {
  if (d.state === "cooling") return { text: t("state.cooling", { s: number(d.cooling_s) }), tone: "bad" };
  if (d.state === "unhealthy") return { text: t("state.unhealthy"), tone: "bad" };
  if (d.state === "trial") return { text: t("state.trial"), tone: "dim" };
  if (d.loaded === null) return d.has_answered ? { text: t("state.ready"), tone: "good" } : { text: t("state.untried"), tone: "dim" };
  if (d.loaded >= 1) return { text: t("state.loaded"), tone: "good" };
  return { text: d.loaded > 0 ? t("state.loading", { n: number(d.loaded * 100) }) : t("state.unloaded"), tone: "dim" };
}

const of = (used: number, limit: number | null) => (limit === null ? number(used) : t("of", { used: number(used), limit: number(limit) }));

export function Models() {
  const s = status.value;
  if (!s) return null;
  const well = s.deployments.filter(d => stateOf(d).tone === "good").length;
  return (
    <>
      <dl class="figures">
        <div><dt>{t("models.busy")}</dt><dd>{number(s.busy)}</dd></div>
        <div><dt>{t("models.healthy")}</dt><dd>{t("of", { used: number(well), limit: number(s.deployments.length) })}</dd></div>
        <div><dt>{t("models.requests")}</dt><dd>{number(s.deployments.reduce((sum, d) => sum + d.requests, 0))}</dd></div>
        <div><dt>{t("models.tokens")}</dt><dd>{number(s.deployments.reduce((sum, d) => sum + d.tokens, 0))}</dd></div>
        {s.budget && (
          <div>
            <dt>{t("models.budget")}</dt>
            <dd><Meter used={s.budget.spend} limit={s.budget.max_budget} label={t("models.budget")} /></dd>
            {s.budget.budget_reset_at && <small>{t("resets", { time: time(s.budget.budget_reset_at) })}</small>}
          </div>
        )}
      </dl>
      <div class="wide" tabIndex={0} role="region" aria-label={t("view.models")}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("models.name")}</th><th scope="col">{t("models.model")}</th><th scope="col">{t("models.state")}</th>
              <th scope="col" class="right">{t("models.running")}</th><th scope="col" class="right">{t("models.requests")}</th>
              <th scope="col" class="right">{t("models.tokens")}</th><th scope="col" class="right">{t("models.first")}</th>
            </tr>
          </thead>
          <tbody>
            {s.deployments.map(d => {
              const { text, tone } = stateOf(d);
              return (
                <tr key={d.deployment}>
                  <th scope="row">{d.group}</th>
                  <td>{d.model}<small class="id">{d.deployment}</small></td>
                  <td><span class={`state ${tone}`}>{text}</span></td>
                  <td class="right">{of(d.in_flight, d.max_parallel)}</td>
                  <td class="right">{of(d.requests, d.rpm)}</td>
                  <td class="right">{of(d.tokens, d.tpm)}</td>
                  <td class="right">{d.first_s === null ? "–" : `${number(d.first_s, 2)} s`}</td>
                </tr>
              );
            })}
            {s.left_out.map(l => (
              <tr key={`left ${l.group}`}>
                <th scope="row">{l.group}</th>
                <td colSpan={6}><span class="state bad">{t("state.leftOut")}</span> {l.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <small>{t("models.hint", { version: s.version })}</small>
    </>
  );
}
