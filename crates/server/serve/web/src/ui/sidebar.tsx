// The list of conversations: search, open, rename, delete, export, import.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { language, number, t } from "../i18n.ts";
import * as state from "../state.ts";
import * as store from "../store.ts";
import { conversationsIn } from "../zip.ts";
import type { Chat } from "../types.ts";
import { focusComposer } from "./composer.tsx";
import { confirmDeletion } from "./confirm.tsx";
import { Icon, Mark } from "./icons.tsx";

const query = signal("");
const found = signal<Set<string> | null>(null);
const renaming = signal<string | null>(null);
/** The conversation whose menu is open, and where. */
const menuOf = signal<{ chat: Chat; x: number; y: number } | null>(null);
const narrow = matchMedia("(max-width: 56rem)");

export function focusSearch() {
  if (narrow.matches) state.setMenu(true);
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

/** What became of the last import. */
const imported = signal("");

async function importFile(input: HTMLInputElement) {
  const file = input.files?.[0];
  input.value = "";
  if (!file) return;
  state.note.value = imported.value = "";
  try {
    const text = file.name.endsWith(".zip") ? await conversationsIn(await file.arrayBuffer()) : await file.text();
    const { found, fresh, unread } = await state.importChats(text);
    if (!found) {
      state.note.value = t("error.import", { name: file.name });
      return;
    }
    const lines = [t("imported", { n: number(fresh) })];
    if (found > fresh) lines.push(t("imported.known", { n: number(found - fresh) }));
    if (unread) lines.push(t("imported.unread", { n: number(unread) }));
    imported.value = lines.join(" ");
  } catch (e) {
    state.note.value = t("error.importFile", { name: file.name, why: state.said(e) });
  }
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
  const isOpen = menuOf.value?.chat.id === chat.id;
  return (
    <li class={`${is ? "current" : ""}${isOpen ? " with-acts" : ""}`}>
      <button type="button" class="open" title={title} aria-current={is ? "page" : undefined} onClick={() => void state.open(chat.id)}>
        {runs && <span class="dot" role="img" aria-label={t("running")} />}
        {title}
      </button>
      <button
        type="button"
        class="bare acts-of"
        title={t("actions")}
        aria-label={t("actions.of", { title })}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        onClick={e => {
          const box = e.currentTarget.getBoundingClientRect();
          menuOf.value = isOpen ? null : { chat, x: box.left, y: box.bottom };
        }}
      >
        <Icon name="more" />
      </button>
    </li>
  );
}

/** What can be done with a conversation. */
function Menu() {
  const box = useRef<HTMLDivElement>(null);
  const open = menuOf.value;
  useLayoutEffect(() => {
    const menu = box.current;
    if (!menu || !open) return;
    // It stays within the window.
    menu.style.left = `${Math.max(4, Math.min(open.x, innerWidth - menu.offsetWidth - 4))}px`;
    menu.style.top = `${Math.max(4, Math.min(open.y + 4, innerHeight - menu.offsetHeight - 4))}px`;
    menu.querySelector("button")?.focus();
    const away = (e: Event) => {
      if (!menu.contains(e.target as Node) && !(e.target as Element).closest?.(".acts-of")) menuOf.value = null;
    };
    addEventListener("pointerdown", away);
    return () => removeEventListener("pointerdown", away);
  }, [open]);
  if (!open) return null;
  const { chat } = open;
  const title = chat.title || t("untitled");
  const close = () => {
    menuOf.value = null;
  };
  const onKeyDown = (e: KeyboardEvent) => {
    const items = [...box.current!.querySelectorAll("button")];
    const at = items.indexOf(document.activeElement as HTMLButtonElement);
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      items[(at + (e.key === "ArrowDown" ? 1 : items.length - 1)) % items.length]!.focus();
    } else if (e.key === "Escape" || e.key === "Tab") {
      e.preventDefault();
      close();
      document.querySelector<HTMLElement>(`[aria-label="${CSS.escape(t("actions.of", { title }))}"]`)?.focus();
    }
  };
  const item = (key: "rename" | "export" | "delete", icon: "edit" | "save" | "delete", act: () => void) => (
    <button
      type="button"
      role="menuitem"
      class={key === "delete" ? "bad" : ""}
      onClick={() => {
        close();
        act();
      }}
    >
      <Icon name={icon} /> {t(key)}
    </button>
  );
  return (
    <div ref={box} class="popup" role="menu" aria-label={t("actions.of", { title })} onKeyDown={onKeyDown}>
      {item("rename", "edit", () => (renaming.value = chat.id))}
      {item("export", "save", () => void state.exportChats(chat).then(x => download(fileName(title), x)))}
      {item("delete", "delete", () => confirmDeletion(t("delete.sure", { title }), () => void state.remove(chat)))}
    </div>
  );
}

/** Conversations by their day, the newest first. */
function groups(all: Chat[]): { name: string; chats: Chat[] }[] {
  const today = new Date().setHours(0, 0, 0, 0);
  const day = 86_400_000;
  const nameOf = (at: number) => {
    if (at >= today) return t("day.today");
    if (at >= today - day) return t("day.yesterday");
    if (at >= today - 6 * day) return t("day.week");
    if (at >= today - 29 * day) return t("day.month");
    return new Date(at).toLocaleDateString(language.value, { month: "long", year: "numeric" });
  };
  const out: { name: string; chats: Chat[] }[] = [];
  for (const chat of all) {
    const name = nameOf(chat.updated);
    if (out.at(-1)?.name !== name) out.push({ name, chats: [] });
    out.at(-1)!.chats.push(chat);
  }
  return out;
}

export function Sidebar() {
  const file = useRef<HTMLInputElement>(null);
  const wanted = found.value;
  const all = state.chats.value.filter(c => !wanted || wanted.has(c.id));
  useEffect(() => {
    menuOf.value = null;
  }, [state.current.value]);
  return (
    <nav id="side" aria-label={t("conversations")}>
      <p class="brand"><Mark /> Octet</p>
      <button type="button" id="new" onClick={() => void state.open(null).then(focusComposer)}><Icon name="new" /> {t("new")}</button>
      <input id="search" type="search" placeholder={t("search")} aria-label={t("search")} value={query.value} onInput={e => search(e.currentTarget.value)} />
      <div class="list" onScroll={() => (menuOf.value = null)}>
        {all.length === 0 && <p class="dim small">{wanted ? t("search.none") : t(state.onServer.value ? "conversations.noneServer" : "conversations.none")}</p>}
        {groups(all).map(group => (
          <section key={group.name} aria-label={group.name}>
            <h2>{group.name}</h2>
            <ul>{group.chats.map(chat => <Entry key={chat.id} chat={chat} />)}</ul>
          </section>
        ))}
      </div>
      <p class="small dim imported" role="status">{imported.value}</p>
      <div class="row">
        <button type="button" id="export" class="bare" disabled={!state.chats.value.length} onClick={() => void state.exportChats().then(x => download(fileName("conversations"), x))}>{t("export.all")}</button>
        <button type="button" id="import" class="bare" title={t("import.hint")} onClick={() => file.current?.click()}>{t("import")}</button>
        <input ref={file} type="file" accept="application/json,.json,.jsonl,.zip" hidden aria-label={t("import.file")} onChange={e => void importFile(e.currentTarget)} />
      </div>
      <Menu />
    </nav>
  );
}
