// The reader's language, and how it writes numbers. Used by the texts of both pages.
import { computed, signal } from "@preact/signals";

export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

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

/** A text with `{name}` in it replaced. */
export function filled(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}

/** A number as the language writes it. */
export function number(value: number, digits = 0): string {
  return value.toLocaleString(language.value, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
