// Shows HTML, SVG and Mermaid of an answer in a frame: a sandbox with an origin of its own and no network (frame.html, and its policy in
// the server). Text goes in as a message; the frame's height comes out.
import { t } from "./i18n.ts";

const HEIGHT_MAX = 720;
/** A library's message is some lines; this is no message. */
const WHY_CHARS_MAX = 4000;
const frames = new Map<Window, HTMLIFrameElement>();

interface FromFrame {
  octet?: "ready" | "height" | "failed";
  height?: number;
  why?: string;
}

addEventListener("message", e => {
  const frame = frames.get(e.source as Window);
  const said = e.data as FromFrame;
  if (!frame) return;
  if (said.octet === "ready") {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (document.documentElement.style.colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    frame.contentWindow?.postMessage({ kind: frame.dataset.kind, text: frame.dataset.text, dark }, "*");
  } else if (said.octet === "height" && typeof said.height === "number") {
    frame.style.height = `${Math.min(HEIGHT_MAX, Math.max(40, said.height))}px`;
  } else if (said.octet === "failed") {
    const block = frame.closest(".code")!;
    hide(block);
    const note = document.createElement("pre");
    note.className = "failed-preview";
    // Lines of their own: parsers point at a place of the line above.
    const why = String(said.why);
    // Else it repeats the whole text.
    const unknown = why.startsWith("No diagram type detected");
    note.textContent = t("preview.failed", { why: unknown ? t("preview.unknown") : `\n${why.slice(0, WHY_CHARS_MAX)}` });
    block.after(note);
  }
});

function hide(block: Element) {
  const frame = block.querySelector("iframe");
  if (frame?.contentWindow) frames.delete(frame.contentWindow);
  frame?.remove();
  block.querySelector("pre")?.removeAttribute("hidden");
  const button = block.querySelector("button.preview");
  if (button) button.textContent = t("preview");
}

/** Shows a block of code as what it describes, or as code again. */
export function togglePreview(block: Element) {
  if (block.querySelector("iframe")) hide(block);
  else show(block);
}

/** Shows a block of code as what it describes. */
export function show(block: Element) {
  const pre = block.querySelector("pre");
  if (!(block instanceof HTMLElement) || !pre || block.querySelector("iframe")) return;
  if (block.nextElementSibling?.classList.contains("failed-preview")) block.nextElementSibling.remove();
  const frame = document.createElement("iframe");
  // No scripts of the page, no storage, no forms, no windows.
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = t("preview.of", { kind: block.dataset.kind ?? "" });
  frame.dataset.kind = block.dataset.kind;
  frame.dataset.text = pre.textContent ?? "";
  frame.loading = "lazy";
  frame.src = "page/frame.html";
  pre.hidden = true;
  block.append(frame);
  if (frame.contentWindow) frames.set(frame.contentWindow, frame);
  const button = block.querySelector("button.preview");
  if (button) button.textContent = t("preview.code");
}
