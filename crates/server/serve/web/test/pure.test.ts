// Tests of what needs no browser: `npm test` (Node 24). The rest is tested in one: tests/page.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";
import { newId } from "../src/ids.ts";
import { readExport } from "../src/imports.ts";
import { finish, take, type Chunk, type Running } from "../src/chunks.ts";
import { rate, share, type Sample } from "../src/series.ts";
import { curl, pythonValue } from "../src/snippets.ts";
import { isTooLong, lengths } from "../src/toolong.ts";
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
  const built = /^(panel|keys|performance|example|settings\.scope)\./;
  for (const key of Object.keys(en)) assert.ok(sources.includes(`"${key}"`) || built.test(key), `nothing uses ${key}`);
});

test("shares are of what was counted between two samples", () => {
  const of = (at: number, hits: number, read: number): Sample => ({ at, values: { hits, read } });
  const all = [of(0, 100, 100), of(1, 130, 110), of(2, 130, 110), of(3, 0, 5), of(4, 1, 8)];
  // Nothing was counted in the third; at the fourth the server was started anew.
  assert.deepEqual(share(all, ["hits", "read"]), [{ at: 1, value: 0.75 }, { at: 2, value: 0 }, { at: 4, value: 0.25 }]);
  assert.deepEqual(share([{ at: 0, values: {} }, { at: 1, values: { hits: 2 } }], ["hits", "read"]), [{ at: 1, value: 1 }]);
});

test("a rate is of at least a second: samples that come late make no peak", () => {
  const sample = (at: number, n: number): Sample => ({ at, values: { n } });
  const all = [sample(0, 0), sample(2000, 100), sample(2100, 190), sample(4000, 200), sample(6000, 0), sample(8000, 20)];
  assert.deepEqual(rate(all, "n"), [{ at: 2000, value: 50 }, { at: 4000, value: 50 }, { at: 8000, value: 10 }], "a server that began anew is left out");
});

test("names are UUIDs of version 4, each another", () => {
  const all = Array.from({ length: 100 }, newId);
  assert.equal(new Set(all).size, 100);
  for (const id of all) assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
});

/** The messages that are shown of the only conversation that was read, as `role: text`. */
function shownOf(text: string) {
  const { chats, messages } = readExport(text);
  assert.equal(chats.length, 1);
  assert.ok(messages.every(m => m.chat === chats[0]!.id));
  return { chat: chats[0]!, messages, shown: path(new Map(messages.map(m => [m.id, m])), chats[0]!.picks) };
}
const lines = (all: Message[]) => all.map(m => `${m.role}: ${m.text}`);
const uuid = (n: number) => `00000000-0000-4000-8000-${String(n).padStart(12, "0")}`;

test("ChatGPT's export is read: the shown branch, without what was hidden", () => {
  const node = (n: number, parent: string | null, role: string | null, text: string, more = {}) => [n ? uuid(n) : "client-created-root", {
    id: n ? uuid(n) : "client-created-root", parent, children: [],
    message: role === null ? null : { id: uuid(n), author: { role }, create_time: 1700000000 + n, recipient: "all", content: { content_type: "text", parts: [text] }, metadata: { model_slug: "gpt-x" }, ...more },
  }];
  const root = "client-created-root";
  const export_ = [{
    title: "Foxes", create_time: 1700000000.5, update_time: 1700000100.25, conversation_id: uuid(99), current_node: uuid(6),
    mapping: Object.fromEntries([
      node(0, null, null, ""), node(1, root, "system", "", { metadata: { is_visually_hidden_from_conversation: true } }), node(2, uuid(1), "user", "What is a fox?"),
      node(3, uuid(2), "assistant", "first try"), node(4, uuid(2), "assistant", "", { recipient: "web.search" }), node(5, uuid(4), "tool", "found"), node(6, uuid(5), "assistant", "An animal."),
    ]),
  }];
  const { chat, messages, shown } = shownOf(JSON.stringify(export_));
  assert.deepEqual([chat.id, chat.title, chat.created, chat.updated], [uuid(99), "Foxes", 1700000000500, 1700000100250]);
  assert.deepEqual(lines(shown), ["user: What is a fox?", "assistant: An animal."]);
  assert.deepEqual([messages.length, shown[1]!.model, shown[1]!.created], [3, "gpt-x", 1700000006000]);
});

test("Open WebUI's export is read, with its reasoning and files", () => {
  const history = { currentId: "b2", messages: {
    a1: { id: "a1", parentId: null, childrenIds: ["b1", "b2"], role: "user", content: "Why?", timestamp: 1700000001, files: [{ type: "image", url: "data:image/png;base64,AAAA" }, { type: "file", name: "x.txt", file: { data: { content: "inside" } } }] },
    b1: { id: "b1", parentId: "a1", childrenIds: [], role: "assistant", content: "No.", timestamp: 1700000002, model: "m" },
    b2: { id: "b2", parentId: "a1", childrenIds: [], role: "assistant", content: '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n> Hm.\n> So.\n</details>\nBecause.', timestamp: 1700000003, model: "m" },
  } };
  const { chat, messages, shown } = shownOf(JSON.stringify([{ id: uuid(1), user_id: "u", title: "Reasons", chat: { models: ["m"], history, messages: [] }, updated_at: 1700000009, created_at: 1700000000 }]));
  assert.deepEqual([chat.title, chat.updated, messages.length], ["Reasons", 1700000009000, 3]);
  assert.deepEqual(lines(shown), ["user: Why?", "assistant: Because."]);
  assert.equal(shown[1]!.reasoning, "Hm.\nSo.");
  assert.deepEqual(shown[0]!.attachments!.map(a => [a.kind, a.text]), [["image", "data:image/png;base64,AAAA"], ["text", "inside"]]);
});

test("llama.cpp's export is read: one, a list, or one in each line", () => {
  const [root, user, one, two] = [uuid(10), uuid(11), uuid(12), uuid(13)];
  const message = (id: string, parent: string | null, role: string, content: string, more = {}) => ({ id, convId: uuid(1), type: "text", timestamp: 1700000000000, role, content, parent, children: [], ...more });
  const export_ = {
    conv: { id: uuid(1), name: "Math", lastModified: 1700000005000, currNode: two },
    messages: [message(root, null, "system", "", { type: "root" }), message(user, root, "user", "1+1?", { extra: [{ type: "textFile", name: "a.txt", content: "A" }] }), message(one, user, "assistant", "3"), message(two, user, "assistant", "2", { reasoningContent: "add", model: "q" })],
  };
  for (const text of [JSON.stringify(export_), JSON.stringify([export_]), `${JSON.stringify(export_)}\n`]) {
    const { chat, messages, shown } = shownOf(text);
    assert.deepEqual([chat.title, messages.length, lines(shown), shown[1]!.reasoning], ["Math", 3, ["user: 1+1?", "assistant: 2"], "add"]);
    assert.equal(shown[0]!.parent, null);
    assert.equal(shown[0]!.attachments![0]!.name, "a.txt");
  }
  assert.equal(readExport(`${JSON.stringify(export_)}\n${JSON.stringify({ ...export_, conv: { ...export_.conv, id: uuid(2) } })}`).chats.length, 2);
});

test("what is no export gives nothing, whatever it is", () => {
  for (const text of ["", "[", "null", "[1, null, {}]", '{"mapping": {}}', '{"mapping": {"a": null}, "current_node": "a"}', '{"conv": {}, "messages": [null, {"id": "a", "parent": "a", "role": "system"}]}', '{"chat": {"history": {"messages": {"a": 1}}}}']) {
    const { chats, messages } = readExport(text);
    assert.deepEqual([chats, messages], [[], []], text);
  }
  assert.equal(readExport("[1, null, {}]").unread, 3);
  // A circle of parents ends.
  const circle = { conv: { id: "c", currNode: "a" }, messages: [{ id: "a", parent: "b", role: "user", content: "x" }, { id: "b", parent: "a", role: "system" }] };
  assert.equal(readExport(JSON.stringify(circle)).messages.length, 1);
});

test("what is read twice has the same names", () => {
  const own = { format: "octet-conversations", version: 2, chats: [{ id: uuid(1), title: "T", created: 1, updated: 2, picks: {}, own: { model: "m", sampling: { top_k: 1, x: "y" } } }], messages: [{ id: uuid(2), chat: uuid(1), parent: null, role: "user", text: "hi", created: 1, state: "done" }, { id: uuid(3), chat: uuid(9), parent: null, role: "user", text: "of none", created: 1, state: "done" }] };
  const [a, b] = [readExport(JSON.stringify(own)), readExport(JSON.stringify(own))];
  assert.deepEqual(a, b);
  assert.deepEqual([a.chats[0]!.id, a.messages.length, a.chats[0]!.own], [uuid(1), 1, { model: "m", sampling: { top_k: 1 } }]);
});

test("how long a prompt is and what fits is read from servers' own words", () => {
  const cases: [string, object][] = [
    ["the prompt has 900 tokens; this model's maximum context length is 512 tokens, and the KV cache holds 512", { limit: 512, tokens: 900 }],
    ["the prompt has 900 tokens; this model's maximum context length is 2048 tokens, and the KV cache holds 512", { limit: 512, tokens: 900 }],
    ["the prompt has 90 tokens and max_tokens is 700; this model's maximum context length is 512 tokens, and the KV cache holds 512", { limit: 512, tokens: 90, answer: 700 }],
    ["a text of 90000 bytes exceeds 512 tokens; this model's maximum context length is 512 tokens, and the KV cache holds 512", { limit: 512 }],
    ["This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.", { limit: 8192, tokens: 9001 }],
    ["You passed 4097 input tokens and requested 0 output tokens. However, the model's context length is only 4096 tokens", { limit: 4096, tokens: 4097 }],
    ["The input (9000 tokens) is longer than the model's context length (4096 tokens).", { limit: 4096, tokens: 9000 }],
    ["Requested tokens (5000) exceed context window of 4096", { limit: 4096, tokens: 5000 }],
    ["prompt is too long: 215000 tokens > 200000 maximum", { limit: 200000, tokens: 215000 }],
    ["This model's maximum prompt length is 131072 but the request contains 537812 tokens.", { limit: 131072, tokens: 537812 }],
    ["the request exceeds the available context size. try increasing the context size or enable context shift", {}],
  ];
  for (const [said, want] of cases) {
    assert.ok(isTooLong(said), said);
    assert.deepEqual(lengths(said), want, said);
  }
  assert.ok(!isTooLong("max_tokens is too large: 50000") && !isTooLong("segfault in kernel 7"));
});
