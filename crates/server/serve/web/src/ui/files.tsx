// Attached files, each with a button that takes it away.
import type { ComponentChildren } from "preact";
import { number, t } from "../i18n.ts";
import type { Attachment } from "../types.ts";
import { Icon } from "./icons.tsx";

export function Files({ files, remove, children }: { files: Attachment[]; remove: (file: Attachment) => void; children?: ComponentChildren }) {
  return (
    <ul class="files" aria-label={t("files")}>
      {files.map((a, i) => (
        <li key={i}>
          {a.kind === "image" ? <img src={a.text} alt="" /> : null}
          <span>{a.name} <span class="dim">{a.kind === "image" ? t("kibibytes", { n: number(Math.ceil(a.bytes / 1024)) }) : t("characters", { n: number(a.text.length) })}</span></span>
          <button type="button" class="bare" aria-label={t("file.remove", { name: a.name })} onClick={() => remove(a)}><Icon name="close" /></button>
        </li>
      ))}
      {children}
    </ul>
  );
}
