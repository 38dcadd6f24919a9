// The calls of tools in an answer: name, arguments and result of each, and what can be done about it.
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { give, isCalled, results, run } from "../calls.ts";
import { t } from "../i18n.ts";
import { allow, serverTool, toolOf } from "../tools.ts";
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
  const ofServer = tool ? undefined : serverTool(call);
  const canRun = ofServer || (tool && tool.kind !== "manual");
  // It runs by itself.
  const alone = busy.value || isCalled(m, call);
  const start = () => {
    busy.value = true;
    void run(m, call).finally(() => (busy.value = false));
  };
  return (
    <section class={`call${result?.failed ? " failed" : ""}`} aria-label={t("call", { name: call.name })}>
      <h4><code>{call.name}</code>{ofServer && <span class="small dim"> {t("call.of", { server: ofServer.server })}</span>}</h4>
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
            {canRun && <button type="button" class="main" disabled={alone} onClick={start}>{alone ? t("call.running") : t("call.run")}</button>}
            {canRun && !alone && <button type="button" onClick={() => { allow(call); start(); }}>{t("call.always")}</button>}
            <button type="button" onClick={() => give(m, call, { text: text.current?.value ?? "", failed: false })}>{t("call.give")}</button>
            {!alone && <button type="button" onClick={() => give(m, call, { text: t("call.declined"), failed: true })}>{t("call.decline")}</button>}
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
