// The requests that run now, and the last ones that have ended.
import { language, number } from "../language.ts";
import type { Request } from "./api.ts";
import { dollars, t } from "./i18n.ts";
import { requests } from "./state.ts";

const clock = (ms: number) => new Date(ms).toLocaleTimeString(language.value);
const seconds = (ms: number | null) => (ms === null ? "–" : `${number(ms / 1000, 2)} s`);

function stateOf(r: Request): { text: string; tone: "good" | "dim" | "bad" } {
  if (r.status === null) return { text: t("requests.runs"), tone: "dim" };
  if (r.status === 499) return { text: t("requests.left"), tone: "dim" };
  return { text: String(r.status), tone: r.status < 400 && !r.error ? "good" : "bad" };
}

function Row({ r }: { r: Request }) {
  const { text, tone } = stateOf(r);
  return (
    <tr>
      <th scope="row">{clock(r.began_ms)}<small class="id">{r.id}</small></th>
      <td>{r.key ?? "–"}{r.user && <small class="id">{r.user}</small>}</td>
      <td>{r.requested ?? "–"}</td>
      <td>{r.model ?? "–"}{r.deployment && <small class="id">{r.deployment}</small>}</td>
      <td><span class={`state ${tone}`}>{text}</span>{r.error && <small class="id">{r.error}</small>}</td>
      <td class="right">{seconds(r.ttft_ms)}</td>
      <td class="right">{seconds(r.duration_ms)}</td>
      <td class="right">{number(r.prompt_tokens)}{r.cached_tokens > 0 && <small class="id">{t("requests.cached", { n: number(r.cached_tokens) })}</small>}</td>
      <td class="right">{number(r.completion_tokens)}</td>
      <td class="right">{r.cost_usd === null ? "–" : dollars(r.cost_usd)}</td>
    </tr>
  );
}

export function Requests() {
  const { running, ended } = requests.value;
  return (
    <>
      <dl class="figures"><div><dt>{t("models.busy")}</dt><dd>{number(running.length)}</dd></div></dl>
      <div class="wide" tabIndex={0} role="region" aria-label={t("view.requests")}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("requests.time")}</th><th scope="col">{t("requests.key")}</th><th scope="col">{t("models.name")}</th>
              <th scope="col">{t("requests.answeredBy")}</th><th scope="col">{t("state")}</th><th scope="col" class="right">{t("models.first")}</th>
              <th scope="col" class="right">{t("requests.duration")}</th><th scope="col" class="right">{t("spend.input")}</th>
              <th scope="col" class="right">{t("spend.output")}</th><th scope="col" class="right">{t("spend.cost")}</th>
            </tr>
          </thead>
          <tbody>
            {[...running, ...ended].map(r => <Row key={`${r.id} ${r.status}`} r={r} />)}
            {!running.length && !ended.length && <tr><td colSpan={10}>{t("requests.none")}</td></tr>}
          </tbody>
        </table>
      </div>
      <small>{t("requests.hint")}</small>
    </>
  );
}
