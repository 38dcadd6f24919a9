// The page in a browser, against the real server with the model inside. Called by run.py.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { answered, AxeBuilder, eventually, focused, fresh, holding, idle, launch, long, saying, send, setExtra, shows, start, startNode, stored, TEST, toolServer } from "./setup.mjs";

let octet, url, browser, tools, mcp, mcpUrl;

before(async () => {
  tools = await toolServer();
  const everything = join(process.env.PACKAGES, "@modelcontextprotocol/server-everything/dist/index.js");
  ({ child: mcp, url: mcpUrl } = await startNode([everything, "streamableHttp"]));
  const started = await start(process.env.OCTET, ["serve", "--port", "0", "--seed", "1", "--page-connect", tools.url, "--page-connect", mcpUrl], /listening at (http:\S+)\s/);
  octet = started.child;
  url = started.match[1];
  browser = await launch();
});

after(async () => {
  await browser?.close();
  for (const child of [octet, mcp]) {
    child?.removeAllListeners("exit");
    child?.kill("SIGKILL");
  }
  tools?.server.closeAllConnections();
  tools?.server.close();
});

/** A test with a page of its own; at its end nothing may have gone wrong in it. `held` is where its answers wait until it calls `go`. The
 *  options may be made when the servers run. */
function on(name, options, work) {
  test(name, TEST, async () => {
    const { held, ...more } = typeof options === "function" ? options() : options;
    const way = held && (await holding(url, held));
    const { context, page, problems } = await fresh(browser, way?.url ?? url, { allowed: [tools.url, mcpUrl], ...more });
    try {
      await work(page, way?.go);
      assert.deepEqual(problems, []);
    } catch (e) {
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, "failed.png") });
      throw e;
    } finally {
      way?.go();
      await context.close();
      way?.server.close();
    }
  });
}

/** In the midst of an answer: after so many words of it. */
const WORDS = { event: /"content":"[^"]/, times: 40 };

const texts = (page, selector) => page.locator(selector).allInnerTexts();

on("an answer streams, with its figures, and is kept", {}, async page => {
  await send(page, "Tell me a story about a fox.");
  await answered(page);
  const stats = await shows(page, ".stats", /\d+ tokens · [\d,.]+ tokens\/s · first token after .* · \d+ of \d+ prompt tokens from cache/);
  const text = await page.innerText("article.assistant .md");
  assert.ok(text.length > 50, text);
  await shows(page, ".think summary", /Reasoned for/);
  await stored(page);
  await page.reload();
  await answered(page);
  await shows(page, "article.assistant .md", text);
  await shows(page, ".stats", stats);
});

on("Stop keeps what came, with figures, and Continue goes on", { settings: long(2000), held: WORDS }, async (page, go) => {
  await send(page, "Tell me a story about a bear.");
  await page.waitForSelector("article.assistant .md p");
  await page.press("#prompt", "Escape");
  await answered(page, "stopped");
  const before = await page.innerText("article.assistant .md");
  const stats = await shows(page, ".stats", /\d+ tokens · .*stopped/);
  assert.ok(Number(/([\d,]+) tokens/.exec(stats)[1].replace(",", "")) < 2000, stats);
  await idle(url);
  go();
  await setExtra(page, '{"max_tokens": 20, "ignore_eos": true}');
  await page.click("text=Continue");
  await answered(page);
  await eventually(() => page.innerText("article.assistant .md"), after => assert.ok(after.startsWith(before.slice(0, 40)) && after.length > before.length, `${before} -> ${after}`));
});

on("a reload in mid-answer loses nothing", { settings: long(600), held: WORDS }, async (page, go) => {
  await send(page, "Tell me a story about a wolf.");
  await page.waitForSelector("article.assistant .md p");
  assert.equal(await page.getAttribute("article.assistant", "data-state"), "running");
  const begun = (await page.innerText("article.assistant .md")).slice(0, 60);
  await stored(page);
  await page.reload();
  await answered(page, "running");
  go();
  await answered(page);
  await shows(page, ".stats", /600 tokens/);
  const text = await page.innerText("article.assistant .md");
  assert.ok(text.startsWith(begun.slice(0, 30)), `${begun} -> ${text.slice(0, 100)}`);
});

on("what came stays when the server has forgotten the stream", { settings: long(2000), held: WORDS }, async page => {
  await page.route("**/streams/**", route => route.fulfill({ status: 404, body: "{}" }));
  await send(page, "Tell me a story about a hare.");
  await page.waitForSelector("article.assistant .md p");
  const kept = async () => (await stored(page)).find(m => m.role === "assistant").text;
  const begun = await eventually(kept, text => assert.ok(text.length >= 20, text));
  await page.reload();
  await answered(page, "cut");
  await eventually(() => page.innerText("article.assistant .md"), text => assert.ok(text.startsWith(begun.slice(0, 20)), `${begun} -> ${text}`));
  await page.waitForSelector("text=Continue");
});

on("a long prompt shows how far it is read", { settings: { sampling: { max_tokens: 5 } }, held: { event: /"prompt_progress"/ } }, async (page, go) => {
  const words = Array.from({ length: 2500 }, (_, i) => `fox${i % 7}`).join(" ");
  await page.setInputFiles("#files", { name: "words.txt", mimeType: "text/plain", buffer: Buffer.from(words.slice(0, 9000)) });
  await page.waitForSelector(".files li:not(.wait)");
  await page.waitForSelector(".files .wait", { state: "detached" });
  await send(page, "Summarise it.");
  await page.waitForSelector("progress");
  go();
  await answered(page);
});

on("an answer in another conversation is taken up too", { settings: long(500), held: WORDS }, async (page, go) => {
  await send(page, "Tell me a story about a mole.");
  await page.waitForSelector("article.assistant .md p");
  await page.click("#new");
  await page.waitForSelector("#side .dot");
  await stored(page);
  await page.reload();
  await page.waitForSelector("#side .dot");
  go();
  await page.waitForSelector("#side .dot", { state: "detached" });
  await page.click("#side .open");
  await answered(page);
  await shows(page, ".stats", /500 tokens/);
});

on("an edit and a new answer are further versions", { settings: { sampling: { max_tokens: 40 } } }, async page => {
  await send(page, "What is the capital of France?");
  await answered(page);
  await page.click('[aria-label="Regenerate"]');
  await page.waitForSelector("text=2/2");
  await answered(page);
  await page.click('article.user [aria-label="Edit"]');
  await page.fill(".edit textarea", "What is the capital of Italy?");
  await page.press(".edit textarea", "Control+Enter");
  await shows(page, "article.user .body", /Italy/);
  await answered(page);
  await page.click('article.user [aria-label="Previous version"]');
  await shows(page, "article.user .body", /France/);
  // The branch below is as it was left.
  await shows(page, "article.assistant .versions", /2\/2/);
  await page.click('article.assistant [aria-label="Previous version"]');
  await shows(page, "article.assistant .versions", /1\/2/);
  await stored(page);
  await page.reload();
  await shows(page, "article.user .versions", /1\/2/);
});

const RICH = "# Title\n\n| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n```rust\nfn main() { println!(\"hi\"); }\n```\n\nInline $x^2$ and\n\n$$\\frac{1}{2}$$\n\nHTML: <img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script> [a](javascript:window.hacked=3) ![p](https://example.com/p.png) <b>bold</b>\n\n```html\n<script>window.hacked=4</script>\n```";

on("Markdown, code, tables and maths are drawn, and what the model writes stays text", { settings: saying(RICH) }, async page => {
  await send(page, "Write it.");
  await answered(page);
  await shows(page, "article.assistant h1", "Title");
  assert.deepEqual(await texts(page, "article.assistant td"), ["1", "2"]);
  await shows(page, "code .hljs-keyword", "fn");
  await page.waitForSelector(".katex .mfrac");
  const all = await page.innerText("article.assistant .md");
  assert.ok(all.includes('<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>') && all.includes("<b>bold</b>"), all);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("article.assistant :is(img, script, b, iframe)").count(), 0);
  assert.equal(await page.locator('article.assistant a[href^="javascript"]').count(), 0);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.click(".code .copy >> nth=0");
  await eventually(() => page.evaluate(() => navigator.clipboard.readText()), text => assert.equal(text, 'fn main() { println!("hi"); }\n'));
});

const FORMULAS = "$$E=mc^2$$ where $m$ is mass.\n\nThen \\[ \\sum_{i=1}^n i \\] and more.\n\n$$\n\\frac{a}{b}\n$$\n\n- one\n- two\n\nIt costs $$ and nothing ends it.\n\n```\n$$code$$\n```\n\nSee[^a] and again[^a].\n\n[^a]: The note.";

on("formulas stand alone or in text, and take nothing along", { settings: saying(FORMULAS) }, async page => {
  await send(page, "Write it.");
  await answered(page);
  await eventually(() => page.locator("article.assistant .tex.display .katex").count(), n => assert.equal(n, 3));
  await eventually(() => page.locator("article.assistant .tex:not(.display) .katex").count(), n => assert.equal(n, 1));
  assert.deepEqual(await texts(page, "article.assistant .md li:not(.notes li)"), ["one", "two"]);
  const all = await page.innerText("article.assistant .md");
  assert.ok(all.includes("is mass.") && all.includes("and more.") && all.includes("It costs $$ and nothing ends it."), all);
  await shows(page, "article.assistant pre", /^\$\$code\$\$\s*$/);
  // Both references to one footnote have a way back.
  const ids = await page.$$eval("article.assistant .md [id]", all => all.map(e => e.id));
  assert.equal(new Set(ids).size, 3, ids.join());
  assert.equal(await page.locator("article.assistant .notes .note-ref").count(), 2);
});

on("what is said before the page has started is gone when it has", {}, async page => {
  assert.equal(await page.locator("#starting").count(), 0);
  assert.ok(await page.evaluate(() => document.documentElement.scrollHeight <= innerHeight));
});

test("the policy of the page stops scripts and other hosts", TEST, async () => {
  const { context, page } = await fresh(browser, url);
  const done = await page.evaluate(async () => {
    const out = {};
    const violation = new Promise(resolve => addEventListener("securitypolicyviolation", e => e.effectiveDirective === "connect-src" && resolve(e.blockedURI)));
    try {
      document.createElement("script").textContent = "window.hacked = 1";
    } catch (e) {
      out.script = e.name;
    }
    try {
      document.body.innerHTML = "<img src=x onerror=alert(1)>";
    } catch (e) {
      out.html = e.name;
    }
    out.fetch = await fetch("http://127.0.0.1:9/").then(() => "", e => e.name);
    out.blocked = await violation;
    return out;
  });
  assert.deepEqual(done, { script: "TypeError", html: "TypeError", fetch: "TypeError", blocked: "http://127.0.0.1:9/" });
  await context.close();
});

on("files are attached: code, PDF, and images are refused with the reason", { settings: { sampling: { max_tokens: 10 } } }, async page => {
  const other = await page.context().newPage();
  await other.setContent("<h1>Invoice 4711</h1><p>of a hedgehog</p>");
  const pdf = await other.pdf();
  await other.close();
  await page.setInputFiles("#files", [
    { name: "main.py", mimeType: "text/x-python", buffer: Buffer.from("print('```')\n") },
    { name: "bill.pdf", mimeType: "application/pdf", buffer: pdf },
    { name: "photo.png", mimeType: "image/png", buffer: Buffer.from("\x89PNG\0", "latin1") },
  ]);
  await page.waitForSelector('.files li:has-text("bill.pdf")');
  await shows(page, "#note", /photo\.png cannot be attached: fox does not read images/);
  // While one is read, nothing is sent.
  await page.waitForSelector(".files .wait", { state: "detached" });
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), send(page, "What is it?")]);
  const { content } = JSON.parse(request.postData()).messages.at(-1);
  assert.ok(content.startsWith("main.py:\n````\nprint('```')\n\n````\n\nbill.pdf:\n```\nInvoice 4711"), content);
  assert.ok(content.includes("of a hedgehog") && content.endsWith("What is it?"), content);
  await answered(page);
  assert.deepEqual((await texts(page, "article .file summary")).map(t => t.split(" ")[0]), ["main.py", "bill.pdf"]);
});

const weather = { id: "w", kind: "http", enabled: true, auto: false, name: "get_weather", description: "The weather of a city", method: "POST", headers: "x-key: 1",
  schema: '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}' };
const mustCall = '{"tool_choice": "required", "max_tokens": 400, "chat_template_kwargs": {"enable_thinking": false}}';

const ownTool = () => ({ settings: { extra: mustCall, tools: [{ ...weather, url: `${tools.url}/weather` }] } });
on("a tool of the user's own is called over HTTP, and its result goes back", ownTool, async page => {
  await send(page, "What is the weather in Paris?");
  await shows(page, ".call h4", "get_weather");
  const args = JSON.parse(await page.innerText(".call pre"));
  assert.equal(typeof args.city, "string");
  await setExtra(page, '{"max_tokens": 30}');
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), page.click('.call button:has-text("Run")')]);
  await shows(page, ".call .result", /"weather": "sunny"/);
  assert.deepEqual(tools.asked.map(a => [a.path, JSON.parse(a.body), a.key]), [["/weather", args, "1"]]);
  const sent = JSON.parse(request.postData()).messages;
  assert.equal(sent.at(-1).role, "tool");
  assert.equal(sent.at(-1).tool_call_id, sent.at(-2).tool_calls[0].id);
  await page.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  await answered(page);
});

const farTool = () => {
  const tool = { id: "m", kind: "mcp", enabled: true, auto: false, name: "everything", description: "", schema: "", method: "POST", headers: "", url: `${mcpUrl}/mcp` };
  const extra = '{"tool_choice": {"type": "function", "function": {"name": "get-structured-content"}}, "chat_template_kwargs": {"enable_thinking": false}}';
  return { settings: { extra, tools: [tool] } };
};
on("a tool of another MCP server is called", farTool, async page => {
  await send(page, "What is the weather in Chicago?");
  // Its one argument is a choice of three: however the model samples, the call ends.
  await shows(page, ".call h4", "get-structured-content");
  await setExtra(page, '{"max_tokens": 10}');
  await page.click('.call button:has-text("Run")');
  await shows(page, ".call .result", /"temperature":\s*\d+/);
  await page.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  await answered(page);
});

on("structured output follows the schema", { settings: { schemaOn: true, schema: '{"type":"object","properties":{"n":{"enum":[7]}},"required":["n"],"additionalProperties":false}', thinking: "off" } }, async page => {
  await send(page, "Describe a fox as JSON.");
  await answered(page);
  await eventually(() => page.innerText("article.assistant .md"), text => assert.deepEqual(JSON.parse(text), { n: 7 }));
});

on("a reply of reasoning alone says so", { settings: { sampling: { max_tokens: 5 }, thinking: "on" } }, async page => {
  await send(page, "Tell me a story about a fox.");
  await answered(page);
  await shows(page, "article.assistant", /The model reasoned and gave no answer/);
  await page.click(".think summary");
  await page.waitForSelector(".think .md p");
});

on("the heat map is what /experts counts", {}, async page => {
  await page.click("#open-experts");
  const read = () => page.evaluate(async () => (await fetch("experts?model=fox")).json());
  await page.waitForSelector("aside");
  await idle(url);
  const was = await read();
  await send(page, "Tell me a story about an owl.");
  await answered(page);
  await page.selectOption('aside select >> nth=0', { label: 'Answer to “Tell me a story about an owl.”' });
  const now = await read();
  await page.click("aside details summary");
  const expected = now.layers.map((l, i) => l.counts.map((n, e) => n - was.layers[i].counts[e]));
  await eventually(async () => (await texts(page, "td.raw")).map(row => row.split(" ").map(Number)), shown => assert.deepEqual(shown, expected));
  assert.ok(expected.flat().some(n => n > 0));
  // The picture says the same: the busiest expert of each layer is the darkest, an unused one is empty.
  const drawn = () => page.evaluate(() => {
    const canvas = document.querySelector("aside canvas");
    const rows = document.querySelectorAll("td.raw").length;
    const columns = document.querySelector("td.raw").textContent.split(" ").length;
    const context = canvas.getContext("2d");
    const [w, h] = [canvas.width / columns, canvas.height / rows];
    return Array.from({ length: rows }, (_, y) => Array.from({ length: columns }, (_, x) => context.getImageData(Math.floor((x + 0.4) * w), Math.floor((y + 0.4) * h), 1, 1).data[3]));
  });
  await eventually(drawn, alpha => expected.forEach((row, y) => {
    const most = Math.max(...row, 1);
    row.forEach((n, x) => {
      const wanted = n === 0 ? 0 : 255 * (0.08 + 0.92 * (n / most));
      assert.ok(Math.abs(alpha[y][x] - wanted) < 3, `layer ${y}, expert ${x}: ${alpha[y][x]} for ${n} of ${most}`);
    });
  }));
});

on("each token is coloured by the experts that chose it", { settings: { sampling: { temperature: 0, max_tokens: 40 }, thinking: "off" } }, async page => {
  await page.click("#open-experts");
  await page.waitForSelector("aside select");
  await send(page, "Tell me a story about an owl.");
  await answered(page);
  await page.waitForSelector(".words span:nth-child(40)");
  // The server says the same to any client.
  const asked = { model: "fox", messages: [{ role: "user", content: "Tell me a story about an owl." }], temperature: 0, max_tokens: 40, chat_template_kwargs: { enable_thinking: false }, return_routed_experts: true };
  const { message, routed_experts: routed } = await page.evaluate(async body => {
    const response = await fetch("v1/chat/completions", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
    return (await response.json()).choices[0];
  }, asked);
  assert.deepEqual([routed.layers, routed.experts_per_token, routed.tokens.length], [8, 4, 40]);
  const spans = read => page.$$eval(".words span", (all, read) => all.map(span => (read === "text" ? span.textContent : Number(span.style.getPropertyValue("--hue")))), read);
  await eventually(() => spans("text"), shown => assert.deepEqual(shown, routed.tokens));
  assert.equal(routed.tokens.join("").trim(), message.content.trim());
  const raw = Buffer.from(routed.experts, "base64");
  const of = (token, layer) => [0, 1, 2, 3].map(k => raw.readUInt16LE(2 * ((token * 8 + layer) * 4 + k)));
  // The pointer is on a word until something above it grows.
  const pointed = async () => {
    await page.hover(".words span:nth-child(8)");
    return (await page.innerText(".detail")).split("\n");
  };
  await eventually(pointed, detail => {
    assert.ok(detail[0].startsWith(JSON.stringify(routed.tokens[7])), detail[0]);
    for (let layer = 0; layer < 8; layer++) assert.ok(detail[1 + layer].startsWith(`Layer ${layer}: ${of(7, layer).join(", ")} · shared expert 0.`), detail[1 + layer]);
  });
  await eventually(() => spans("hue"), hues => assert.ok(new Set(hues).size > 1, "several groups"));
  await page.selectOption(".word-map select", "3");
  await eventually(() => spans("hue"), hues => assert.deepEqual(hues, routed.tokens.map((_, token) => (of(token, 3)[0] * 360) / 32)));
  await page.focus(".words");
  await page.keyboard.press("ArrowRight");
  await shows(page, ".detail", /^"[^\n]*\nLayer 3: /);
  await shows(page, ".gates", /Weight of the shared expert by layer: mean 0\.\d\d/);
});

on("performance and API show figures and a request that works", { settings: { sampling: { max_tokens: 20 }, thinking: "off" } }, async page => {
  await page.click("#open-performance");
  await send(page, "Hello");
  await answered(page);
  await page.waitForSelector('.chart[data-metric="performance.generated"]');
  await eventually(() => page.locator(".chart").count(), count => assert.ok(count >= 10, `${count} charts`));
  await eventually(() => page.innerText('.chart[data-metric="performance.memory"] strong'), memory => assert.ok(parseFloat(memory) > 0.02 && memory.endsWith("GiB"), memory));
  // The limit is measured when the model rests.
  await page.waitForSelector('.chart[data-metric="performance.bandwidth"] .limit', { state: "attached" });
  await shows(page, '.chart[data-metric="performance.bandwidth"]', /highest average [\d.,]+ GB\/s, [\d,]+% of [\d.,]+ GB\/s/);
  await page.click("#open-api");
  await shows(page, "aside .code pre", /^curl --no-buffer http:\/\/127\.0\.0\.1:\d+\/v1\/chat\/completions/);
  await page.click("aside [role=radio]:has-text('Python')");
  await shows(page, "aside .code pre", /from openai import OpenAI/);
  await page.fill("#api-body", '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}');
  await page.click('aside button:has-text("Send")');
  await page.waitForFunction(() => document.querySelector("#api-answer")?.value.includes("chat.completion"));
});

on("the performance panel shows what was before the page was opened", {}, async page => {
  const body = JSON.stringify({ messages: [{ role: "user", content: "Hello" }], max_tokens: 40, ignore_eos: true });
  const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  assert.equal(answer.status, 200);
  // The server takes its next sample within ten seconds.
  await page.waitForFunction(async () => {
    const history = await (await fetch("metrics/history")).json();
    const generated = history.series["vllm:generation_tokens_total"];
    return history.ages_s.length === generated.length && Math.max(...generated) > Math.min(...generated);
  }, null, { polling: 500 });
  // From here on nothing is generated: what the page draws is what the server kept.
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#model")?.value);
  await page.click("#open-performance");
  await shows(page, '.chart[data-metric="performance.generated"] .axis span:last-child', /highest average 0*\.?0*[1-9]/);
});

on("models are unloaded and loaded", {}, async page => {
  // A model is given back when nobody uses it any more.
  await idle(url);
  await page.click("#open-settings");
  await page.click("#scope-page");
  await page.click('aside button:has-text("Unload")');
  await page.waitForSelector('aside button:text-is("Load")');
  await page.click('aside button:text-is("Load")');
  await page.waitForSelector('aside button:has-text("Unload")');
});

on("conversations are searched, renamed, exported, deleted and imported", { settings: { sampling: { max_tokens: 8 }, thinking: "off" } }, async page => {
  await send(page, "First about hedgehogs");
  await answered(page);
  await page.click("#new");
  await send(page, "Second about owls");
  await answered(page);
  await page.press("#prompt", "Control+k");
  await focused(page, "#search");
  await page.keyboard.type("hedgehog");
  await page.waitForFunction(() => document.querySelectorAll("#side li").length === 1);
  await page.fill("#search", "");
  await page.waitForFunction(() => document.querySelectorAll("#side li").length === 2);
  const act = async (title, name) => {
    await page.hover(`#side li:has-text("${title}")`);
    await page.click(`[aria-label="Actions for ${title}"]`);
    await page.click(`[role=menuitem]:has-text("${name}")`);
  };
  await act("Second about owls", "Rename");
  await focused(page, ".rename");
  await page.keyboard.type("Owls & co");
  await page.keyboard.press("Enter");
  await page.waitForSelector('#side .open:has-text("Owls & co")');
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#export")]);
  const exported = readFileSync(await file.path(), "utf8");
  assert.equal(JSON.parse(exported).messages.length, 4);
  await act("Owls & co", "Delete");
  await page.click("dialog .danger");
  await page.waitForFunction(() => document.querySelectorAll("#side li").length === 1);
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#import")]);
  await chooser.setFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(exported.replaceAll("Second about owls", "<img src=x onerror=window.hacked=1>")) });
  // What is here already is not there twice.
  await page.waitForFunction(() => document.querySelectorAll("#side li").length === 2);
  await page.click('#side .open:has-text("Owls & co")');
  await page.waitForSelector("article.assistant");
  await shows(page, "article.user .body", "<img src=x onerror=window.hacked=1>");
  assert.equal(await page.evaluate(() => window.hacked), undefined);
});

on("what the page before this one kept is taken over", {}, async page => {
  const old = { id: "ab", title: "Old", updated: 5, messages: [{ role: "user", content: "Question" }, { role: "assistant", content: "Reply", reasoning: "Hm" }] };
  await page.evaluate(chat => localStorage.setItem("octet.chat.ab", JSON.stringify(chat)), old);
  await page.reload();
  await page.click('#side .open:has-text("Old")');
  await shows(page, "article.assistant .md", "Reply");
  assert.equal(await page.evaluate(() => localStorage.getItem("octet.chat.ab")), null);
});

on("German, dark, and by keyboard alone", { options: { locale: "de-DE", colorScheme: "light" }, settings: { sampling: { max_tokens: 8 } } }, async page => {
  await shows(page, "#new", "Neue Unterhaltung");
  await page.waitForSelector("html[lang=de]");
  await focused(page, "#prompt");
  await page.keyboard.type("Hello");
  await page.keyboard.press("Enter");
  await answered(page);
  await page.keyboard.press("Control+,");
  await page.click("#scope-page");
  await page.selectOption("#theme", "dark");
  await eventually(() => page.evaluate(() => getComputedStyle(document.body).backgroundColor), back => assert.equal(back, "rgb(23, 24, 27)"));
  await page.selectOption("#language", "en");
  await shows(page, "#new", "New conversation");
});

for (const colorScheme of ["light", "dark"]) {
  on(`axe finds nothing (${colorScheme})`, { options: { colorScheme }, settings: saying(RICH) }, async page => {
    await send(page, "Write it.");
    await answered(page);
    await page.waitForSelector(".katex");
    for (const panel of ["experts", "performance", "api", "settings"]) {
      await page.click(`#open-${panel}`);
      if (panel === "performance") await page.waitForSelector(".chart");
      const { violations } = await new AxeBuilder({ page }).withTags(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]).analyze();
      assert.deepEqual(violations.map(v => `${panel}: ${v.id} ${v.nodes.map(n => n.target).slice(0, 3)}`), []);
    }
  });
}

const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };
on("a phone: nothing sticks out, the header is small, panels and list open and close", { options: phone }, async page => {
  await send(page, "Tell me a story about a fox.");
  await answered(page);
  const measured = () => page.evaluate(() => ({ wide: document.documentElement.scrollWidth, header: document.querySelector("header").offsetHeight, log: document.querySelector("#log").offsetHeight, all: innerHeight }));
  await eventually(measured, sizes => {
    assert.ok(sizes.wide <= 390, `${sizes.wide} wide`);
    assert.ok(sizes.header <= sizes.all / 14, `a header of ${sizes.header}`);
    assert.ok(sizes.log >= sizes.all * 0.75, `messages of ${sizes.log}`);
  });
  await page.tap(".menu-button");
  await page.tap("#side .open");
  await page.waitForSelector(".with-menu", { state: "detached" });
  await page.tap("#open-experts");
  await page.waitForSelector("aside");
  await eventually(measured, sizes => assert.ok(sizes.wide <= 390, `${sizes.wide} wide`));
  await page.tap("aside .panel-head button");
  await page.waitForSelector("aside", { state: "detached" });
});

on("the first load is small and soon ready", {}, async page => {
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  await client.send("Network.setCacheDisabled", { cacheDisabled: true });
  let bytes = 0;
  client.on("Network.loadingFinished", e => (bytes += e.encodedDataLength));
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#model")?.value);
  await eventually(() => bytes, n => assert.ok(n > 10_000, `${n} bytes`));
  assert.ok(bytes < 400 * 1024, `${bytes} bytes`);
  // For the reader: a busy machine is no reason to fail.
  console.log(`first load: ${bytes} bytes, ready after ${Math.round(await page.evaluate(() => performance.now()))} ms`);
});

/** A test of a program of its own, with a page of its own. */
function onOther(name, args, options, work) {
  test(name, TEST, async () => {
    const { child, match } = await start(process.env.OCTET, args(), /listening at (http:\S+)\s/);
    try {
      const { context, page, problems } = await fresh(browser, match[1], options);
      await work(page);
      assert.deepEqual(problems, []);
      await context.close();
    } finally {
      child.removeAllListeners("exit");
      child.kill("SIGKILL");
    }
  });
}

onOther("octet run --web serves the page", () => ["run", "--web", "--port", "0"], {}, async page => {
  assert.equal(await page.inputValue("#model"), "fox");
});

function routed() {
  const file = join(process.cwd(), "routes.yaml");
  writeFileSync(file, `model_list:\n- model_name: far\n  litellm_params: {model: openai/fox, api_base: "${url}/v1", api_key: none}\n`);
  return ["serve", "--config", file, "--port", "0"];
}

onOther("a routed answer says who answered; another server gets no fields of ours", routed, { settings: { sampling: { max_tokens: 60 } } }, async page => {
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), send(page, "Tell me a story about a fox.")]);
  const fields = Object.keys(JSON.parse(request.postData())).sort();
  assert.deepEqual(fields, ["max_tokens", "messages", "model", "stream", "stream_options"]);
  await answered(page);
  await shows(page, ".stats", /60 tokens/);
  await page.click(".route-word");
  await shows(page, ".more", /Routed to far: far>far/);
  await page.click("#open-experts");
  await shows(page, "aside", /runs on another server/);
});
