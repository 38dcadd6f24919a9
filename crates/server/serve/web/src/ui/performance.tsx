// The performance panel: throughput, queue, cache and steps of the last hour, from /metrics.
import { number, t, type Key } from "../i18n.ts";
import { failed, samples } from "../metrics.ts";
import { gauge, rate, ratio, share, type Point } from "../series.ts";

const [W, H] = [320, 64];
const HOUR_MS = 3_600_000;

/** `sampled`: each point is a value of its moment; else it is an average since the point before, and so is the highest. */
function Chart({ name, points, unit, digits = 0, limit = 0, sampled = false }: { name: Key; points: Point[]; unit: string; digits?: number; limit?: number; sampled?: boolean }) {
  if (!points.length) return null;
  const [first, last] = [points[0]!, points.at(-1)!];
  const highest = Math.max(...points.map(p => p.value), 0);
  const most = Math.max(highest, limit, 1e-9);
  const span = Math.min(HOUR_MS, Math.max(60_000, last.at - first.at));
  const x = (p: Point) => W - ((last.at - p.at) / span) * W;
  const y = (p: Point) => H - 1 - (p.value / most) * (H - 4);
  const line = points.map(p => `${x(p).toFixed(1)},${y(p).toFixed(1)}`).join(" ");
  const now = `${number(last.value, digits)} ${unit}`.trim();
  const n = `${number(highest, digits)} ${unit}`.trim();
  const peak = limit > 0 ? t("performance.limit", { n, limit: `${number(limit, digits)} ${unit}`, share: number((100 * highest) / limit) }) : t(sampled ? "performance.peak" : "performance.peakAverage", { n });
  const level = H - 1 - (limit / most) * (H - 4);
  return (
    <figure class="chart" data-metric={name}>
      <figcaption><span>{t(name)}</span><strong>{now}</strong></figcaption>
      <svg viewBox={`0 0 ${W} ${H}`} preserveAspectRatio="none" role="img" aria-label={t("performance.alt", { name: t(name), now, peak })}>
        <polyline points={line} />
        {limit > 0 && <line class="limit" x1={0} x2={W} y1={level} y2={level} />}
      </svg>
      <p class="small dim axis"><span>{t("performance.ago", { n: number(Math.round(span / 60_000)) })}</span><span>{peak}</span></p>
    </figure>
  );
}

/** Experts that a step needed: in memory, read ahead in time, and read while it waited. */
const EXPERTS = ["octet:expert_hits_total", "octet:expert_guesses_right_total", "octet:expert_misses_total"];

const scaled = (points: Point[], by: number) => points.map(p => ({ ...p, value: p.value * by }));

export function Performance() {
  const all = samples.value;
  const limit = (all.at(-1)?.values["octet:memory_bandwidth_bytes"] ?? 0) / 1e9;
  const has = (name: string) => (all.at(-1)?.values[name] ?? 0) > 0;
  return (
    <div class="panel-body">
      {failed.value && <p class="bad">{t("performance.failed")}</p>}
      {all.length < 2 && !failed.value && <p class="dim">{t("performance.wait")}</p>}
      {all.length >= 2 && (
        <div class="charts">
          <Chart name="performance.generated" points={rate(all, "vllm:generation_tokens_total")} unit={t("performance.perSecond")} digits={1} />
          <Chart name="performance.prompt" points={rate(all, "octet:prompt_tokens_computed_total")} unit={t("performance.perSecond")} digits={1} />
          {has("octet:step_bytes") && <Chart name="performance.bandwidth" points={scaled(ratio(all, "octet:step_bytes", "octet:step_seconds"), 1e-9)} unit="GB/s" digits={1} limit={limit} />}
          <Chart name="performance.batch" points={ratio(all, "vllm:generation_tokens_total", "octet:steps")} unit="" digits={2} />
          {has("vllm:spec_decode_num_draft_tokens_total") && (
            <Chart name="performance.guesses" points={scaled(ratio(all, "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"), 100)} unit="%" digits={1} />
          )}
          {has("process_resident_memory_bytes") && <Chart name="performance.memory" sampled points={scaled(gauge(all, "process_resident_memory_bytes"), 2 ** -30)} unit="GiB" digits={2} />}
          <Chart name="performance.running" sampled points={gauge(all, "vllm:num_requests_running")} unit="" />
          <Chart name="performance.waiting" sampled points={gauge(all, "vllm:num_requests_waiting")} unit="" />
          <Chart name="performance.kv" sampled points={scaled(gauge(all, "vllm:kv_cache_usage_perc"), 100)} unit="%" digits={1} />
          <Chart name="performance.hits" points={scaled(ratio(all, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"), 100)} unit="%" digits={1} />
          <Chart name="performance.snapshots" sampled points={scaled(gauge(all, "octet:snapshot_bytes"), 2 ** -20)} unit="MiB" digits={1} />
          {has("octet:cache_disk_bytes") && <Chart name="performance.disk" sampled points={scaled(gauge(all, "octet:cache_disk_bytes"), 2 ** -20)} unit="MiB" digits={1} />}
          {has("octet:expert_misses_total") && (
            <>
              <Chart name="performance.expertHits" points={scaled(share(all, EXPERTS), 100)} unit="%" digits={1} />
              <Chart name="performance.expertMisses" points={ratio(all, "octet:expert_misses_total", "octet:steps")} unit="" digits={1} />
              <Chart name="performance.expertBytes" points={scaled(rate(all, "octet:expert_read_bytes_total"), 1e-6)} unit="MB/s" />
              <Chart name="performance.expertRead" points={scaled(ratio(all, "octet:expert_read_seconds_total", "octet:expert_reads_total"), 1000)} unit="ms" digits={2} />
            </>
          )}
          <Chart name="performance.step" points={scaled(ratio(all, "octet:step_seconds", "octet:steps"), 1000)} unit="ms" digits={2} />
        </div>
      )}
      <p class="small dim">{t("performance.note")} <a href="metrics">metrics</a></p>
    </div>
  );
}
