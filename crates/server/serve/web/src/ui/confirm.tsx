// Asks before something is deleted.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n.ts";

const asked = signal<{ text: string; act: () => void } | null>(null);

/** Asks, and deletes if the answer is yes. */
export function confirmDeletion(text: string, act: () => void) {
  asked.value = { text, act };
}

export function Confirm() {
  const dialog = useRef<HTMLDialogElement>(null);
  const what = asked.value;
  useEffect(() => {
    if (what) dialog.current?.showModal();
  }, [what]);
  if (!what) return null;
  return (
    <dialog ref={dialog} aria-labelledby="confirm" onClose={() => (asked.value = null)}>
      <p id="confirm">{what.text}</p>
      <div class="row">
        <button type="button" onClick={() => dialog.current?.close()}>{t("cancel")}</button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            dialog.current?.close();
            what.act();
          }}
        >
          {t("delete")}
        </button>
      </div>
    </dialog>
  );
}
