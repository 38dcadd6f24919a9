// The server, the browser and the helpers of page.test.mjs and admin.test.mjs.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { join } from "node:path";

const require = createRequire(join(process.env.PACKAGES, "x.js"));
const { chromium } = require("playwright-core");
export const { AxeBuilder } = require("@axe-core/playwright");

/** Starts a program, and gives the match of a line that it writes. */
export function start(command, args, line, env = {}) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
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

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });

/** A page of its own, with empty storage. Errors and requests to other hosts fail the test that calls `problems`. */
export async function fresh(browser, url, { allowed = [], options = {}, settings = {}, path = "/", ready = () => document.querySelector("#model")?.value } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: "en-US", ...options });
  const page = await context.newPage();
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

/** Waits for the last answer to be in a state. */
export const answered = (page, state = "done") => page.waitForSelector(`article.assistant:last-of-type[data-state="${state}"]`, { timeout: 60_000 });

/** Sets a setting while the page is open. */
export async function setExtra(page, text) {
  await page.click("#open-settings");
  await page.fill("#extra", text);
  await page.click("#open-settings");
}
