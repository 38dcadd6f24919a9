// What people do with the page every day: over a LAN, with what models write, with several conversations, with a key. Called by run.py.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { answered, AxeBuilder, eventually, focused, fresh, launch, saying, send, shows, start, stored, TEST } from "./setup.mjs";

/** A name that only the browser of these tests knows. */
const LAN = "octet.lan";
let octet, url, lan, browser;

before(async () => {
  const started = await start(process.env.OCTET, ["serve", "--host", "0.0.0.0", "--port", "0", "--seed", "1"], /listening at http:\S+:(\d+)\s/);
  octet = started.child;
  url = `http://127.0.0.1:${started.match[1]}`;
  lan = `http://${LAN}:${started.match[1]}`;
  browser = await launch(`--host-resolver-rules=MAP ${LAN} 127.0.0.1`);
});

after(async () => {
  await browser?.close();
  octet?.removeAllListeners("exit");
  octet?.kill("SIGKILL");
});

/** A test with a page of its own; at its end nothing may have gone wrong in it but what is `expected`. */
function on(name, { at = () => url, expected = /^$/, ...options }, work) {
  test(name, TEST, async () => {
    const { context, page, problems } = await fresh(browser, at(), options);
    try {
      await work(page, context);
      assert.deepEqual(problems.filter(p => !expected.test(p)), []);
    } catch (e) {
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, "failed.png") });
      throw e;
    } finally {
      await context.close();
    }
  });
}

const texts = (page, selector) => page.locator(selector).allInnerTexts();
const sent = async (page, work) => JSON.parse((await Promise.all([page.waitForRequest("**/v1/chat/completions"), work()]))[0].postData());

on("over a LAN, by a name and without HTTPS, messages are sent and text is copied", { at: () => lan, settings: saying("Hello from the **LAN**.\n\n```sh\nls\n```") }, async page => {
  assert.equal(await page.evaluate(() => isSecureContext), false);
  assert.equal(await page.evaluate(() => typeof crypto.randomUUID), "undefined");
  await send(page, "Hello?");
  await answered(page);
  await shows(page, "article.assistant .md p", "Hello from the LAN.");
  // There is no clipboard to read: what was copied is pasted.
  await page.click("article.assistant .code .copy");
  await shows(page, "article.assistant .code .copy", "Copied");
  await page.focus("#prompt");
  await page.keyboard.press("Control+V");
  await eventually(() => page.inputValue("#prompt"), text => assert.equal(text, "ls\n"));
  await page.fill("#prompt", "");
  await page.click('article.assistant [aria-label="Copy"]');
  await page.focus("#prompt");
  await page.keyboard.press("Control+V");
  await eventually(() => page.inputValue("#prompt"), text => assert.ok(text.startsWith("Hello from the **LAN**."), text));
  await page.reload();
  await answered(page);
});

const PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const WRITTEN = `3. three\n4. four\n\n- [x] done\n- [ ] to do\n- plain\n\nSee [the site](https://example.com/) and a note[^n].\n\n![pixel](${PIXEL}) ![far](https://example.com/far.png)\n\n[^n]: The note.\n`;

on("links open elsewhere, lists go on, tasks, footnotes and pictures are drawn", { settings: saying(WRITTEN) }, async page => {
  await send(page, "Write it.");
  await answered(page);
  assert.equal(await page.getAttribute("article.assistant ol", "start"), "3");
  const link = page.locator('article.assistant a[href="https://example.com/"]');
  assert.deepEqual([await link.getAttribute("target"), await link.getAttribute("rel")], ["_blank", "noopener noreferrer"]);
  assert.deepEqual(await texts(page, "li.task"), ["☑ done", "☐ to do"]);
  assert.equal(await page.locator("article.assistant img").count(), 1);
  await eventually(() => page.$eval("article.assistant img", img => img.naturalWidth), width => assert.equal(width, 1));
  // Another host's picture is a link: it is loaded when the reader wants it.
  assert.equal(await page.getAttribute('article.assistant a:text-is("far")', "href"), "https://example.com/far.png");
  const address = page.url();
  await page.click("article.assistant sup a");
  await focused(page, ".notes a.note-ref");
  await page.keyboard.press("Enter");
  await focused(page, "sup a.note-ref");
  assert.equal(page.url(), address);
  await shows(page, ".notes li", /^The note\./);
});

on("code is scrolled by keyboard", { settings: saying(`\`\`\`js\n${"x".repeat(400)}\n\`\`\``) }, async page => {
  await send(page, "Write it.");
  await answered(page);
  assert.equal(await page.getAttribute("article.assistant pre", "tabindex"), "0");
  assert.equal(await page.getAttribute("article.assistant .copy", "type"), "button");
  await page.focus("article.assistant pre");
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowRight");
  await eventually(() => page.$eval("article.assistant pre", pre => pre.scrollLeft), left => assert.ok(left > 0));
});

const HTML = '<button id="b" onclick="this.textContent = ++n">0</button><script>let n = 0; var out = []; try { parent.document.title } catch (e) { out.push(e.name) } try { localStorage } catch (e) { out.push(e.name) } fetch("/health").catch(() => out.push("fetch")); new Image().src = "https://example.com/spy.png"; document.title = "own"</script>';

on("HTML is tried out in a frame of its own, without network and without the page", { allowed: ["https://example.com"], expected: /Content Security Policy/, settings: saying(`\`\`\`html\n${HTML}\n\`\`\``) }, async (page, context) => {
  // What the browser would send: it also names requests that the policy stops.
  const asked = [];
  await context.route(/example\.com|health/, route => {
    asked.push(route.request().url());
    return route.abort();
  });
  await send(page, "Write it.");
  await answered(page);
  assert.equal(await page.locator("iframe").count(), 0);
  await page.click("article.assistant .preview");
  const frame = page.frameLocator("article.assistant iframe");
  await frame.locator("#b").click();
  await eventually(() => frame.locator("#b").innerText(), text => assert.equal(text, "1"));
  await eventually(() => frame.locator("#b").evaluate(() => out.slice().sort()), out => assert.deepEqual(out, ["SecurityError", "SecurityError", "fetch"]));
  assert.equal(await frame.locator("#b").evaluate(() => origin), "null");
  assert.deepEqual(asked, []);
  // WebRTC, which no policy of browsers stops, is not there, nor in a frame within it.
  assert.equal(await frame.locator("#b").evaluate(() => typeof RTCPeerConnection), "undefined");
  await frame.locator("#b").evaluate(() => {
    const inner = document.createElement("iframe");
    inner.srcdoc = "<p>inner</p>";
    document.body.append(inner);
  });
  await eventually(() => frame.locator("iframe").count(), n => assert.equal(n, 0));
  // It cannot go elsewhere either: what it knows would be in the address.
  await frame.locator("#b").evaluate(() => { location.href = "https://example.com/?secret"; });
  await page.click("article.assistant .preview");
  assert.equal(await page.locator("iframe").count(), 0);
  await page.waitForSelector("article.assistant pre:not([hidden])");
  assert.deepEqual(asked, []);
  assert.notEqual(await page.title(), "own");
});

const DIAGRAM = "```mermaid\nflowchart LR\n  A[den] --> B[dinner]\n```\n\n```svg\n<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 10 10'><circle id='c' r='5' cx='5' cy='5'/></svg>\n```\n";

on("Mermaid and SVG are drawn in such a frame; what cannot be drawn stays code", { settings: saying(DIAGRAM) }, async page => {
  await send(page, "Draw it.");
  await answered(page);
  const diagram = page.frameLocator('article.assistant .code[data-kind="mermaid"] iframe');
  await diagram.locator("svg .node >> nth=1").waitFor();
  await eventually(() => diagram.locator("svg").textContent(), text => assert.match(text, /den[^]*dinner/));
  // As high as what it shows.
  await eventually(() => page.$eval('.code[data-kind="mermaid"] iframe', f => f.clientHeight), height => assert.ok(height > 40 && height < 400, `${height}`));
  await page.click('.code[data-kind="svg"] .preview');
  await page.frameLocator('.code[data-kind="svg"] iframe').locator("#c").waitFor();
});

const WIDE = `\`\`\`mermaid\nflowchart LR\n${Array.from({ length: 14 }, (_, i) => `  n${i}[step number ${i}] --> n${i + 1}[step number ${i + 1}]`).join("\n")}\n\`\`\`\n\n\`\`\`mermaid\nflowchart TD\n${Array.from({ length: 14 }, (_, i) => `  n${i} --> n${i + 1}`).join("\n")}\n\`\`\``;

on("a diagram that is too wide or too high stays readable, and is scrolled", { settings: saying(WIDE) }, async page => {
  await send(page, "Draw it.");
  await answered(page);
  const scrolls = (nth, along) => eventually(
    () => page.frameLocator(`article.assistant .md > div:nth-child(${nth}) iframe`).locator("svg").evaluate(svg => ({
      letters: (16 * svg.getBoundingClientRect().width) / svg.viewBox.baseVal.width,
      x: document.documentElement.scrollWidth - innerWidth,
      y: document.documentElement.scrollHeight - innerHeight,
    })),
    ({ letters, ...left }) => assert.ok(letters >= 11 && left[along] > 100, JSON.stringify({ letters, left })),
  );
  await scrolls(1, "x");
  await scrolls(2, "y");
});

on("a broken diagram says why, and stays code", { settings: saying("```mermaid\nflowchart LR\n  A --> --> [\n```") }, async page => {
  await send(page, "Draw it.");
  await answered(page);
  // The whole of it, with the line that points at the place.
  await shows(page, ".failed-preview", /It cannot be drawn:\s+Parse error on line 2:[^]*\n-+\^\n[^]*got '\w+'$/);
  await page.waitForSelector(".code pre:not([hidden])");
});

on("a long paste becomes an attachment", { settings: { sampling: { max_tokens: 3 } } }, async page => {
  await page.focus("#prompt");
  const paste = text => page.evaluate(text => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, text);
  await paste("x".repeat(10_001));
  await shows(page, ".files li", /pasted\.txt 10,001 characters/);
  await paste("y".repeat(10_001));
  await shows(page, ".files li >> nth=1", /pasted 2\.txt/);
  await page.click('[aria-label="Remove pasted 2.txt"]');
  assert.equal(await page.inputValue("#prompt"), "");
  const body = await sent(page, () => send(page, "What is it?"));
  assert.ok(body.messages.at(-1).content.startsWith("pasted.txt:\n```\nxxxx"));
});

on("conversations have settings and drafts of their own; defaults stay apart", { settings: { sampling: { max_tokens: 4 }, thinking: "off", system: "Be brief." } }, async page => {
  let body = await sent(page, () => send(page, "First"));
  assert.deepEqual([body.messages[0], body.max_tokens], [{ role: "system", content: "Be brief." }, 4]);
  await answered(page);
  await page.click("#open-settings");
  await page.fill("#system", "Be a pirate.");
  await page.fill("[name=temperature]", "0.5");
  await page.keyboard.press("Tab");
  body = await sent(page, () => send(page, "Again"));
  assert.deepEqual([body.messages[0].content, body.temperature, body.max_tokens], ["Be a pirate.", 0.5, 4]);
  await answered(page);
  await page.fill("#prompt", "not sent yet");
  await eventually(() => page.evaluate(() => new Promise(resolve => {
    const opening = indexedDB.open("octet");
    opening.onsuccess = () => {
      const all = opening.result.transaction("chats").objectStore("chats").getAll();
      all.onsuccess = () => resolve(all.result[0].draft);
      opening.result.close();
    };
  })), draft => assert.equal(draft, "not sent yet"));
  await page.click("#new");
  await eventually(() => page.inputValue("#prompt"), text => assert.equal(text, ""));
  body = await sent(page, () => send(page, "Second"));
  assert.deepEqual([body.messages[0].content, body.temperature], ["Be brief.", undefined]);
  await answered(page);
  await page.click("#scope-defaults");
  await eventually(() => page.inputValue("#system"), text => assert.equal(text, "Be brief."));
  await page.fill("#system", "Be kind.");
  // The first has its own, the second takes the new default.
  body = await sent(page, () => send(page, "Third"));
  assert.equal(body.messages[0].content, "Be kind.");
  await answered(page);
  await page.click('#side .open:has-text("First")');
  await eventually(() => page.inputValue("#prompt"), text => assert.equal(text, "not sent yet"));
  await page.click("#scope-chat");
  await eventually(() => page.inputValue("#system"), text => assert.equal(text, "Be a pirate."));
  await page.click('fieldset:has(#system) button:has-text("Use the defaults")');
  await eventually(() => page.inputValue("#system"), text => assert.equal(text, "Be kind."));
  await page.waitForSelector(".gauge[aria-valuemax]");
});

on("settings show the defaults of a model that has answered, and what it had is counted", { settings: { sampling: { max_tokens: 4 } } }, async page => {
  await send(page, "Hello");
  await answered(page);
  await page.click("#open-settings");
  await eventually(() => page.getAttribute("[name=temperature]", "placeholder"), text => assert.match(text, /^\d/));
  await eventually(() => page.getAttribute("[name=max_tokens]", "placeholder"), text => assert.match(text, /^up to [\d,]{4,}$/));
  await page.click("#open-experts");
  await page.waitForSelector("aside canvas");
  await eventually(() => page.locator("aside .figures dd >> nth=0").innerText(), n => assert.ok(Number(n) > 0, n));
  assert.ok((await stored(page)).some(m => m.experts?.layers.length));
  // The counts of the latest answer are there when the page is opened again.
  await page.reload();
  await answered(page);
  if (!(await page.locator("aside").count())) await page.click("#open-experts");
  await page.waitForSelector("aside canvas");
});

on("one message is deleted, the others stay", { settings: { sampling: { max_tokens: 4 }, thinking: "off" } }, async page => {
  for (const text of ["One", "Two", "Three"]) {
    await send(page, text);
    await answered(page);
    await page.waitForFunction(n => document.querySelectorAll("article").length === n, 2 * ["One", "Two", "Three"].indexOf(text) + 2);
  }
  await page.hover('article.user:has-text("Two")');
  await page.click('article.user:has-text("Two") [aria-label="Delete message"]');
  await page.click("dialog .danger");
  await page.waitForFunction(() => document.querySelectorAll("article").length === 5);
  const body = await sent(page, () => send(page, "Four"));
  assert.deepEqual(body.messages.filter(m => m.role === "user").map(m => m.content), ["One", "Three", "Four"]);
  await answered(page);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll("article").length === 7);
});

const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };
on("on a phone Back closes panels and the list, and everything is large enough for a finger", { options: phone, settings: { sampling: { max_tokens: 4 } } }, async page => {
  await send(page, "Hello");
  await answered(page);
  const address = page.url();
  await page.tap("#open-settings");
  await page.waitForSelector("aside");
  await page.goBack();
  await page.waitForSelector("aside", { state: "detached" });
  await page.tap(".menu-button");
  await page.waitForSelector(".with-menu");
  await page.goBack();
  await page.waitForSelector(".with-menu", { state: "detached" });
  assert.equal(page.url(), address);
  // Closed by hand, it leaves nothing behind in the history.
  await page.tap("#open-experts");
  await page.tap("aside .panel-head button");
  await page.waitForSelector("aside", { state: "detached" });
  await page.tap(".menu-button");
  await page.tap("#new");
  await page.waitForSelector(".empty");
  await page.goBack();
  await shows(page, "article.user .body", "Hello");
  const small = async where => {
    await eventually(() => page.$$eval("button, select, input:not([hidden]), summary", all => all.filter(e => e.checkVisibility() && e.offsetParent && !e.closest(".md")).map(e => [e.getAttribute("aria-label") || e.textContent || e.name, e.type === "checkbox" ? 44 : e.getBoundingClientRect().width, e.type === "checkbox" ? 44 : e.getBoundingClientRect().height]).filter(([, w, h]) => w < 43.5 || h < 43.5)), found => assert.deepEqual(found, [], where));
  };
  await small("the conversation");
  await page.tap("#open-settings");
  for (const name of ["chat", "defaults", "page"]) {
    await page.tap(`#scope-${name}`);
    await small(name);
  }
});

on("the empty page has four examples; one of them shows the experts at work", { settings: { sampling: { max_tokens: 30 } } }, async page => {
  await page.waitForFunction(() => document.querySelectorAll(".examples button").length === 4);
  await shows(page, ".empty", /8 M parameters/);
  await page.click('.examples button:has-text("Watch the experts")');
  await page.waitForSelector("aside canvas");
  await answered(page);
  await shows(page, "article.user .body", /fox/);
});

test("the page can be installed as an app, and has an icon", TEST, async () => {
  const document = await (await fetch(url)).text();
  for (const [rel, kind] of [["icon", "image/svg+xml"], ["apple-touch-icon", "image/png"], ["manifest", "application/manifest+json"]]) {
    const href = new RegExp(`rel="${rel}"[^>]* href="([^"]+)"`).exec(document)[1];
    const got = await fetch(new URL(href, `${url}/`));
    assert.deepEqual([got.status, got.headers.get("content-type")], [200, kind], href);
    if (rel !== "manifest") continue;
    const manifest = await got.json();
    assert.equal(new URL(manifest.start_url, got.url).pathname, "/");
    for (const icon of manifest.icons) assert.equal((await fetch(new URL(icon.src, got.url))).headers.get("content-type"), icon.type, icon.src);
  }
  const { context, page, problems } = await fresh(browser, url);
  const client = await context.newCDPSession(page);
  const { errors } = await client.send("Page.getAppManifest");
  assert.deepEqual(errors, []);
  const { installabilityErrors } = await client.send("Page.getInstallabilityErrors");
  assert.deepEqual(installabilityErrors.map(e => e.errorId).filter(id => id !== "in-incognito"), []);
  assert.deepEqual(problems, []);
  await context.close();
});

/** A test of a program of its own, with a page of its own. */
function onOther(name, args, options, work) {
  test(name, TEST, async () => {
    const { child, match } = await start(process.env.OCTET, await args(), /listening at (http:\S+)\s/);
    try {
      const { context, page, problems } = await fresh(browser, match[1], options);
      await work(page, context, match[1]);
      assert.deepEqual(problems, []);
      await context.close();
    } finally {
      child.removeAllListeners("exit");
      child.kill("SIGKILL");
    }
  });
}

onOther("a server with a key asks for it in a form", () => ["serve", "--port", "0", "--api-key", "sk-right"], { ready: () => document.querySelector("#key"), settings: { sampling: { max_tokens: 4 } } }, async (page, context, url) => {
  await shows(page, "main", /This server asks for a key/);
  const { violations } = await new AxeBuilder({ page }).analyze();
  assert.deepEqual(violations.map(v => v.id), []);
  await focused(page, "#key");
  await page.keyboard.type("sk-wrong");
  await page.keyboard.press("Enter");
  await shows(page, "[role=alert]", "The server does not know this key.");
  await page.fill("#key", "sk-right");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#model")?.value);
  await send(page, "Hello");
  await answered(page);
  assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage))).includes("sk-right"));
  await page.click("#open-settings");
  await page.click("#scope-page");
  await page.click("#log-out");
  await page.waitForSelector("#key");
  await page.fill("#key", "sk-right");
  await page.check(".login input[type=checkbox]");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#model")?.value);
  const other = await context.newPage();
  await other.goto(url);
  await other.waitForFunction(() => document.querySelector("#model")?.value);
});

/** A provider that cuts its answers, or fails; it keeps what it was asked. */
function provider() {
  const asked = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", data => (body += data));
    request.on("end", () => {
      const json = JSON.parse(body);
      asked.push(json);
      const last = JSON.stringify(json.messages.at(-1).content);
      const fail = (status, message) => {
        response.writeHead(status, { "Content-Type": "application/json" });
        response.end(JSON.stringify({ error: { message, type: "x" } }));
      };
      if (last.includes("too long")) return fail(400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.");
      if (last.includes("broken")) return fail(500, "segfault in kernel 7");
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      const say = delta => response.write(`data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`);
      if (last.includes("exactly where it stops")) {
        say({ role: "assistant", content: " of the tale." });
        response.write(`data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\n\ndata: [DONE]\n\n`);
        return response.end();
      }
      if (last.includes("cut")) {
        say({ role: "assistant", content: "This is the end" });
        return setTimeout(() => response.destroy(), 100);
      }
      say({ role: "assistant", content: "I see." });
      response.write(`data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\n\ndata: [DONE]\n\n`);
      response.end();
    });
  });
  return new Promise(resolve => server.listen(0, "127.0.0.1", () => resolve({ server, asked, url: `http://127.0.0.1:${server.address().port}/v1` })));
}

let far;
after(() => {
  far?.server.closeAllConnections();
  far?.server.close();
});
async function routed() {
  far = await provider();
  const file = join(process.cwd(), "far.yaml");
  const entry = (name, info) => `- {model_name: ${name}, litellm_params: {model: hosted_vllm/m, api_base: "${far.url}"}, model_info: {${info}}}\n`;
  writeFileSync(file, `model_list:\n${entry("eyes", "supports_vision: true")}${entry("blind", "")}router_settings: {num_retries: 0}\n`);
  return ["serve", "--config", file, "--port", "0"];
}

onOther("a message that is too long for the context says how long it is, and is shortened", () => ["serve", "--port", "0", "-c", "256"], { settings: { sampling: { max_tokens: 4 }, thinking: "off" } }, async page => {
  const file = { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("apple ".repeat(400)) };
  await page.setInputFiles("#files", file);
  await page.waitForSelector(".files li");
  await send(page, "What is in it?");
  await answered(page, "failed");
  const said = await shows(page, "article .error > p", /^The message has [\d,]+ tokens, and 256 fit into the model's context\. Shorten it\. Or start the server with a larger context: -c\sN, for this model up to [\d,]+ tokens\.$/);
  assert.ok(Number(/has ([\d,]+)/.exec(said)[1].replace(",", "")) > 400, said);
  // What was written is there, and what made it long can go.
  await page.click('article .error button:has-text("Edit the message")');
  assert.equal(await page.inputValue(".edit textarea"), "What is in it?");
  await page.click('.edit [aria-label="Remove notes.txt"]');
  await page.click('.edit button:has-text("Send")');
  await answered(page);
  assert.equal(await page.locator("article .file").count(), 0);
});

onOther("with other servers' models: errors in the user's words, a cut answer goes on, pictures for those that see", routed, {}, async page => {
  await send(page, "This is too long.");
  await answered(page, "failed");
  await shows(page, "article .error > p", "The message has 9,001 tokens, and 8,192 fit into the model's context. Shorten it. Or choose a model with a larger context.");
  await page.click("article .error summary");
  await shows(page, "article .error details p", /maximum context length is 8192/);
  await page.click("#new");
  await send(page, "Is it broken?");
  await answered(page, "failed");
  await shows(page, "article .error > p", /server failed|cannot be reached/);
  await page.click("#new");
  await send(page, "Be cut.");
  await answered(page, "cut");
  await page.click('article.assistant button:has-text("Continue")');
  await answered(page);
  await shows(page, "article.assistant .md", "This is the end of the tale.");
  assert.deepEqual(far.asked.at(-1).messages.map(m => m.role), ["user", "assistant", "user"]);

  const picture = { name: "pixel.png", mimeType: "image/png", buffer: Buffer.from(PIXEL.split(",")[1], "base64") };
  await page.click("#new");
  await page.setInputFiles("#files", picture);
  await page.waitForSelector(".files img");
  await send(page, "What is this?");
  await answered(page);
  const { content } = far.asked.at(-1).messages.at(-1);
  assert.deepEqual(content, [{ type: "image_url", image_url: { url: PIXEL } }, { type: "text", text: "What is this?" }]);
  await page.waitForSelector("article.user .pictures img");
  // A large picture is scaled down, whichever way it comes: picked, pasted or dropped.
  const size = url => [16, 20].map(at => Buffer.from(url.split(",")[1], "base64").readUInt32BE(at));
  const large = await page.evaluate(() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 3000, height: 150 });
    canvas.getContext("2d").fillRect(0, 0, 1500, 150);
    return canvas.toDataURL();
  });
  const ways = {
    picked: () => page.setInputFiles("#files", { name: "large.png", mimeType: "image/png", buffer: Buffer.from(large.split(",")[1], "base64") }),
    pasted: () => page.evaluate(come, [large, "#prompt", "paste"]),
    dropped: () => page.evaluate(come, [large, "#ask", "drop"]),
  };
  function come([url, selector, kind]) {
    const data = new DataTransfer();
    const bytes = Uint8Array.from(atob(url.split(",")[1]), c => c.charCodeAt(0));
    data.items.add(new File([bytes], "large.png", { type: "image/png" }));
    const all = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
    document.querySelector(selector).dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, all) : new DragEvent(kind, all));
  }
  for (const [way, attach] of Object.entries(ways)) {
    await page.click("#new");
    await attach();
    await page.waitForSelector(".files img");
    await send(page, "And this?");
    await answered(page);
    const sent = far.asked.at(-1).messages.at(-1).content[0].image_url.url;
    assert.deepEqual(size(sent), [2048, 102], way);
  }
  // The picture is kept with its conversation.
  await page.reload();
  await page.waitForSelector("article.user .pictures img");
  await page.click("#new");
  await page.setInputFiles("#files", { ...picture, buffer: Buffer.from("no picture") });
  await shows(page, "#note", /pixel\.png cannot be attached: the browser cannot read it/);
  await page.selectOption("#model", "blind");
  await page.setInputFiles("#files", picture);
  await shows(page, "#note", /pixel\.png cannot be attached: blind does not read images/);
});

onOther("what other programs exported is imported, once", () => ["serve", "--port", "0"], {}, async page => {
  const llama = { conv: { id: "11111111-1111-4111-8111-111111111111", name: "From llama.cpp", lastModified: 1700000000000, currNode: "b" }, messages: [
    { id: "r", type: "root", role: "system", content: "", parent: null }, { id: "a", type: "text", role: "user", content: "1+1?", parent: "r" }, { id: "b", type: "text", role: "assistant", content: "2", parent: "a" }] };
  const read = async () => {
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#import")]);
    await chooser.setFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify([llama])) });
  };
  await read();
  await page.click('#side .open:has-text("From llama.cpp")');
  await shows(page, "article.assistant .md", "2");
  await read();
  await shows(page, ".imported", "Imported: 0. Here already: 1.");
  assert.equal(await page.locator("#side li").count(), 1);
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#import")]);
  await chooser.setFiles({ name: "y.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await shows(page, "#note", /y\.json holds no conversations/);
  const [mixed] = await Promise.all([page.waitForEvent("filechooser"), page.click("#import")]);
  await mixed.setFiles({ name: "z.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify([{ ...llama, conv: { ...llama.conv, id: "22222222-2222-4222-8222-222222222222", name: "Another" } }, { a: 1 }])) });
  await shows(page, ".imported", "Imported: 1. No conversations: 1.");
  await page.waitForFunction(() => !document.querySelector("#note"));
  const [broken] = await Promise.all([page.waitForEvent("filechooser"), page.click("#import")]);
  await broken.setFiles({ name: "b.zip", mimeType: "application/zip", buffer: Buffer.from("PK, cut off") });
  await shows(page, "#note", /b\.zip cannot be read: /);
});
