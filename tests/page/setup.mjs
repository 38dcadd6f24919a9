// The server, the browser and the helpers of page.test.mjs and admin.test.mjs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createServer, request as ask } from "node:http";
import { join } from "node:path";
import { pipeline } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(join(process.env.PACKAGES, "x.js"));
const { chromium } = require("playwright-core");
export const { AxeBuilder } = require("@axe-core/playwright");

/** How long anything may take that a test waits for. Nothing is fast on a machine that has other things to do. */
const WAIT_MS = Number(process.env.WAIT_MS ?? 240_000);
/** How long a test may take. */
export const TEST = { timeout: 900_000 };

/** Reads until the check passes, and gives what was read: a page draws a moment after it was told. In the end the check's own error counts. */
export async function eventually(read, check) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    try {
      const value = await read();
      check(value);
      return value;
    } catch (e) {
      if (Date.now() > end) throw e;
    }
    await sleep(50);
  }
}

/** Waits for an element to show a text, or one that matches; gives it. */
export const shows = (page, selector, wanted) => eventually(
  () => page.innerText(selector),
  text => (typeof wanted === "string" ? assert.equal(text, wanted) : assert.match(text, wanted)),
);

/** Waits for the focus: what is typed before goes elsewhere. */
export const focused = (page, selector) => page.waitForFunction(s => document.activeElement?.matches(s), selector);

/** Waits until the server computes nothing: what a test asked for may run longer than the test. */
export const idle = url => eventually(
  async () => (await fetch(`${url}/metrics`)).text(),
  text => assert.match(text, /num_requests_running\{model_name="fox"\} 0/),
);

/** Starts a program, and gives the match of a line that it writes. Octet keeps no conversations unless a test wants that: they would be
 *  those of the next test. */
export function start(command, args, line, env = {}) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, OCTET_PAGE_STORE: "off", ...env } });
  let text = "";
  return new Promise((resolve, reject) => {
    const read = data => {
      text += data;
      const match = line.exec(text);
      if (match) resolve({ child, match });
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.on("exit", code => reject(new Error(`${command} ended with ${code}:\n${text}`)));
  });
}

// Says the port: a program that is told to take any one may not.
const SAY_PORT = `import { Server } from "node:net";
const listen = Server.prototype.listen;
Server.prototype.listen = function (...all) {
  this.once("listening", () => console.error("The port is " + this.address().port + "."));
  return listen.apply(this, all);
};`;

/** Starts a server for Node that reads its port from the environment, at a free one. */
export async function startNode(args) {
  const { child, match } = await start(process.execPath, ["--import", `data:text/javascript,${encodeURIComponent(SAY_PORT)}`, ...args], /The port is (\d+)\./, { PORT: "0" });
  return { child, url: `http://127.0.0.1:${match[1]}` };
}

/** A way to the server on which each stream waits when that many of its events have matched, until `go` is called: however slow its
 *  machine is, a test then comes in the midst of an answer. */
export function holding(url, { event, times = 1 }) {
  let go;
  const gone = new Promise(resolve => (go = resolve));
  async function* held(parts) {
    let [rest, left] = ["", times];
    for await (const part of parts) {
      const events = (rest + part.toString("latin1")).split(/(?<=\n\n)/);
      rest = events.at(-1).endsWith("\n\n") ? "" : events.pop();
      for (const text of events) {
        yield Buffer.from(text, "latin1");
        if (event.test(text) && --left === 0) await gone;
      }
    }
    yield Buffer.from(rest, "latin1");
  }
  const server = createServer((request, response) => {
    const onward = ask(url + request.url, { method: request.method, headers: request.headers, agent: false }, answer => {
      response.writeHead(answer.statusCode, answer.headers);
      const steps = answer.headers["content-type"]?.startsWith("text/event-stream") ? [held] : [];
      pipeline(answer, ...steps, response, () => {});
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  });
  return new Promise(resolve => server.listen(0, "127.0.0.1", () => resolve({ server, go, url: `http://127.0.0.1:${server.address().port}` })));
}

/** A server of a tool: says the weather, and what it was asked. */
export function toolServer() {
  const asked = [];
  const server = createServer((request, response) => {
    response.setHeader("Access-Control-Allow-Origin", "*");
    response.setHeader("Access-Control-Allow-Headers", "*");
    if (request.method === "OPTIONS") return response.end();
    let body = "";
    request.on("data", data => (body += data));
    request.on("end", () => {
      asked.push({ path: request.url, body, key: request.headers["x-key"] });
      response.end(JSON.stringify({ weather: "sunny", degrees: 21 }));
    });
  });
  return new Promise(resolve => server.listen(0, "127.0.0.1", () => resolve({ server, asked, url: `http://127.0.0.1:${server.address().port}` })));
}

/** Chromium; `args` are further flags. */
export const launch = (...args) => chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu", ...args] });

/** A page of its own, with empty storage. Errors and requests to other hosts fail the test that calls `problems`. */
export async function fresh(browser, url, { allowed = [], options = {}, settings = {}, path = "/", ready = () => document.querySelector("#model")?.value } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: "en-US", ...options });
  context.setDefaultTimeout(WAIT_MS);
  const page = await context.newPage();
  if (process.env.SLOW) await (await context.newCDPSession(page)).send("Emulation.setCPUThrottlingRate", { rate: Number(process.env.SLOW) });
  const problems = [];
  page.on("pageerror", e => problems.push(`error: ${e.message}`));
  page.on("console", m => {
    if (m.type() === "error" && !/Failed to load resource/.test(m.text())) problems.push(`console: ${m.text()}`);
  });
  page.on("request", r => {
    const origin = new URL(r.url()).origin;
    if (/^https?:/.test(r.url()) && ![url, ...allowed].includes(origin)) problems.push(`request to ${r.url()}`);
  });
  await page.addInitScript(kept => {
    // The frames of previews have no storage.
    if (self !== top) return;
    if (!localStorage.getItem("octet.settings.2")) localStorage.setItem("octet.settings.2", JSON.stringify(kept));
  }, settings);
  await page.goto(url + path);
  await page.waitForFunction(ready);
  return { context, page, problems };
}

/** What makes the model write exactly this. */
export const saying = text => ({ extra: JSON.stringify({ grammar: `root ::= ${JSON.stringify(text)}`, chat_template_kwargs: { enable_thinking: false } }) });

/** An answer that takes a while. */
export const long = n => ({ extra: JSON.stringify({ ignore_eos: true, max_tokens: n }) });

export async function send(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Waits for the last message to be an answer in this state. */
export const answered = (page, state = "done") => eventually(
  () => page.evaluate(() => {
    const last = [...document.querySelectorAll("#log article")].at(-1);
    return { state: last?.matches(".assistant") ? last.dataset.state : "no answer", text: last?.innerText };
  }),
  last => assert.equal(last.state, state, `${last.state}, not ${state}: ${last.text}`),
);

/** The messages in the browser's database. What the page has begun to write is in it by then. */
export const stored = page => page.evaluate(() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("octet");
  opening.onerror = () => reject(opening.error);
  // Before the page has made its database: an empty one would keep the page from making its own.
  opening.onupgradeneeded = () => opening.transaction.abort();
  opening.onsuccess = () => {
    try {
      const reading = opening.result.transaction(["chats", "messages"]);
      const all = reading.objectStore("messages").getAll();
      all.onsuccess = () => resolve(all.result);
      reading.onabort = () => reject(reading.error);
    } catch (e) {
      reject(e);
    } finally {
      // Waits for the transaction.
      opening.result.close();
    }
  };
}));

/** Sets a setting while the page is open. */
export async function setExtra(page, text) {
  await page.click("#open-settings");
  await page.fill("#extra", text);
  await page.click("#open-settings");
}
