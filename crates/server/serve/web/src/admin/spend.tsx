// What was spent on each day, by model, key, user or team.
import { signal } from "@preact/signals";
import { language, number } from "../language.ts";
import type { Day } from "./api.ts";
import { nameOfKey, nameOfTeam, nameOfUser } from "./entities.tsx";
import { dollars, t } from "./i18n.ts";
import { attempt, days, load, range } from "./state.ts";

const BY = { models: (id: string) => id, api_keys: nameOfKey, users: nameOfUser, teams: nameOfTeam } as const;
type By = keyof typeof BY;
const by = signal<By>("models");
const RANGES = [7, 30, 90, 365];
const HEIGHT = 160;

const dayName = (day: string) => new Date(`${day}T00:00:00Z`).toLocaleDateString(language.value, { timeZone: "UTC", month: "short", day: "numeric" });

/** All days of the range, also those without requests. */
function whole(): { day: string; data?: Day }[] {
  const known = new Map(days.value.map(d => [d.startTime.slice(0, 10), d]));
  return Array.from({ length: range.value }, (_, i) => {
    const day = new Date(Date.now() - (range.value - 1 - i) * 86_400_000).toISOString().slice(0, 10);
    const data = known.get(day);
    return data ? { day, data } : { day };
  });
}

function Chart() {
  const all = whole();
  const most = Math.max(...all.map(d => d.data?.spend ?? 0), 1e-9);
  const sum = all.reduce((s, d) => s + (d.data?.spend ?? 0), 0);
  const first = all[0]!.day, last = all.at(-1)!.day;
  return (
    <figure>
      <svg class="bars" viewBox={`0 0 ${all.length * 10} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={t("spend.chart", { from: dayName(first), to: dayName(last), sum: dollars(sum), most: dollars(most) })}>
        {all.map(({ day, data }, i) => {
          const height = ((data?.spend ?? 0) / most) * (HEIGHT - 4);
          return (
            <rect key={day} x={i * 10 + 1} width={8} y={HEIGHT - height} height={height}>
              <title>{`${dayName(day)}: ${dollars(data?.spend ?? 0)}`}</title>
            </rect>
          );
        })}
      </svg>
      <figcaption><span>{dayName(first)}</span><span>{t("spend.most", { most: dollars(sum ? most : 0) })}</span><span>{dayName(last)}</span></figcaption>
    </figure>
  );
}

export function Spend() {
  const all = days.value;
  const total = (of: (d: Day) => number) => all.reduce((sum, d) => sum + of(d), 0);
  const costs = new Map<string, number>();
  for (const day of all) for (const [id, cost] of Object.entries(day[by.value])) costs.set(id, (costs.get(id) ?? 0) + cost);
  const rows = [...costs].sort((a, b) => b[1] - a[1]);
  const sum = total(d => d.spend);
  return (
    <>
      <div class="row">
        <label>{t("spend.range")} <select value={range.value} onChange={e => { range.value = Number(e.currentTarget.value); void attempt(load); }}>{RANGES.map(n => <option key={n} value={n}>{t("spend.days", { n })}</option>)}</select></label>
        <label>{t("spend.by")} <select value={by.value} onChange={e => (by.value = e.currentTarget.value as By)}>{(Object.keys(BY) as By[]).map(id => <option key={id} value={id}>{t(`spend.${id}`)}</option>)}</select></label>
      </div>
      <dl class="figures">
        <div><dt>{t("spend.total")}</dt><dd>{dollars(sum)}</dd></div>
        <div><dt>{t("spend.requests")}</dt><dd>{number(total(d => d.requests))}</dd></div>
        <div><dt>{t("spend.input")}</dt><dd>{number(total(d => d.total_input_tokens))}</dd></div>
        <div><dt>{t("spend.output")}</dt><dd>{number(total(d => d.total_output_tokens))}</dd></div>
      </dl>
      <Chart />
      <div class="wide" tabIndex={0} role="region" aria-label={t(`spend.${by.value}`)}>
        <table>
          <thead><tr><th scope="col">{t(`spend.${by.value}`)}</th><th scope="col" class="right">{t("spend.cost")}</th><th scope="col" class="right">{t("spend.share")}</th></tr></thead>
          <tbody>
            {rows.map(([id, cost]) => (
              <tr key={id}><th scope="row">{BY[by.value](id)}</th><td class="right">{dollars(cost)}</td><td class="right">{sum ? `${number((cost / sum) * 100, 1)} %` : "–"}</td></tr>
            ))}
            {!rows.length && <tr><td colSpan={3}>{t("spend.none")}</td></tr>}
          </tbody>
        </table>
      </div>
      <small>{t("spend.hint")}</small>
    </>
  );
}
