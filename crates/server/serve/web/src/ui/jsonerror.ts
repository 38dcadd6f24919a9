// Checks fields that hold JSON.
import { t } from "../i18n.ts";
import * as state from "../state.ts";

/** Why a text is no JSON object; empty if it is one, or there is none. */
export function jsonError(text: string): string {
  if (!text.trim()) return "";
  try {
    const value: unknown = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? "" : t("error.jsonObject", { what: "JSON" });
  } catch (e) {
    return state.said(e);
  }
}
