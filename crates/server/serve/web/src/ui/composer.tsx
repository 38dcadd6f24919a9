// The message field, with attachments.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { answer, isRunning, stopAll } from "../answer.ts";
import { number, t } from "../i18n.ts";
import { newId } from "../ids.ts";
import { dataUrl, scaled } from "../pictures.ts";
import * as state from "../state.ts";
import { connectAll } from "../tools.ts";
import type { Attachment, Message, Settings } from "../types.ts";
import { Files } from "./files.tsx";
import { Icon } from "./icons.tsx";
import { editLast } from "./messages.tsx";

const files = signal<Attachment[]>([]);
const reading = signal(0);
const dragged = signal(false);
const FILE_BYTES_MAX = 20 << 20;

export function focusComposer() {
  document.getElementById("prompt")?.focus();
}

/** A longer paste becomes an attachment: a field for text is slow with it, and nobody reads it there. */
const PASTE_CHARS_MAX = 10_000;
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

async function read(file: File): Promise<Attachment> {
  if (file.size > FILE_BYTES_MAX) throw new Error(t("error.fileSize", { name: file.name, n: number(FILE_BYTES_MAX >> 20) }));
  if (file.type.startsWith("image/")) {
    if (!state.seesImages.peek()) throw new Error(t("error.image", { model: state.model.peek()?.id ?? "" }));
    if (!IMAGE_TYPES.includes(file.type)) throw new Error(t("error.imageKind"));
    const picture = await scaled(file);
    if (!picture) throw new Error(t("error.imageBroken"));
    return { name: file.name, kind: "image", text: await dataUrl(picture), bytes: picture.size };
  }
  const data = await file.arrayBuffer();
  const head = new TextDecoder("latin1").decode(data.slice(0, 5));
  if (head === "%PDF-") {
    const { pdfText } = await import("../pdf.ts");
    const bytes = data.byteLength;
    const text = await pdfText(data);
    if (!text) throw new Error(t("error.pdfEmpty", { name: file.name }));
    return { name: file.name, kind: "pdf", text, bytes };
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (!text.includes("\0")) return { name: file.name, kind: "text", text, bytes: data.byteLength };
  } catch {
    // Said below.
  }
  throw new Error(t("error.fileKind", { name: file.name }));
}

export async function attach(list: Iterable<File>) {
  state.note.value = "";
  for (const file of list) {
    reading.value++;
    try {
      files.value = [...files.value, await read(file)];
    } catch (e) {
      state.note.value = t("error.file", { name: file.name, why: state.said(e) });
    } finally {
      reading.value--;
    }
  }
}

function attachPasted(text: string) {
  const taken = new Set(files.peek().map(f => f.name));
  let name = t("pasted");
  for (let n = 2; taken.has(name); n++) name = t("pasted").replace(/\.txt$/, ` ${n}.txt`);
  files.value = [...files.peek(), { name, kind: "text", text, bytes: text.length }];
  state.announced.value = t("announce.pasted", { n: number(text.length) });
}

/** A message waits for the conversations: whoever is impatient sends it once all the same. */
let waiting = false;

/** Sends a message with what is attached. Gives whether it was sent: what was not stays in its field. */
export async function ask(text: string): Promise<boolean> {
  if (waiting) return false;
  waiting = true;
  try {
    await state.storeOpened();
  } finally {
    waiting = false;
  }
  if ((!text && !files.value.length) || reading.value || isRunning()) return false;
  if (!state.model.peek()) {
    state.note.value = t(state.knowsModels.peek() ? "error.noModels" : "welcome.loading");
    return false;
  }
  const attachments = files.value;
  const title = (text || attachments[0]?.name || "").replace(/\s+/g, " ").slice(0, 60);
  const chat = state.ensureChat(title);
  const message: Message = {
    id: newId(), chat: chat.id, parent: state.shown.peek().at(-1) ?? null, role: "user", text, created: Date.now(), state: "done",
    ...(attachments.length ? { attachments } : {}),
  };
  state.saveMessage(message);
  state.pick(message);
  state.note.value = "";
  files.value = [];
  void connectAll().then(() => answer(chat.id, message.id));
  return true;
}

async function send(area: HTMLTextAreaElement) {
  const text = area.value.trim();
  if (!(await ask(text))) return;
  // Another conversation's draft, or what was written while the message waited.
  if (area.value.trim() !== text) return;
  area.value = "";
  state.setDraft("");
}

/** How much of the model's context the conversation takes. */
function Gauge() {
  const limit = state.context.value;
  const used = state.used.value;
  if (!limit || !used) return null;
  const share = Math.min(1, used / limit);
  const label = t("context", { used: number(used), limit: number(limit), share: number(100 * share, share < 0.1 ? 1 : 0) });
  const round = 2 * Math.PI * 6;
  return (
    <span class={`gauge${share > 0.85 ? " bad" : ""}`} role="meter" aria-label={t("context.name")} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={used} aria-valuetext={label} title={label} tabIndex={0}>
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
        <circle cx="8" cy="8" r="6" class="track" />
        <circle cx="8" cy="8" r="6" stroke-dasharray={`${round * share} ${round}`} transform="rotate(-90 8 8)" />
      </svg>
      <span class="wide-only">{number(100 * share, share < 0.1 ? 1 : 0)} %</span>
    </span>
  );
}

function Thinking() {
  if (!state.canSwitchThinking.value) return null;
  return (
    <select id="thinking" class="quiet" aria-label={t("thinking")} title={t("thinking")} value={state.effective.value.thinking} onChange={e => state.setOwn({ thinking: e.currentTarget.value as Settings["thinking"] })}>
      <option value="">{t("thinking.default")}</option>
      <option value="on">{t("thinking.on")}</option>
      <option value="off">{t("thinking.off")}</option>
    </select>
  );
}

export function Composer() {
  const area = useRef<HTMLTextAreaElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const running = isRunning();
  const chat = state.current.value;
  // What was begun in this conversation.
  useLayoutEffect(() => {
    if (area.current) area.current.value = state.draft();
  }, [chat]);
  const seesImages = state.seesImages.value;
  return (
    <form
      id="ask"
      class={dragged.value ? "dragged" : ""}
      onSubmit={e => {
        e.preventDefault();
        if (running) stopAll();
        else if (area.current) void send(area.current);
      }}
      onDragOver={e => {
        e.preventDefault();
        dragged.value = true;
      }}
      onDragLeave={() => (dragged.value = false)}
      onDrop={e => {
        e.preventDefault();
        dragged.value = false;
        void attach(e.dataTransfer?.files ?? []);
      }}
    >
      <div>
      {state.note.value && (
        <p id="note" role="alert">
          <span>{state.note.value}</span>
          <button type="button" class="bare" aria-label={t("close")} onClick={() => (state.note.value = "")}><Icon name="close" /></button>
        </p>
      )}
      {(files.value.length > 0 || reading.value > 0) && (
        <Files files={files.value} remove={file => (files.value = files.value.filter(other => other !== file))}>
          {reading.value > 0 && <li class="wait">{t("file.reading")}</li>}
        </Files>
      )}
      <div class="ask-box">
        <label class="hidden" for="prompt">{t("message")}</label>
        <textarea
          id="prompt"
          ref={area}
          rows={1}
          placeholder={t("message.hint")}
          onInput={e => state.setDraft(e.currentTarget.value)}
          onKeyDown={e => {
            if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
              e.preventDefault();
              void send(e.currentTarget);
            }
            if (e.key === "ArrowUp" && !e.currentTarget.value && editLast()) e.preventDefault();
          }}
          onPaste={e => {
            const list = [...(e.clipboardData?.files ?? [])];
            const text = e.clipboardData?.getData("text/plain") ?? "";
            if (list.length) void attach(list);
            else if (text.length > PASTE_CHARS_MAX) attachPasted(text);
            else return;
            e.preventDefault();
          }}
        />
        <div class="ask-row">
          <button type="button" id="attach" class="bare round" aria-label={t("attach")} title={t(seesImages ? "attach.images" : "attach")} onClick={() => input.current?.click()}><Icon name="attach" /></button>
          <input
            ref={input}
            id="files"
            type="file"
            multiple
            hidden
            aria-label={t("attach")}
            onChange={e => {
              const list = [...(e.currentTarget.files ?? [])];
              e.currentTarget.value = "";
              void attach(list);
            }}
          />
          <Thinking />
          <span class="spring" />
          <Gauge />
          <button id="send" class="main round" type="submit" aria-label={running ? t("stop") : t("send")} title={running ? t("stop.hint") : t("send")}><Icon name={running ? "stop" : "send"} /></button>
        </div>
      </div>
      </div>
    </form>
  );
}
