// The messages of the open conversation.
import { signal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { answer, continueAnswer, runOf } from "../answer.ts";
import { duration, number, t, type Key } from "../i18n.ts";
import { newId } from "../ids.ts";
import * as state from "../state.ts";
import { children } from "../tree.ts";
import type { Figures, Message } from "../types.ts";
import { Calls } from "./calls.tsx";
import { confirmDeletion } from "./confirm.tsx";
import { Files } from "./files.tsx";
import { Icon, type IconName } from "./icons.tsx";
import { copyText, Markdown } from "./text.tsx";
import { Welcome } from "./welcome.tsx";

const editing = signal<string | null>(null);
/** The end of the messages is out of sight. */
const away = signal(false);

export function editLast() {
  const last = state.shown.peek().map(id => state.messages.peek().get(id)!.peek()).filter(m => m.role === "user").at(-1);
  if (last) editing.value = last.id;
  return Boolean(last);
}

/** The figures of an answer, the most interesting first. */
export function figuresText(f: Figures): string[] {
  const out: string[] = [];
  if (f.tokens) out.push(f.tokens === 1 ? t("figures.token") : t("figures.tokens", { n: number(f.tokens) }));
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
      {open.value && <Markdown text={m.reasoning} name={`${m.id}-r`} running={thinks} />}
    </details>
  );
}

function Editor({ m }: { m: Message }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const files = useRef(signal(m.attachments ?? [])).current;
  useLayoutEffect(() => {
    if (!area.current) return;
    area.current.value = m.text;
    area.current.focus();
  }, []);
  const save = () => {
    const text = area.current?.value ?? "";
    const attachments = files.value;
    if (!text.trim() && !attachments.length) return;
    editing.value = null;
    // What was stays: the edit is a further version.
    const { parent, role, chat } = m;
    const fresh: Message = { id: newId(), chat, parent, role, text, created: Date.now(), state: "done", ...(attachments.length ? { attachments } : {}), ...(m.reasoning ? { reasoning: m.reasoning } : {}) };
    state.saveMessage(fresh);
    state.pick(fresh);
    if (role === "user") void answer(chat, fresh.id);
  };
  return (
    <div class="edit">
      {files.value.length > 0 && <Files files={files.value} remove={file => (files.value = files.value.filter(other => other !== file))} />}
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
      <Markdown text={m.text} name={m.id} running={running} />
      {onlyThought && <p class="dim">{m.reasoning ? t("reasoning.only") : t("empty")}</p>}
      {m.calls && !running && <Calls m={m} />}
      {m.calls && running && <p class="dim">{m.calls.map(c => c.name).join(", ")} …</p>}
      {m.error && (
        <div class="error" role="alert">
          <p>{m.error}</p>
          {m.fix === "shorten" && state.messages.value.get(m.parent ?? "")?.peek().role === "user" && <button type="button" onClick={() => (editing.value = m.parent)}><Icon name="edit" /> {t("error.shorten")}</button>}
          {m.errorDetail && <details><summary>{t("error.detail")}</summary><p>{m.errorDetail}</p></details>}
        </div>
      )}
    </>
  );
}

/** How long a button says that it has copied. */
const SAID_MS = 1500;

function Copy({ text }: { text: string }) {
  const done = useRef(signal(false)).current;
  const act = async () => {
    if (!(await copyText(text))) return;
    done.value = true;
    setTimeout(() => (done.value = false), SAID_MS);
  };
  return <Act name={done.value ? "copied" : "copy"} icon={done.value ? "done" : "copy"} act={() => void act()} />;
}

function Act({ name, icon, act }: { name: Key; icon: IconName; act: () => void }) {
  return <button type="button" class="bare act" aria-label={t(name)} title={t(name)} onClick={act}><Icon name={icon} /></button>;
}

function Acts({ m }: { m: Message }) {
  const isUser = m.role === "user";
  const more = useRef(signal(false)).current;
  const wasCut = m.state === "stopped" || m.state === "cut" || m.finish === "length";
  return (
    <>
    <div class="acts">
      {!isUser && wasCut && Boolean(m.text) && <button type="button" class="bare labelled" onClick={() => void continueAnswer(m)}><Icon name="continue" /> {t("continue")}</button>}
      {!isUser && m.state === "failed" && <button type="button" class="bare labelled" onClick={() => void answer(m.chat, m.parent)}><Icon name="again" /> {t("tryAgain")}</button>}
      <Versions m={m} />
      {(isUser || m.text) && <Copy text={m.text} />}
      {(isUser || m.text) && <Act name="edit" icon="edit" act={() => (editing.value = m.id)} />}
      {!isUser && m.state === "failed" ? null : isUser ? <Act name="ask.again" icon="again" act={() => void answer(m.chat, m.id)} /> : <Act name="regenerate" icon="again" act={() => void answer(m.chat, m.parent)} />}
      <Act name="delete.message" icon="delete" act={() => confirmDeletion(t("delete.messageSure"), () => void state.removeMessage(m))} />
      {!isUser && <Facts m={m} more={more} />}
    </div>
    {more.value && decided(m).map(line => <p key={line} class="more">{line}</p>)}
    </>
  );
}

/** What decided about an answer: behind a word of its line. */
const decided = (m: Message) => [m.route ? t("figures.route", { model: m.model ?? "", route: m.route }) : "", m.warning ? t("figures.warning", { warning: m.warning }) : ""].filter(Boolean);

/** The figures of an answer, as one quiet line. */
function Facts({ m, more }: { m: Message; more: Signal<boolean> }) {
  const line = [...figuresText(m.figures ?? {}), ending(m)].filter(Boolean).join(" · ");
  return (
    <>
      {line && <p class="stats" title={line}>{line}</p>}
      {decided(m).length > 0 && <button type="button" class="bare route-word" aria-expanded={more.value} onClick={() => (more.value = !more.value)}>{t(m.route ? "figures.how" : "figures.note")}</button>}
    </>
  );
}

function View({ of }: { of: Signal<Message> }) {
  const m = of.value;
  const running = m.state === "running";
  if (m.role === "tool") return null;
  const isUser = m.role === "user";
  const edits = editing.value === m.id;
  const many = state.models.value.length > 1;
  const pictures = m.attachments?.filter(a => a.kind === "image") ?? [];
  return (
    <article class={m.role} aria-busy={running} data-state={m.state}>
      <h3 class={isUser || !many || !m.model ? "hidden" : "who"}>{isUser ? t("you") : many && m.model ? m.model : t("answer")}</h3>
      {!edits && pictures.length > 0 && <p class="pictures">{pictures.map(a => <img key={a.name} src={a.text} alt={a.name} />)}</p>}
      {!edits && m.attachments?.filter(a => a.kind !== "image").map(a => (
        <details class="file" key={a.name}>
          <summary>{t("file", { name: a.name, n: number(a.text.length) })}</summary>
          <pre tabIndex={0}>{a.text.slice(0, 20_000)}</pre>
        </details>
      ))}
      {edits ? <Editor m={m} /> : isUser ? m.text && <div class="body">{m.text}</div> : <Answer m={m} running={running} />}
      {!edits && !running && <Acts m={m} />}
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
    <div class="log-box">
    <section
      id="log"
      ref={log}
      aria-label={t("messages")}
      tabIndex={0}
      onScroll={e => {
        const box = e.currentTarget;
        atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
        away.value = box.scrollHeight - box.scrollTop - box.clientHeight > 240;
      }}
    >
      <div>
        {ids.length === 0 ? <Welcome /> : ids.map(id => <View key={id} of={state.messages.value.get(id)!} />)}
      </div>
    </section>
    {away.value && (
      <button type="button" class="to-end round" aria-label={t("toEnd")} title={t("toEnd")} onClick={() => log.current?.scrollTo({ top: log.current.scrollHeight })}><Icon name="down" /></button>
    )}
    </div>
  );
}
