// The calls of tools in an answer: name, arguments and result of each, and what can be done about it.
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { give, results, run } from "../calls.ts";
import { t } from "../i18n.ts";
import { toolOf } from "../tools.ts";
import type { Message, ToolCall } from "../types.ts";

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Call({ m, call, result }: { m: Message; call: ToolCall; result: Message | undefined }) {
  const busy = useRef(signal(false)).current;
  const text = useRef<HTMLTextAreaElement>(null);
  const tool = toolOf(call);
  const canRun = tool && tool.kind !== "manual";
  const start = () => {
    busy.value = true;
    void run(m, call).finally(() => (busy.value = false));
  };
  return (
    <section class={`call${result?.failed ? " failed" : ""}`} aria-label={t("call", { name: call.name })}>
      <h4><code>{call.name}</code></h4>
      <p class="small dim">{t("tools.arguments")}</p>
      <pre tabIndex={0}>{pretty(call.arguments)}</pre>
      {result ? (
        <>
          <p class="small dim">{result.failed ? t("call.failed") : t("call.result")}</p>
          <pre tabIndex={0} class="result">{pretty(result.text)}</pre>
        </>
      ) : (
        <>
          <label class="small">
            {t("call.byHand")}
            <textarea ref={text} rows={2} />
          </label>
          <div class="row">
            {canRun && <button type="button" class="main" disabled={busy.value} onClick={start}>{busy.value ? t("call.running") : t("call.run")}</button>}
            <button type="button" onClick={() => give(m, call, { text: text.current?.value ?? "", failed: false })}>{t("call.give")}</button>
          </div>
        </>
      )}
    </section>
  );
}

export function Calls({ m }: { m: Message }) {
  const given = results(m);
  return <>{m.calls?.map(call => <Call key={call.id} m={m} call={call} result={given.find(r => r.callId === call.id)} />)}</>;
}
