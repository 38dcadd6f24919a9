// The list of conversations: search, open, rename, delete, export, import.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { t } from "../i18n.ts";
import * as state from "../state.ts";
import * as store from "../store.ts";
import type { Chat } from "../types.ts";
import { focusComposer } from "./composer.tsx";
import { Icon } from "./icons.tsx";

const query = signal("");
const found = signal<Set<string> | null>(null);
const renaming = signal<string | null>(null);
const removing = signal<Chat | null>(null);

export function focusSearch() {
  state.menu.value = true;
  const field = document.getElementById("search");
  field?.focus();
  // It may have been hidden until now.
  if (document.activeElement !== field) requestAnimationFrame(() => field?.focus());
}

let timer = 0;
function search(text: string) {
  query.value = text;
  clearTimeout(timer);
  if (!text.trim()) {
    found.value = null;
    return;
  }
  timer = window.setTimeout(() => {
    void store.search(text.trim()).then(ids => {
      if (query.peek() === text) found.value = ids;
    });
  }, 150);
}

export async function download(name: string, value: unknown) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const fileName = (what: string) => `octet-${what.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}-${new Date().toISOString().slice(0, 10)}.json`;

async function importFile(input: HTMLInputElement) {
  const file = input.files?.[0];
  input.value = "";
  if (!file) return;
  const n = await state.importChats(await file.text());
  if (n) state.announced.value = t("announce.imported", { n });
  else state.note.value = t("error.import", { name: file.name });
}

function Entry({ chat }: { chat: Chat }) {
  const title = chat.title || t("untitled");
  const is = chat.id === state.current.value;
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    input.current?.focus();
    input.current?.select();
  }, [renaming.value === chat.id]);
  if (renaming.value === chat.id) {
    const save = (value: string) => {
      if (value.trim()) state.rename(chat, value.trim());
      renaming.value = null;
    };
    return (
      <li>
        <input
          ref={input}
          class="rename"
          aria-label={t("rename.name")}
          value={title}
          onBlur={e => renaming.value === chat.id && save(e.currentTarget.value)}
          onKeyDown={e => {
            if (e.key === "Enter") save(e.currentTarget.value);
            if (e.key === "Escape") {
              e.preventDefault();
              renaming.value = null;
            }
          }}
        />
      </li>
    );
  }
  const runs = [...state.runs.value.values()].some(m => m.peek().chat === chat.id);
  return (
    <li class={is ? "current" : ""}>
      <button type="button" class="open" title={title} aria-current={is ? "page" : undefined} onClick={() => void state.open(chat.id)}>
        {runs && <span class="dot" role="img" aria-label={t("running")} />}
        {title}
      </button>
      <span class="entry-acts">
        <button type="button" class="bare" title={t("rename")} aria-label={t("rename.this", { title })} onClick={() => (renaming.value = chat.id)}><Icon name="rename" /></button>
        <button type="button" class="bare" title={t("export")} aria-label={t("export.this", { title })} onClick={() => void state.exportChats(chat).then(x => download(fileName(title), x))}><Icon name="save" /></button>
        <button type="button" class="bare" title={t("delete")} aria-label={t("delete.this", { title })} onClick={() => (removing.value = chat)}><Icon name="close" /></button>
      </span>
    </li>
  );
}

/** Asks before a conversation is deleted. */
function Removing() {
  const dialog = useRef<HTMLDialogElement>(null);
  const chat = removing.value;
  useEffect(() => {
    if (chat) dialog.current?.showModal();
  }, [chat]);
  if (!chat) return null;
  return (
    <dialog ref={dialog} aria-labelledby="removing" onClose={() => (removing.value = null)}>
      <p id="removing">{t("delete.sure", { title: chat.title || t("untitled") })}</p>
      <div class="row">
        <button type="button" onClick={() => dialog.current?.close()}>{t("cancel")}</button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            dialog.current?.close();
            void state.remove(chat);
          }}
        >
          {t("delete")}
        </button>
      </div>
    </dialog>
  );
}

export function Sidebar() {
  const file = useRef<HTMLInputElement>(null);
  const wanted = found.value;
  const all = state.chats.value.filter(c => !wanted || wanted.has(c.id));
  return (
    <nav id="side" aria-label={t("conversations")}>
      <button type="button" id="new" class="main" onClick={() => void state.open(null).then(focusComposer)}>{t("new")}</button>
      <input id="search" type="search" placeholder={t("search")} aria-label={t("search")} value={query.value} onInput={e => search(e.currentTarget.value)} />
      {all.length === 0 && <p class="dim small">{wanted ? t("search.none") : t("conversations.none")}</p>}
      <ul>{all.map(chat => <Entry key={chat.id} chat={chat} />)}</ul>
      <div class="row">
        <button type="button" id="export" disabled={!state.chats.value.length} onClick={() => void state.exportChats().then(x => download(fileName("conversations"), x))}>{t("export.all")}</button>
        <button type="button" id="import" onClick={() => file.current?.click()}>{t("import")}</button>
        <input ref={file} type="file" accept="application/json,.json" hidden aria-label={t("import.file")} onChange={e => void importFile(e.currentTarget)} />
      </div>
      <Removing />
    </nav>
  );
}
