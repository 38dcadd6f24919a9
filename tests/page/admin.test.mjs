// The operator's page in a browser, against the real server with a provider behind it. Called by run.py.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { AxeBuilder, eventually, focused, fresh, launch, shows, start, TEST } from "./setup.mjs";

const MASTER = "sk-master-of-the-test";
let octet, url, browser, provider, folder;
/** Lets the model that is called slow answer. */
let release;

/** A provider whose answers have 7 and 2 tokens; what is called broken has too much to do. */
function answers() {
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", data => (body += data));
    request.on("end", () => {
      const { model } = JSON.parse(body);
      response.setHeader("Content-Type", "application/json");
      if (model === "broken") {
        response.statusCode = 429;
        response.setHeader("Retry-After", "60");
        return response.end(JSON.stringify({ error: { message: "too much", type: "rate_limit_error" } }));
      }
      const answer = () => {
        const choice = { index: 0, message: { role: "assistant", content: "Hi" }, finish_reason: "stop" };
        response.end(JSON.stringify({ id: "x", object: "chat.completion", created: 1, model, choices: [choice], usage: { prompt_tokens: 7, completion_tokens: 2, total_tokens: 9 } }));
      };
      if (model === "slow") release = answer;
      else answer();
    });
  });
  return new Promise(resolve => server.listen(0, "127.0.0.1", () => resolve(server)));
}

before(async () => {
  provider = await answers();
  folder = mkdtempSync(join(tmpdir(), "octet-admin-"));
  const entry = (name, model, more = "") => `- {model_name: ${name}, litellm_params: {model: hosted_vllm/${model}, api_base: "http://127.0.0.1:${provider.address().port}/v1", input_cost_per_token: 0.01, output_cost_per_token: 0.015${more}}}`;
  const config = join(folder, "octet.yaml");
  writeFileSync(config, `model_list:
${entry("writer", "good", ", rpm: 1000")}
${entry("broken", "broken")}
${entry("slow", "slow")}
- {model_name: keyless, litellm_params: {model: groq/m, api_key: os.environ/NOT_SET_ANYWHERE}}
router_settings: {num_retries: 0}
litellm_settings: {max_budget: 100}
general_settings: {master_key: ${MASTER}}
keys: {database: "${join(folder, "keys.db")}"}
`);
  const started = await start(process.env.OCTET, ["serve", "--config", config, "--port", "0"], /listening at (http:\S+)\s/);
  octet = started.child;
  url = started.match[1];
  browser = await launch();
});

after(async () => {
  await browser?.close();
  octet?.removeAllListeners("exit");
  octet?.kill("SIGKILL");
  provider?.closeAllConnections();
  provider?.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** A test with a page of its own; at its end nothing may have gone wrong in it, and the key may stand in no address. */
function on(name, options, work) {
  test(name, TEST, async () => {
    const ready = () => document.querySelector("input[name=key]");
    const { context, page, problems } = await fresh(browser, url, { path: "/admin", ready, options });
    page.on("request", r => {
      if (r.url().includes("sk-")) problems.push(`a key in ${r.url()}`);
    });
    try {
      await work(page);
      assert.deepEqual(problems, []);
    } catch (e) {
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, "failed.png") });
      throw e;
    } finally {
      await context.close();
    }
  });
}

async function logIn(page, key = MASTER) {
  await page.fill("input[name=key]", key);
  await page.press("input[name=key]", "Enter");
}

async function view(page, name) {
  await page.click(`nav >> text="${name}"`);
  await page.waitForSelector(`h1:text-is("${name}")`);
}

const row = (page, name) => page.locator("tbody tr", { has: page.locator("th", { hasText: name }) });
const rowShows = (page, name, wanted) => eventually(() => row(page, name).innerText(), text => assert.match(text, wanted));
const button = (page, name) => page.getByRole("button", { name, exact: true });

async function fill(page, fields) {
  for (const [name, value] of Object.entries(fields)) {
    const field = page.locator(`dialog [name=${name}]`);
    if ((await field.evaluate(f => f.tagName)) === "SELECT") await field.selectOption({ label: value });
    else await field.fill(value);
  }
  await page.click("dialog button.main");
}

async function ask(key, model = "writer") {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] });
  const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" }, body });
  await answer.text();
  return answer.status;
}

/** Waits until a key has spent so many dollars: the server counts what an answer cost when its client has all of it. */
async function spent(key, dollars) {
  const read = async () => (await (await fetch(`${url}/key/info?key=${key}`, { headers: { Authorization: `Bearer ${MASTER}` } })).json()).info.spend;
  await eventually(read, spend => assert.ok(Math.abs(spend - dollars) < 1e-9, `$${spend}, not $${dollars}`));
}

async function accessible(page) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  assert.deepEqual(violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(" | ")}`), []);
}

on("the page asks for the master key, and keeps it for the tab alone", {}, async page => {
  await accessible(page);
  await logIn(page, "sk-wrong");
  await page.waitForSelector("[role=alert]:has-text('401')");
  await eventually(() => page.evaluate(() => sessionStorage.length), n => assert.equal(n, 0));
  await logIn(page);
  await page.waitForSelector("h1:text-is('Models')");
  await eventually(() => page.evaluate(() => Object.values(sessionStorage).join()), key => assert.equal(key, MASTER));
  assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage) + document.cookie)).includes(MASTER));
  await page.reload();
  await page.waitForSelector("h1:text-is('Models')");
  await button(page, "Log out").click();
  await page.waitForSelector("input[name=key]");
  await eventually(() => page.evaluate(() => sessionStorage.length), n => assert.equal(n, 0));
});

on("models show how they are", {}, async page => {
  await logIn(page);
  await rowShows(page, "writer", /good\s+\S+\s+not tried yet\s+0\s+\d+ of 1,000/);
  assert.equal(await ask(MASTER), 200);
  await rowShows(page, "writer", /good\s+\S+\s+healthy/);
  await rowShows(page, "keyless", /left out.*NOT_SET_ANYWHERE/s);
  assert.equal(await ask(MASTER, "broken"), 429);
  await page.waitForSelector("tr:has-text('broken') :text('in cooldown')");
  await shows(page, ".figures", /Healthy deployments\s+1 of 3[^]*Budget of the server\s+\$\d+\.\d+ of \$100\.00/);
});

on("requests are listed, also those that run", {}, async page => {
  await logIn(page);
  await page.waitForSelector("h1:text-is('Models')");
  const slow = ask(MASTER, "slow");
  await view(page, "Requests");
  const requests = wanted => eventually(() => page.locator("tbody tr").first().innerText(), text => assert.match(text, wanted));
  await requests(/req_\w+\s+–\s+slow\s+–\s+running/);
  await shows(page, ".figures", /Running requests\s+1/);
  release();
  assert.equal(await slow, 200);
  await requests(/slow\s+slow\s+\S+\s+200[^]*7\s+2\s+\$0\.10/);
  assert.equal(await ask("sk-wrong"), 401);
  await requests(/–\s+–\s+–\s+401\s+invalid_api_key/);
  await accessible(page);
});

on("a team, a user and a key are made, used, changed, blocked and deleted", {}, async page => {
  await logIn(page);
  await page.waitForSelector("h1:text-is('Models')");
  await view(page, "Teams");
  await button(page, "New team").click();
  await fill(page, { team_id: "t-blue", team_alias: "blue", models: "writer", max_budget: "0.25" });
  await row(page, "blue").waitFor();
  await view(page, "Users");
  await button(page, "New user").click();
  await fill(page, { user_id: "ann", user_alias: "Ann", rpm_limit: "500" });
  await row(page, "Ann").waitFor();
  // An error stays in the dialog, with what was written.
  await button(page, "New user").click();
  await fill(page, { user_id: "ann" });
  await page.waitForSelector("dialog [role=alert]:has-text(\"the user 'ann' exists\")");
  assert.equal(await page.inputValue("dialog [name=user_id]"), "ann");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  // The focus is where it was.
  await focused(page, "button:not(dialog *)");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "New user");

  await view(page, "Teams");
  await button(page, "Edit blue").click();
  await page.fill("[name=member]", "ann");
  await button(page, "Add").click();
  await page.waitForSelector(".members li:has-text('Ann')");
  await accessible(page);
  await page.keyboard.press("Escape");

  await view(page, "Keys");
  await button(page, "New key").click();
  await fill(page, { key_alias: "first", user_id: "ann", team_id: "blue", duration: "30d" });
  await page.waitForSelector(".secret");
  const key = await page.innerText(".secret");
  assert.match(key, /^sk-/);
  await accessible(page);
  await button(page, "Close").click();
  await eventually(() => page.content(), html => assert.ok(!html.includes(key), "it is shown once"));
  // 7 and 2 tokens cost 10 cents; the budget of the team is 25.
  assert.deepEqual([await ask(key), await ask(key, "broken"), await ask(key)], [200, 403, 200]);
  await spent(key, 0.2);
  assert.equal(await ask(key), 200);
  await spent(key, 0.3);
  assert.equal(await ask(key), 429);
  await page.reload();
  await rowShows(page, "first", /first\s+Ann\s+blue.*\$0\.30/s);
  await view(page, "Teams");
  await rowShows(page, "blue", /writer\s+\$0\.30 of \$0\.25/);
  await button(page, "Edit blue").click();
  assert.equal(await page.inputValue("dialog [name=max_budget]"), "0.25");
  await fill(page, { max_budget: "" });
  await page.waitForSelector("dialog", { state: "detached" });
  assert.equal(await ask(key), 200);

  for (const [name, of] of [["Teams", "blue"], ["Users", "Ann"], ["Keys", "first"]]) {
    await view(page, name);
    await button(page, `Block ${of}`).click();
    await button(page, `Unblock ${of}`).waitFor();
    assert.equal(await ask(key), 401, name);
    await shows(page, "[role=status]", `${of} is blocked`);
    await accessible(page);
    await button(page, `Unblock ${of}`).click();
    await button(page, `Block ${of}`).waitFor();
    assert.equal(await ask(key), 200, name);
  }

  await spent(key, 0.7);
  await view(page, "Spend");
  // The master key has asked each of them once, in the tests before.
  await shows(page, "tbody", /writer\s+\$0\.80\s+88\.9 %\s+slow\s+\$0\.10/);
  await shows(page, ".figures", /Requests\s+9/);
  await page.locator("main select").nth(1).selectOption("teams");
  await shows(page, "tbody", /blue\s+\$0\.70/);
  await eventually(() => page.locator(".bars rect").count(), n => assert.equal(n, 30));
  await accessible(page);

  await view(page, "Teams");
  await button(page, "Delete blue").click();
  await page.click("dialog button.danger");
  await page.waitForSelector("td:text-is('No teams yet.')");
  assert.equal(await ask(key), 401);
  await view(page, "Keys");
  await page.waitForSelector("td:text-is('No keys yet.')");
});

on("German, dark, on a phone, by keyboard", { locale: "de-DE", colorScheme: "dark", viewport: { width: 390, height: 800 } }, async page => {
  await focused(page, "input[name=key]");
  await page.keyboard.type(MASTER);
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:text-is('Modelle')");
  for (const name of ["Modelle", "Schlüssel", "Benutzer", "Teams", "Kosten"]) {
    await page.locator(`nav >> text="${name}"`).focus();
    await page.keyboard.press("Enter");
    await page.waitForSelector(`h1:text-is("${name}")`);
    await accessible(page);
    await eventually(() => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), fits => assert.ok(fits, `${name} is wider than the screen`));
  }
  await page.getByLabel("Sprache").selectOption("en");
  await page.waitForSelector("h1:text-is('Spend')");
  await page.waitForSelector("html[lang=en]");
});

test("without a key of the server's own there is no such page", TEST, async () => {
  const started = await start(process.env.OCTET, ["serve", "--port", "0"], /listening at (http:\S+)\s/);
  try {
    const answer = await fetch(`${started.match[1]}/admin`);
    assert.equal(answer.status, 404);
    assert.match((await answer.json()).error.message, /general_settings\.master_key/);
  } finally {
    started.child.removeAllListeners("exit");
    started.child.kill("SIGKILL");
  }
});

test("pictures", { skip: !process.env.SHOTS, ...TEST }, async () => {
  const post = (path, body) => fetch(url + path, { method: "POST", headers: { Authorization: `Bearer ${MASTER}` }, body: JSON.stringify(body) }).then(r => r.json());
  await post("/team/new", { team_id: "research", team_alias: "Research", max_budget: 20, budget_duration: "30d" });
  for (const [name, budget] of [["Ann", 5], ["Bob", 2], ["Eve", null]]) {
    await post("/user/new", { user_id: name.toLowerCase(), user_alias: name, auto_create_key: false });
    const { key } = await post("/key/generate", { key_alias: `${name.toLowerCase()}-laptop`, user_id: name.toLowerCase(), team_id: "research", max_budget: budget, budget_duration: "30d", rpm_limit: 60 });
    for (let i = 0; i < 4 + name.charCodeAt(0) % 7; i++) await ask(key);
  }
  const { context, page } = await fresh(browser, url, { path: "/admin#keys", ready: () => document.querySelector("input[name=key]"), options: { viewport: { width: 1180, height: 620 } } });
  await logIn(page);
  await row(page, "ann-laptop").waitFor();
  await page.screenshot({ path: join(process.env.SHOTS, "admin.png") });
  await context.close();
});
