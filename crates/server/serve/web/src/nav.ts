// What is open beside the messages, and the browser's history: Back closes a panel or the list before it leaves a conversation.
import { signal } from "@preact/signals";

export type Panel = "" | "settings" | "experts" | "performance" | "api";
export const panel = signal<Panel>("");
/** On a narrow screen: the list of conversations is open. */
export const menu = signal(false);

interface Entry {
  panel?: Panel;
  menu?: boolean;
  /** Below this entry is the same conversation with nothing open. */
  over?: boolean;
}

const entry = (): Entry => (history.state as Entry | null) ?? {};
const isOpen = () => Boolean(panel.peek() || menu.peek());

/** Called with the conversation in the address, after Back and Forward and after a change of the address by hand. */
export const travelled: ((id: string) => void)[] = [];

/** The page itself goes back, which takes a moment; what changes the history in the meantime waits. */
let returning = false;
const waiting: (() => void)[] = [];

function later(change: () => void) {
  if (returning) waiting.push(change);
  else change();
}

/** Puts what is open into the history. */
function record(wasOpen: boolean) {
  const now = { panel: panel.peek(), menu: menu.peek() };
  const open = isOpen();
  later(() => {
    if (!wasOpen && open) {
      history.pushState({ ...now, over: true }, "");
    } else if (wasOpen && !open && entry().over) {
      returning = true;
      history.back();
    } else {
      history.replaceState({ ...now, over: open && entry().over }, "");
    }
  });
}

export function setPanel(name: Panel) {
  const wasOpen = isOpen();
  panel.value = name;
  record(wasOpen);
}

export function setMenu(open: boolean) {
  const wasOpen = isOpen();
  menu.value = open;
  record(wasOpen);
}

/** The conversation in the address: its id behind the `#`. */
export const inAddress = () => location.hash.slice(1);

/** Goes to a conversation; the list closes. A new entry, or the one that the list was. */
export function navigate(id: string) {
  const wasMenu = menu.peek();
  menu.value = false;
  const next: Entry = { panel: panel.peek(), menu: false };
  later(() => {
    if (inAddress() === id) {
      if (wasMenu) record(true);
      return;
    }
    const url = id ? `#${id}` : location.pathname + location.search;
    if (wasMenu && entry().over) history.replaceState(next, "", url);
    else history.pushState(next, "", url);
  });
}

addEventListener("popstate", () => {
  if (returning) {
    returning = false;
    for (const change of waiting.splice(0)) later(change);
    return;
  }
  panel.value = entry().panel ?? "";
  menu.value = entry().menu ?? false;
  for (const f of travelled) f(inAddress());
});

// After a reload the history is still there.
panel.value = entry().panel ?? "";
