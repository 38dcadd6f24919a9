// Tests of what needs no browser: `npm test` (Node 24). The rest is tested in one: tests/page.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";
import { finish, take, type Chunk, type Running } from "../src/chunks.ts";
import { curl, pythonValue } from "../src/snippets.ts";
import { below, children, line, path } from "../src/tree.ts";
import type { Message } from "../src/types.ts";
import { Words, type Routed } from "../src/words.ts";

const message = (id: string, parent: string | null, created: number): Message => ({ id, parent, created, chat: "c", role: "user", text: id, state: "done" });
const tree = new Map([message("a", null, 1), message("b", "a", 2), message("c", "a", 3), message("d", "b", 4), message("e", null, 5)].map(m => [m.id, m]));
const ids = (all: Message[]) => all.map(m => m.id).join("");

test("the path follows what is picked, else the newest", () => {
  assert.equal(ids(path(tree, {})), "e");
  assert.equal(ids(path(tree, { "": "a" })), "ac");
  assert.equal(ids(path(tree, { "": "a", a: "b" })), "abd");
  assert.equal(ids(path(tree, { "": "gone" })), "e");
  assert.equal(ids(line(tree, "d")), "abd");
  assert.equal(ids(children(tree, "a")), "bc");
  assert.deepEqual(below(tree, "a"), ["a", "b", "c", "d"]);
});

test("a circle of parents ends", () => {
  const circle = new Map([message("x", "y", 1), message("y", "x", 2)].map(m => [m.id, m]));
  assert.equal(ids(path(circle, {})), "");
  assert.ok(line(circle, "x").length <= 3);
  assert.ok(below(circle, "x").length <= 4);
});

const gather = (chunks: Chunk[], replayed = false) => {
  const m: Message = { ...message("m", null, 0), role: "assistant", text: "" };
  const running: Running = { sent: 1000, chunks: 0, done: false, replayed };
  chunks.forEach((c, i) => take(m, running, c, 1100 + i * 100));
  finish(m, running);
  return { m, running };
};
const delta = (d: object): Chunk => ({ choices: [{ delta: d }] });

test("chunks become a message with figures", () => {
  const { m, running } = gather([
    { choices: [], prompt_progress: { total: 20, cache: 5, processed: 10 } },
    delta({ role: "assistant", content: "" }),
    delta({ reasoning_content: "Hm" }),
    delta({ content: "A" }),
    delta({ content: "B" }),
    { choices: [{ delta: {}, finish_reason: "stop" }] },
    { choices: [], usage: { prompt_tokens: 20, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 5 } } },
  ]);
  assert.deepEqual([m.text, m.reasoning, m.finish, running.done], ["AB", "Hm", "stop", true]);
  assert.deepEqual(m.figures, { first: 300, prompt: 20, tokens: 3, cached: 5, rate: 10 });
  assert.equal(m.reasoningMs, 100);
});

test("of a stream that is read again the server's times count", () => {
  const timings = { predicted_n: 2, predicted_ms: 50, predicted_per_second: 40, prompt_n: 3, cache_n: 1 };
  const { m } = gather([delta({ reasoning_content: "Hm" }), { ...delta({ content: "A" }), timings }], true);
  assert.deepEqual(m.figures, { tokens: 2, rate: 40, prompt: 4, cached: 1 });
  assert.equal(m.reasoningMs, 50);
});

test("calls of tools come in pieces", () => {
  const { m } = gather([
    delta({ tool_calls: [{ index: 0, id: "x", function: { name: "f", arguments: "" } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }, { index: 1, id: "y", function: { name: "g", arguments: "{}" } }] }),
  ]);
  assert.deepEqual(m.calls, [{ id: "x", name: "f", arguments: '{"a":1}' }, { id: "y", name: "g", arguments: "{}" }]);
});

test("an error in a stream is thrown", () => {
  assert.throws(() => gather([{ error: { message: "no room" } }]), /no room/);
});

/** `[tokens][layers][experts_per_token]` as the server sends it. */
const routed = (tokens: string[], experts: number[][][], gates: number[][]): Routed => ({
  layers: experts[0]!.length,
  experts_per_token: experts[0]![0]!.length,
  tokens,
  experts: Buffer.from(Uint16Array.from(experts.flat(2)).buffer).toString("base64"),
  shared_gate: Buffer.from(gates.flat()).toString("base64"),
});

test("tokens with similar experts are one group", () => {
  const words = new Words();
  // Two kinds of tokens in turn; layer 0 sends all to expert 300, and tells nothing.
  for (let i = 0; i < 40; i++) {
    const kind = i % 2;
    const experts = [[300, 301], kind ? [1, 2] : [7, 8], kind ? [3, 4 + (i % 4)] : [9, 10 + (i % 4)]];
    words.push(routed([`t${i}`], [experts], [[51, 0, 255]]));
  }
  words.regroup();
  assert.deepEqual([words.of(1, 0), words.of(1, 1)], [[300, 301], [1, 2]]);
  assert.deepEqual(words.gate().map(g => Math.round(g * 100)), [20, 0, 100]);
  const of = (kind: number) => new Set(words.groups.filter((_, i) => i % 2 === kind));
  assert.ok([...of(0)].every(g => !of(1).has(g)), JSON.stringify(words.groups));
});

test("snippets survive quotes", () => {
  const body = { messages: [{ role: "user", content: `it's "x" $HOME \`y\`\n\\z` }], stream: true, n: null };
  const shown = curl("http://h/v1", body, false).replace(/^curl/, "printf '%s\\0'");
  const args = execFileSync("sh", ["-c", shown]).toString().split("\0");
  assert.deepEqual(JSON.parse(args[args.indexOf("-d") + 1]!), body);
  const python = execFileSync("python3", ["-c", `import json; print(json.dumps(${pythonValue(body)}))`]).toString();
  assert.deepEqual(JSON.parse(python), body);
});

test("every language has every text, with the same values, and the page uses each", () => {
  const folder = new URL("../src/", import.meta.url);
  const read = (name: string) => JSON.parse(readFileSync(new URL(`texts/${name}`, folder), "utf8")) as Record<string, string>;
  const en = read("en.json");
  const values = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(m => m[0]).sort();
  for (const name of readdirSync(new URL("texts/", folder))) {
    const texts = read(name);
    assert.deepEqual(Object.keys(texts), Object.keys(en), name);
    for (const [key, text] of Object.entries(texts)) assert.deepEqual(values(text), values(en[key]!), `${name}: ${key}`);
  }
  const sources = readdirSync(folder, { recursive: true, encoding: "utf8" }).filter(f => /\.tsx?$/.test(f)).map(f => readFileSync(new URL(f, folder), "utf8")).join("\n");
  const built = /^(panel|keys|performance)\./;
  for (const key of Object.keys(en)) assert.ok(sources.includes(`"${key}"`) || built.test(key), `nothing uses ${key}`);
});
