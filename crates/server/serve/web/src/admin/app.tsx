// The operator's page as a whole: the key, then the views.
import { useEffect } from "preact/hooks";
import { chosen, language, LANGUAGES, type Language } from "../language.ts";
import { Keys, Teams, Users } from "./entities.tsx";
import { t } from "./i18n.ts";
import { Models } from "./models.tsx";
import { Requests } from "./requests.tsx";
import { Spend } from "./spend.tsx";
import { error, isIn, logIn, logOut, said, status, view, VIEWS } from "./state.ts";

function LogIn() {
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const field = (e.currentTarget as HTMLFormElement).elements.namedItem("key") as HTMLInputElement;
    void logIn(field.value.trim());
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <h1>{t("title")}</h1>
        <label>
          {t("login.key")}
          <input type="password" name="key" autocomplete="off" required autofocus />
        </label>
        <small>{t("login.hint")}</small>
        {error.value && <p class="error" role="alert">{error.value}</p>}
        <button class="main">{t("login.enter")}</button>
      </form>
    </main>
  );
}

function LanguageChoice() {
  return (
    <label class="language">
      <span class="hidden">{t("language")}</span>
      <select value={language.value} onChange={e => (chosen.value = e.currentTarget.value as Language)}>
        {Object.entries(LANGUAGES).map(([id, name]) => <option key={id} value={id}>{name}</option>)}
      </select>
    </label>
  );
}

export function App() {
  useEffect(() => {
    document.documentElement.lang = language.value;
    document.title = isIn.value ? `${t(`view.${view.value}`)} · ${t("title")}` : t("title");
  });
  if (!isIn.value) return <LogIn />;
  const needsKeys = view.value !== "models" && view.value !== "requests" && !status.value?.has_keys;
  return (
    <>
      <a class="hidden skip" href="#content" onClick={e => { e.preventDefault(); document.getElementById("content")?.focus(); }}>{t("skip")}</a>
      <header>
        <strong>{t("title")}</strong>
        <nav aria-label={t("views")}>
          {VIEWS.map(v => <a key={v} href={`#${v}`} aria-current={view.value === v ? "page" : undefined}>{t(`view.${v}`)}</a>)}
        </nav>
        <span class="spring" />
        <LanguageChoice />
        <button type="button" onClick={logOut}>{t("logout")}</button>
      </header>
      <main id="content" tabIndex={-1}>
        <h1>{t(`view.${view.value}`)}</h1>
        {error.value && <p class="error" role="alert">{error.value}</p>}
        <p class="hidden" role="status">{said.value}</p>
        {needsKeys ? <p>{t("noKeys")}</p> : view.value === "models" ? <Models /> : view.value === "requests" ? <Requests /> : view.value === "keys" ? <Keys /> : view.value === "users" ? <Users /> : view.value === "teams" ? <Teams /> : <Spend />}
      </main>
    </>
  );
}
