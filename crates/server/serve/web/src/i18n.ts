// The texts of the page in the reader's language. A further language is a file in texts/ and a line here.
import { computed, signal } from "@preact/signals";
import de from "./texts/de.json";
import en from "./texts/en.json";

export type Key = keyof typeof en;
export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;
const TEXTS: Record<Language, Partial<Record<Key, string>>> = { en, de };

const isLanguage = (name: string): name is Language => name in LANGUAGES;

/** What the user chose; "" is what the browser prefers. */
export const chosen = signal<"" | Language>("");

export const language = computed<Language>(() => {
  if (chosen.value) return chosen.value;
  for (const wanted of navigator.languages) {
    const short = wanted.slice(0, 2).toLowerCase();
    if (isLanguage(short)) return short;
  }
  return "en";
});

/** A text; `{name}` in it is replaced. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  const text = TEXTS[language.value][key] ?? en[key];
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}

/** A number as the language writes it. */
export function number(value: number, digits = 0): string {
  return value.toLocaleString(language.value, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Milliseconds, for people. */
export function duration(ms: number): string {
  if (ms < 1000) return `${number(ms)} ms`;
  if (ms < 60_000) return `${number(ms / 1000, 1)} s`;
  return `${number(Math.floor(ms / 60_000))} min ${number(Math.round((ms % 60_000) / 1000))} s`;
}
