// The message field, with attachments.
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { answer, isRunning, stopAll } from "../answer.ts";
import { number, t } from "../i18n.ts";
import * as state from "../state.ts";
import { connectAll } from "../tools.ts";
import type { Attachment, Message } from "../types.ts";
import { Icon } from "./icons.tsx";
import { editLast } from "./messages.tsx";

const files = signal<Attachment[]>([]);
const reading = signal(0);
const dragged = signal(false);
const FILE_BYTES_MAX = 20 << 20;

export function focusComposer() {
  document.getElementById("prompt")?.focus();
}

async function read(file: File): Promise<Attachment> {
  if (file.size > FILE_BYTES_MAX) throw new Error(t("error.fileSize", { name: file.name, n: number(FILE_BYTES_MAX >> 20) }));
  const data = await file.arrayBuffer();
  const head = new TextDecoder("latin1").decode(data.slice(0, 5));
  if (file.type.startsWith("image/")) throw new Error(t("error.image", { name: file.name }));
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

function send(area: HTMLTextAreaElement) {
  const text = area.value.trim();
  if ((!text && !files.value.length) || reading.value || isRunning()) return;
  state.note.value = "";
  const attachments = files.value;
  area.value = "";
  files.value = [];
  const title = (text || attachments[0]?.name || "").replace(/\s+/g, " ").slice(0, 60);
  const chat = state.ensureChat(title);
  const message: Message = {
    id: crypto.randomUUID(), chat: chat.id, parent: state.shown.peek().at(-1) ?? null, role: "user", text, created: Date.now(), state: "done",
    ...(attachments.length ? { attachments } : {}),
  };
  state.saveMessage(message);
  state.pick(message);
  void connectAll().then(() => answer(chat.id, message.id));
}

export function Composer() {
  const area = useRef<HTMLTextAreaElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const running = isRunning();
  return (
    <form
      id="ask"
      class={dragged.value ? "dragged" : ""}
      onSubmit={e => {
        e.preventDefault();
        if (running) stopAll();
        else if (area.current) send(area.current);
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
      {state.note.value && (
        <p id="note" role="alert">
          <span>{state.note.value}</span>
          <button type="button" class="bare" aria-label={t("close")} onClick={() => (state.note.value = "")}><Icon name="close" /></button>
        </p>
      )}
      {(files.value.length > 0 || reading.value > 0) && (
        <ul class="files" aria-label={t("files")}>
          {files.value.map((a, i) => (
            <li key={i}>
              {a.name} <span class="dim">{t("characters", { n: number(a.text.length) })}</span>
              <button type="button" class="bare" aria-label={t("file.remove", { name: a.name })} onClick={() => (files.value = files.value.filter((_, k) => k !== i))}><Icon name="close" /></button>
            </li>
          ))}
          {reading.value > 0 && <li class="wait">{t("file.reading")}</li>}
        </ul>
      )}
      <div class="ask-row">
        <button type="button" id="attach" class="bare" aria-label={t("attach")} title={t("attach")} onClick={() => input.current?.click()}><Icon name="attach" /></button>
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
        <label class="hidden" for="prompt">{t("message")}</label>
        <textarea
          id="prompt"
          ref={area}
          rows={1}
          placeholder={t("message.hint")}
          onKeyDown={e => {
            if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
              e.preventDefault();
              send(e.currentTarget);
            }
            if (e.key === "ArrowUp" && !e.currentTarget.value && editLast()) e.preventDefault();
          }}
          onPaste={e => {
            const list = [...(e.clipboardData?.files ?? [])];
            if (!list.length) return;
            e.preventDefault();
            void attach(list);
          }}
        />
        <button id="send" class="main" type="submit">{running ? t("stop") : t("send")}</button>
      </div>
    </form>
  );
}
