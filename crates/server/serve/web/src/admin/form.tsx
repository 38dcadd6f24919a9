// The form of a key, a user or a team, and what it sends.
import { t } from "./i18n.ts";
import { error, status } from "./state.ts";

export interface Field {
  name: string;
  label: string;
  hint?: string;
  type?: "number" | "money" | "names";
  choices?: { id: string; name: string }[];
  /** Others than the choices may be written. */
  free?: boolean;
  onlyNew?: boolean;
}

/** What limits each of them. */
export const LIMITS = (): Field[] => [
  { name: "models", label: t("models"), hint: t("models.all"), type: "names" },
  { name: "max_budget", label: t("budget"), type: "money" },
  { name: "budget_duration", label: t("period"), hint: "30d, 1mo" },
  { name: "rpm_limit", label: t("rpm"), type: "number" },
  { name: "tpm_limit", label: t("tpm"), type: "number" },
  { name: "max_parallel_requests", label: t("atOnce"), type: "number" },
];

/** What a form says: an empty field lifts a limit, or is left out of something new. */
export function values(form: HTMLFormElement, fields: Field[], isNew: boolean): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const field of fields) {
    if (field.onlyNew && !isNew) continue;
    const text = (form.elements.namedItem(field.name) as HTMLInputElement | HTMLSelectElement).value.trim();
    if (field.type === "names") out[field.name] = text.split(",").map(name => name.trim()).filter(Boolean);
    else if (text) out[field.name] = field.type ? Number(text) : text;
    else if (!isNew) out[field.name] = null;
  }
  return out;
}

function Input({ field, value }: { field: Field; value: unknown }) {
  const shown = Array.isArray(value) ? value.join(", ") : value === null || value === undefined ? "" : String(value);
  const list = field.type === "names" ? "model-names" : field.free ? `${field.name}-choices` : undefined;
  if (field.choices && !field.free) {
    return (
      <select name={field.name} defaultValue={shown}>
        <option value="" selected={!shown}>{t("none")}</option>
        {field.choices.map(c => <option key={c.id} value={c.id} selected={c.id === shown}>{c.name}</option>)}
      </select>
    );
  }
  return (
    <>
      {field.type === "number" || field.type === "money" ? (
        <input name={field.name} type="number" min={field.type === "number" ? 1 : 0} step={field.type === "number" ? 1 : "any"} defaultValue={shown} />
      ) : (
        <input name={field.name} list={list} placeholder={field.hint} maxLength={field.type ? 20_000 : 200} autocomplete="off" defaultValue={shown} />
      )}
      {field.free && <datalist id={`${field.name}-choices`}>{field.choices?.map(c => <option key={c.id} value={c.id}>{c.name}</option>)}</datalist>}
    </>
  );
}

export function Form({ fields, one, save, cancel }: { fields: Field[]; one: Record<string, unknown> | null; save: (form: HTMLFormElement) => Promise<void>; cancel: () => void }) {
  const names = [...new Set(status.value?.deployments.map(d => d.group))];
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    void save(e.currentTarget as HTMLFormElement);
  };
  return (
    <form onSubmit={submit}>
      {error.value && <p class="error" role="alert">{error.value}</p>}
      <div class="fields">
        {fields.filter(f => !one || !f.onlyNew).map(f => <label key={f.name}>{f.label}<Input field={f} value={one?.[f.name]} /></label>)}
      </div>
      <datalist id="model-names">{names.map(name => <option key={name} value={name} />)}</datalist>
      <div class="row">
        <button type="button" onClick={cancel}>{t("cancel")}</button>
        <button class="main">{t("save")}</button>
      </div>
    </form>
  );
}
