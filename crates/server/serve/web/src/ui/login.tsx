// Asks for the key of a server that wants one.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n.ts";
import * as state from "../state.ts";
import { Mark } from "./icons.tsx";

const busy = signal(false);

export function Login() {
  const field = useRef<HTMLInputElement>(null);
  const remember = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const logIn = async (e: SubmitEvent) => {
    e.preventDefault();
    const key = field.current?.value.trim();
    if (!key) return;
    busy.value = true;
    await state.setKey(key, remember.current?.checked ?? false);
    busy.value = false;
    if (state.locked.peek()) field.current?.select();
  };
  const wrong = state.locked.value === "wrong";
  return (
    <main class="login">
      <form onSubmit={e => void logIn(e)}>
        <h1><Mark /> Octet</h1>
        <p class="dim">{t("login.why")}</p>
        <label>
          {t("login.key")}
          <input ref={field} type="password" id="key" name="password" autocomplete="current-password" spellcheck={false} required aria-invalid={wrong} aria-describedby={wrong ? "login-wrong" : undefined} />
        </label>
        {wrong && <p id="login-wrong" class="error" role="alert">{t("login.wrong")}</p>}
        <label class="check"><input ref={remember} type="checkbox" /> {t("login.remember")}</label>
        <button type="submit" class="main" disabled={busy.value}>{t("login")}</button>
        {state.note.value && <p class="error" role="alert">{state.note.value}</p>}
      </form>
    </main>
  );
}
