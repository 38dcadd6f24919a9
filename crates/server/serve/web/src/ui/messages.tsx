// The messages of the open conversation.
import { signal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { answer, continueAnswer, runOf, stop } from "../answer.ts";
import { duration, number, t } from "../i18n.ts";
import * as state from "../state.ts";
import { children } from "../tree.ts";
import type { Figures, Message } from "../types.ts";
import { Calls } from "./calls.tsx";
import { Icon } from "./icons.tsx";
import { copyText, Markdown } from "./text.tsx";

const editing = signal<string | null>(null);

export function editLast() {
  const last = state.shown.peek().map(id => state.messages.peek().get(id)!.peek()).filter(m => m.role === "user").at(-1);
  if (last) editing.value = last.id;
  return Boolean(last);
}

/** The figures of an answer, as a line. */
export function figuresText(f: Figures): string[] {
  const out: string[] = [];
  if (f.tokens) out.push(t("figures.tokens", { n: number(f.tokens) }));
  if (f.rate) out.push(t("figures.rate", { n: number(f.rate, f.rate < 100 ? 1 : 0) }));
  if (f.first !== undefined) out.push(t("figures.first", { time: duration(f.first) }));
  if (f.prompt) out.push(f.cached === undefined ? t("figures.prompt", { n: number(f.prompt) }) : t("figures.promptCached", { n: number(f.prompt), cached: number(f.cached) }));
  return out;
}

function ending(m: Message): string {
  if (m.state === "stopped") return t("finish.stopped");
  if (m.finish === "length") return t("finish.length");
  if (m.finish === "content_filter") return t("finish.filter");
  return "";
}

function Versions({ m }: { m: Message }) {
  const all = children(state.plain(), m.parent).filter(x => x.role === m.role);
  if (all.length < 2) return null;
  const at = all.findIndex(x => x.id === m.id);
  const go = (to: number) => state.pick(all[to]!);
  return (
    <span class="versions" role="group" aria-label={t("versions")}>
      <button type="button" class="bare" disabled={at === 0} aria-label={t("versions.previous")} onClick={() => go(at - 1)}><Icon name="previous" /></button>
      <span>{at + 1}/{all.length}</span>
      <button type="button" class="bare" disabled={at === all.length - 1} aria-label={t("versions.next")} onClick={() => go(at + 1)}><Icon name="next" /></button>
    </span>
  );
}

function Reasoning({ m, running }: { m: Message; running: boolean }) {
  const open = useRef(signal(false)).current;
  if (!m.reasoning) return null;
  const thinks = running && !m.text && !m.calls?.length;
  const title = thinks ? t("reasoning.running") : m.reasoningMs === undefined ? t("reasoning") : t("reasoning.time", { time: duration(m.reasoningMs) });
  return (
    <details class="think" onToggle={e => (open.value = e.currentTarget.open)}>
      <summary class={thinks ? "wait" : ""}>{title}</summary>
      {open.value && <Markdown text={m.reasoning} running={thinks} />}
    </details>
  );
}

function Editor({ m }: { m: Message }) {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    if (!area.current) return;
    area.current.value = m.text;
    area.current.focus();
  }, []);
  const save = () => {
    const text = area.current?.value ?? "";
    if (!text.trim()) return;
    editing.value = null;
    // What was stays: the edit is a further version.
    const { attachments, parent, role, chat } = m;
    const fresh: Message = { id: crypto.randomUUID(), chat, parent, role, text, created: Date.now(), state: "done", ...(attachments ? { attachments } : {}), ...(m.reasoning ? { reasoning: m.reasoning } : {}) };
    state.saveMessage(fresh);
    state.pick(fresh);
    if (role === "user") void answer(chat, fresh.id);
  };
  return (
    <div class="edit">
      <textarea
        ref={area}
        aria-label={t("edit.text")}
        onKeyDown={e => {
          if (e.key === "Escape") {
            e.preventDefault();
            editing.value = null;
          }
          if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) save();
        }}
      />
      <div class="row">
        <button type="button" class="main" onClick={save}>{m.role === "user" ? t("send") : t("save")}</button>
        <button type="button" onClick={() => (editing.value = null)}>{t("cancel")}</button>
      </div>
    </div>
  );
}

function Answer({ m, running }: { m: Message; running: boolean }) {
  const progress = runOf(m.id)?.running.value.progress;
  const waits = running && !m.text && !m.reasoning && !m.calls?.length;
  const onlyThought = !running && m.state !== "failed" && !m.text.trim() && !m.calls?.length;
  return (
    <>
      <Reasoning m={m} running={running} />
      {waits && (
        <p class="dim" role="presentation">
          {progress && progress.total > 0 ? (
            <label>
              {t("progress", { done: number(progress.done), total: number(progress.total) })} <progress max={progress.total} value={progress.done} />
            </label>
          ) : (
            <span class="wait">{t("progress.waiting")}</span>
          )}
        </p>
      )}
      <Markdown text={m.text} running={running} />
      {onlyThought && <p class="dim">{m.reasoning ? t("reasoning.only") : t("empty")}</p>}
      {m.calls && !running && <Calls m={m} />}
      {m.calls && running && <p class="dim">{m.calls.map(c => c.name).join(", ")} …</p>}
      {m.error && <div class="error" role="alert">{m.error}</div>}
    </>
  );
}

function Acts({ m, running }: { m: Message; running: boolean }) {
  const isUser = m.role === "user";
  if (running) return <div class="acts"><button type="button" class="bare" onClick={() => stop(m.id)}>{t("stop")}</button></div>;
  const canContinue = m.role === "assistant" && Boolean(m.text) && (m.state === "stopped" || m.state === "cut" || m.finish === "length");
  return (
    <div class="acts">
      <Versions m={m} />
      <button type="button" class="bare" onClick={() => copyText(m.text)}>{t("copy")}</button>
      <button type="button" class="bare" onClick={() => (editing.value = m.id)}>{t("edit")}</button>
      {isUser && <button type="button" class="bare" onClick={() => void answer(m.chat, m.id)}>{t("ask.again")}</button>}
      {!isUser && <button type="button" class="bare" onClick={() => void answer(m.chat, m.parent)}>{t("regenerate")}</button>}
      {canContinue && state.isLocal.value && <button type="button" class="bare" onClick={() => void continueAnswer(m)}>{t("continue")}</button>}
    </div>
  );
}

function Facts({ m }: { m: Message }) {
  const parts = [...figuresText(m.figures ?? {}), ending(m)].filter(Boolean);
  return (
    <>
      {parts.length > 0 && <p class="stats">{parts.join(" · ")}</p>}
      {m.route && <p class="stats">{t("figures.route", { model: m.model ?? "", route: m.route })}</p>}
      {m.warning && <p class="stats">{t("figures.warning", { warning: m.warning })}</p>}
    </>
  );
}

function View({ of }: { of: Signal<Message> }) {
  const m = of.value;
  const running = m.state === "running";
  if (m.role === "tool") return null;
  const isUser = m.role === "user";
  const many = state.models.value.length > 1;
  return (
    <article class={m.role} aria-busy={running} data-state={m.state}>
      <h3 class="who">{isUser ? t("you") : many && m.model ? t("answer.of", { model: m.model }) : t("answer")}</h3>
      {m.attachments?.map(a => (
        <details class="file" key={a.name}>
          <summary>{t("file", { name: a.name, n: number(a.text.length) })}</summary>
          <pre tabIndex={0}>{a.text.slice(0, 20_000)}</pre>
        </details>
      ))}
      {editing.value === m.id ? <Editor m={m} /> : isUser ? <div class="body">{m.text}</div> : <Answer m={m} running={running} />}
      {!isUser && <Facts m={m} />}
      {editing.value !== m.id && <Acts m={m} running={running} />}
    </article>
  );
}

export function Messages() {
  const log = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  const ids = state.shown.value;
  const chat = state.current.value;
  useLayoutEffect(() => {
    atEnd.current = true;
  }, [chat]);
  useEffect(() => {
    const box = log.current;
    if (!box) return;
    const follow = () => {
      if (atEnd.current) box.scrollTop = box.scrollHeight;
    };
    // Whatever grows: an answer, an image, a formula.
    const observer = new ResizeObserver(follow);
    observer.observe(box.firstElementChild!);
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  return (
    <section
      id="log"
      ref={log}
      aria-label={t("messages")}
      tabIndex={0}
      onScroll={e => {
        const box = e.currentTarget;
        atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
      }}
    >
      <div>
        {ids.length === 0 ? <Welcome /> : ids.map(id => <View key={id} of={state.messages.value.get(id)!} />)}
      </div>
    </section>
  );
}

function Welcome() {
  const m = state.model.value;
  return (
    <div class="empty">
      <h1>Octet</h1>
      <p>{m ? t("welcome", { model: m.id }) : t("welcome.none")}</p>
    </div>
  );
}
