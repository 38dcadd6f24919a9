// How much of a budget is spent.
import { dollars, t } from "./i18n.ts";

export function Meter({ used, limit, label }: { used: number; limit: number | null; label: string }) {
  if (limit === null) return <span>{dollars(used)}</span>;
  return (
    <span class="meter">
      {t("of", { used: dollars(used), limit: dollars(limit) })}
      <meter min={0} max={limit || 1} high={limit * 0.9} value={Math.min(used, limit)} aria-label={label} />
    </span>
  );
}
