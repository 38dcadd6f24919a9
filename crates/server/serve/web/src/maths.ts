// Mathematics: loaded when the first formula is shown.
import katex from "katex";
import "katex/dist/katex.min.css";

const CHARS_MAX = 10_000;

/** Sets the formula of an element. What cannot be read stays as it was written. */
export function typeset(element: HTMLElement) {
  const source = element.textContent ?? "";
  if (source.length > CHARS_MAX) return;
  try {
    // It makes elements, not HTML: the page's policy allows their styles.
    katex.render(source, element, { displayMode: element.classList.contains("display"), throwOnError: true, trust: false, maxExpand: 200, maxSize: 20, strict: "ignore" });
    element.dataset.source = source;
  } catch {
    element.textContent = source;
    element.classList.add("unread");
  }
}
