// The API panel: the request of the open conversation as a program, to edit and to send.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { apiKey, call } from "../api.ts";
import { t } from "../i18n.ts";
import { requestBody } from "../request.ts";
import { curl, javascript, python } from "../snippets.ts";
import * as state from "../state.ts";
import { copyText } from "./text.tsx";

const KINDS = { curl: "bash", python: "python", javascript: "javascript" } as const;
type Kind = keyof typeof KINDS;
const NAMES: Record<Kind, string> = { curl: "curl", python: "Python", javascript: "JavaScript" };

const kind = signal<Kind>("curl");
const draft = signal<string | null>(null);
const answer = signal("");
const busy = signal<AbortController | null>(null);

/** The request for the next answer: that of the last question, or an example. */
function current(): string {
  const all = state.shown.value.map(id => state.messages.value.get(id)!.value);
  const end = all.findLastIndex(m => m.role === "user");
  const example = { id: "", chat: "", parent: null, role: "user" as const, text: t("api.example"), created: 0, state: "done" as const };
  try {
    return JSON.stringify(requestBody(end < 0 ? [example] : all.slice(0, end + 1)), null, 2);
  } catch (e) {
    return state.said(e);
  }
}

async function send(text: string) {
  const stop = new AbortController();
  busy.value = stop;
  answer.value = "";
  try {
    const response = await call("v1/chat/completions", { method: "POST", body: text, signal: stop.signal });
    const reader = response.body!.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
    let got = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      got += value;
      answer.value = got;
    }
  } catch (e) {
    answer.value += `\n${state.said(e)}`;
  }
  busy.value = null;
}

function Snippet({ text, lang }: { text: string; lang: string }) {
  const code = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const element = code.current;
    if (!element) return;
    element.textContent = text;
    void import("../highlight.ts").then(({ highlight }) => element.isConnected && element.textContent === text && highlight(element));
  }, [text, lang]);
  return (
    <div class="code">
      <div><span>{lang}</span><button type="button" class="bare" onClick={() => copyText(text)}>{t("copy")}</button></div>
      <pre tabIndex={0}><code ref={code} data-lang={lang} /></pre>
    </div>
  );
}

function snippet(text: string): string {
  let body: Record<string, unknown>;
  try {
    body = JSON.parse(text) as Record<string, unknown>;
  } catch (e) {
    return state.said(e);
  }
  const base = new URL(".", location.href).href.replace(/[#?].*$/, "").replace(/\/$/, "");
  const url = `${base}/v1/chat/completions`;
  const hasKey = apiKey.get() !== "";
  if (kind.value === "curl") return curl(url, body, hasKey);
  return kind.value === "python" ? python(base, body, hasKey) : javascript(url, body, hasKey);
}

export function Playground() {
  const text = draft.value ?? current();
  return (
    <div class="panel-body">
      <div class="row" role="radiogroup" aria-label={t("api.language")}>
        {(Object.keys(KINDS) as Kind[]).map(name => (
          <button type="button" key={name} role="radio" aria-checked={kind.value === name} class={kind.value === name ? "main" : ""} onClick={() => (kind.value = name)}>{NAMES[name]}</button>
        ))}
      </div>
      <Snippet text={snippet(text)} lang={KINDS[kind.value]} />
      <label>
        {t("api.body")}
        <textarea id="api-body" class="code-field" rows={14} spellcheck={false} value={text} onInput={e => (draft.value = e.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="main" onClick={() => (busy.value ? busy.value.abort() : void send(text))}>{busy.value ? t("stop") : t("send")}</button>
        <button type="button" disabled={draft.value === null} onClick={() => (draft.value = null)}>{t("api.reset")}</button>
        <a href="openapi.json">openapi.json</a>
      </div>
      {answer.value && (
        <label>
          {t("api.answer")}
          <textarea id="api-answer" class="code-field" rows={12} readOnly value={answer.value} />
        </label>
      )}
    </div>
  );
}
