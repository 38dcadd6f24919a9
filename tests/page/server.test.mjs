// What the server keeps and runs for the page: conversations (--page-store) and the operator's MCP servers (--mcp). Called by run.py.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { answered, eventually, fresh, launch, saying, send, setExtra, shows, start, stored, TEST } from "./setup.mjs";

let browser, folder;
before(async () => {
  browser = await launch();
  folder = mkdtempSync(join(tmpdir(), "octet-server-"));
});
after(async () => {
  await browser?.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** A test of a server with these arguments. `open` gives a page in a browser of its own; at the end nothing may have gone wrong in any. */
function on(name, args, work, env = {}) {
  test(name, TEST, async () => {
    const { child, match } = await start(process.env.OCTET, ["serve", "--port", "0", "--seed", "1", ...args()], /listening at (http:\S+)\s/, env);
    const pages = [];
    const open = async (options = {}) => {
      const got = await fresh(browser, match[1], options);
      pages.push(got);
      return got.page;
    };
    try {
      await work(open, match[1]);
      assert.deepEqual(pages.flatMap(p => p.problems), []);
    } catch (e) {
      if (process.env.SHOTS && pages.length) await pages.at(-1).page.screenshot({ path: join(process.env.SHOTS, "failed.png") });
      throw e;
    } finally {
      for (const { context } of pages) await context.close();
      child.removeAllListeners("exit");
      child.kill("SIGKILL");
    }
  });
}

const titles = page => page.locator("#side .open").allInnerTexts();
const listed = (page, wanted) => eventually(() => titles(page), got => assert.deepEqual(got, wanted));
const short = { sampling: { max_tokens: 4 }, thinking: "off" };

on("two browsers see the same conversations", () => ["--page-store", join(folder, "two.db")], async open => {
  const [laptop, phone] = [await open({ settings: saying("From the laptop.") }), await open({ settings: saying("From the phone.") })];
  await send(laptop, "Hello from the laptop");
  await answered(laptop);
  await listed(phone, ["Hello from the laptop"]);
  await phone.click("#side .open");
  await shows(phone, "article.assistant .md", "From the laptop.");
  // The other goes on, and the first sees it without a reload.
  await send(phone, "And from the phone");
  await answered(phone);
  await laptop.waitForFunction(() => document.querySelectorAll("article").length === 4);
  await eventually(() => laptop.locator("article.assistant .md >> nth=1").innerText(), text => assert.equal(text, "From the phone."));
  // A third browser has it from the beginning.
  const third = await open();
  await listed(third, ["Hello from the laptop"]);
  await third.click("#side .open");
  await third.waitForFunction(() => document.querySelectorAll("article").length === 4);
  await third.hover("#side li");
  await third.click('[aria-label="Actions for Hello from the laptop"]');
  await third.click("[role=menuitem]:has-text('Delete')");
  await third.click("dialog .danger");
  await listed(laptop, []);
  await listed(phone, []);
  assert.equal(statSync(join(folder, "two.db")).mode & 0o077, 0);
});

on("what is read on one is written on the other while the answer runs", () => ["--page-store", join(folder, "live.db"), "-c", "40000"], async open => {
  // An answer that does not end by itself before it is stopped, however slow the browsers are.
  const [laptop, phone] = [await open({ settings: { extra: JSON.stringify({ ignore_eos: true, max_tokens: 32000, chat_template_kwargs: { enable_thinking: false } }) } }), await open()];
  await send(laptop, "Tell me a long story");
  await laptop.waitForSelector("article.assistant .md p");
  await listed(phone, ["Tell me a long story"]);
  await phone.click("#side .open");
  await phone.waitForSelector("article.assistant .md p");
  await laptop.press("#prompt", "Escape");
  await answered(laptop, "stopped");
});

on("without a flag, a server for this machine alone keeps them in the user's data folder", () => [], async (open, url) => {
  const page = await open({ settings: short });
  await send(page, "Kept by default");
  await answered(page);
  assert.ok(existsSync(join(folder, "data/conversations.db")));
  const other = await open();
  await listed(other, ["Kept by default"]);
  // What this browser kept alone before is taken along, once.
  assert.equal((await (await fetch(`${url}/page-store`)).json()).user, "local");
}, { get OCTET_DATA_DIR() { return join(folder, "data"); }, OCTET_PAGE_STORE: undefined });

on("each key has its own conversations", () => ["--api-key", "sk-ann,sk-bob", "--page-store", join(folder, "keys.db")], async (open, url) => {
  const ready = () => document.querySelector("#key");
  const logIn = async (page, key) => {
    await page.fill("#key", key);
    await page.press("#key", "Enter");
    await page.waitForFunction(() => document.querySelector("#model")?.value);
  };
  const ann = await open({ ready, settings: short });
  // Her first message is sent before her conversations have come.
  let come;
  const coming = new Promise(resolve => (come = resolve));
  await ann.route("**/page-store*", async route => {
    await coming;
    await route.continue();
  });
  await logIn(ann, "sk-ann");
  await send(ann, "Ann's question");
  await ann.press("#prompt", "Enter");
  come();
  await answered(ann);
  await listed(ann, ["Ann's question"]);
  assert.equal(await ann.locator("article.user").count(), 1);
  const other = await open({ ready, settings: short });
  await logIn(other, "sk-bob");
  await send(other, "Bob's question");
  await answered(other);
  await listed(other, ["Bob's question"]);
  // In the same browser, too: another key has other conversations. What Bob writes last does not arrive while he is there.
  await other.route("**/page-store*", route => (route.request().method() === "POST" ? route.abort() : route.continue()));
  await other.hover("#side li");
  await other.click("[aria-label=\"Actions for Bob's question\"]");
  await other.click("[role=menuitem]:has-text('Rename')");
  await other.fill(".rename", "Bob's last word");
  await other.keyboard.press("Enter");
  await listed(other, ["Bob's last word"]);
  await other.clock.install();
  await other.click("#open-settings");
  await other.click("#scope-page");
  await other.click("#log-out");
  await other.waitForSelector("#key");
  await other.unroute("**/page-store*");
  // While Ann's login takes a minute, nothing that the page still has of Bob's may be sent, now with her key.
  await other.route("**/v1/models", async route => {
    await other.clock.fastForward(60_000);
    await route.continue();
  });
  let left;
  await other.route("**/page-store*", async route => {
    // What the user before had is gone at once, not when the next one's has come.
    left ??= await other.locator("#side li").count();
    await route.continue();
  });
  await logIn(other, "sk-ann");
  await listed(other, ["Ann's question"]);
  assert.equal(left, 0);
  await listed(ann, ["Ann's question"]);
  // Nor is Bob's lost: it is sent when he is back, in another tab.
  const again = await other.context().newPage();
  await again.goto(url);
  await again.waitForFunction(ready);
  await logIn(again, "sk-bob");
  await listed(again, ["Bob's last word"]);
  const third = await open({ ready, settings: short });
  await logIn(third, "sk-bob");
  await listed(third, ["Bob's last word"]);
  // Where the server does not say whose conversations these are, they are nobody's that used this browser before.
  await third.click("#open-settings");
  await third.click("#scope-page");
  await third.route("**/page-store*", route => route.abort());
  await third.click("#log-out");
  await third.waitForSelector("#key");
  await logIn(third, "sk-ann");
  await send(third, "Kept by this browser");
  await listed(third, ["Kept by this browser"]);
});

on("a page that was away sends what it wrote", () => ["--page-store", join(folder, "away.db")], async open => {
  const page = await open({ settings: short });
  await send(page, "First");
  await answered(page);
  const other = await open();
  await listed(other, ["First"]);
  await page.route("**/page-store*", route => route.abort());
  await page.hover("#side li");
  await page.click('[aria-label="Actions for First"]');
  await page.click("[role=menuitem]:has-text('Rename')");
  await page.fill(".rename", "Renamed while away");
  // As if the page were left at once: what is written arrives in the browser's database, and the page does not live to see it.
  await page.evaluate(() => {
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (...args) {
      this.transaction.addEventListener("complete", e => e.stopImmediatePropagation(), { capture: true });
      return put.apply(this, args);
    };
  });
  await page.keyboard.press("Enter");
  await listed(page, ["Renamed while away"]);
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#model")?.value);
  await listed(page, ["Renamed while away"]);
  await page.unroute("**/page-store*");
  await listed(other, ["Renamed while away"]);
});

/** A file of MCP servers: one program of the protocol's own reference servers, and one that is not there. */
function servers() {
  const file = join(folder, "mcp.json");
  const everything = join(process.env.PACKAGES, "@modelcontextprotocol/server-everything/dist/index.js");
  writeFileSync(file, JSON.stringify({ mcpServers: { everything: { command: process.execPath, args: [everything, "stdio"] }, gone: { command: "octet-no-such-program" } } }));
  return file;
}
const MUST = '{"tool_choice": {"type": "function", "function": {"name": "get-structured-content"}}, "chat_template_kwargs": {"enable_thinking": false}}';

on("a tool of the operator's MCP server is asked for once, and remembered", () => ["--mcp", servers()], async open => {
  const page = await open({ settings: { extra: MUST } });
  await send(page, "What is the weather in Chicago?");
  await shows(page, ".call h4", /get-structured-content\s+from everything/);
  await setExtra(page, '{"max_tokens": 10}');
  assert.equal(await page.locator(".call .result").count(), 0);
  // It can still be run when the page has been left meanwhile.
  await eventually(() => stored(page), all => assert.ok(all.some(m => m.calls?.length && m.state === "done")));
  await page.reload();
  await page.click('.call button:has-text("Always run")');
  await shows(page, ".call .result", /"temperature":\s*\d+/);
  await page.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  await answered(page);
  await page.reload();
  await page.click("#new");
  await setExtra(page, MUST);
  await send(page, "And in New York?");
  // Nobody is asked any more; the page sends the result by itself, and the model calls again until its turns are over.
  await shows(page, ".call .result", /"temperature":\s*\d+/);
  await page.keyboard.press("Escape");
  await page.click("#open-settings");
  await page.click("#scope-defaults");
  await shows(page, "#scope", /gone are not available: cannot start 'octet-no-such-program'/);
});
