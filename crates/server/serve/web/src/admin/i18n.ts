// The texts of the operator's page in the reader's language.
import { filled, language, type Language } from "../language.ts";
import de from "./texts/de.json";
import en from "./texts/en.json";

export type Key = keyof typeof en;
const TEXTS: Record<Language, Partial<Record<Key, string>>> = { en, de };

/** A text; `{name}` in it is replaced. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return filled(TEXTS[language.value][key] ?? en[key], values);
}

/** US dollars. Small amounts keep their digits. */
export function dollars(value: number): string {
  const digits = value !== 0 && Math.abs(value) < 1 ? 4 : 2;
  return value.toLocaleString(language.value, { style: "currency", currency: "USD", minimumFractionDigits: 2, maximumFractionDigits: digits });
}

/** A point in time. */
export function time(text: string): string {
  return new Date(text).toLocaleString(language.value, { dateStyle: "medium", timeStyle: "short" });
}
