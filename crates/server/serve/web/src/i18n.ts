// The texts of the page in the reader's language. A further language is a file in texts/ and a line here and in language.ts.
import { filled, language, number, type Language } from "./language.ts";
import de from "./texts/de.json";
import en from "./texts/en.json";

export { chosen, language, LANGUAGES, number, type Language } from "./language.ts";
export type Key = keyof typeof en;
const TEXTS: Record<Language, Partial<Record<Key, string>>> = { en, de };

/** A text; `{name}` in it is replaced. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return filled(TEXTS[language.value][key] ?? en[key], values);
}

/** Milliseconds, for people. */
export function duration(ms: number): string {
  if (ms < 1000) return `${number(ms)} ms`;
  if (ms < 60_000) return `${number(ms / 1000, 1)} s`;
  return `${number(Math.floor(ms / 60_000))} min ${number(Math.round((ms % 60_000) / 1000))} s`;
}
