#!/usr/bin/env node
// Prisma's query engine as a program, for LiteLLM's proxy. `litellm_database.py` puts it beside the npm packages that it needs.
//
// Prisma's client for Python asks a program over HTTP, in GraphQL. The same engine is in the npm package @prisma/client as WebAssembly: it is
// asked in JSON, and reaches PostgreSQL through @prisma/adapter-pg. This program translates between the two.
const fs = require("fs");
const http = require("http");
const { parse } = require("graphql");
const { Pool } = require("pg");
const { PrismaPg } = require("@prisma/adapter-pg");

// The adapter knows no names (a type of PostgreSQL's own tables) and no lists of them; they are text.
const TEXT = { 19: 25, 1003: 1009 };
const Result = require("pg/lib/result");
const { addFields } = Result.prototype;
Result.prototype.addFields = function (fields) {
  for (const field of fields) field.dataTypeID = TEXT[field.dataTypeID] ?? field.dataTypeID;
  return addFields.call(this, fields);
};

const ACTIONS = ["findUnique", "findFirst", "findMany", "createOne", "createMany", "updateOne", "updateMany", "deleteOne", "deleteMany", "upsertOne", "aggregate", "groupBy", "queryRaw", "executeRaw"];

if (process.argv.includes("--version")) {
  console.log(`query-engine ${require("@prisma/engines-version").enginesVersion}`);
  process.exit(0);
}

// The types of all fields, by model: GraphQL's strings are JSON where the schema says so.
const schema = fs.readFileSync(process.env.PRISMA_DML_PATH, "utf8");
const models = {};
for (const [, name, body] of schema.matchAll(/^model (\w+) \{\n([^]*?)^\}/gm)) {
  models[name] = Object.fromEntries([...body.matchAll(/^\s+(\w+)\s+(\w+)/gm)].map((m) => [m[1], m[2]]));
}

// A value of an argument. `model` has the fields that an object names; `type` is the field's own, if the value is one's.
function value(node, model, type) {
  switch (node.kind) {
    case "IntValue":
      return Number.isSafeInteger(+node.value) ? +node.value : { $type: "BigInt", value: node.value };
    case "FloatValue":
      return +node.value;
    case "NullValue":
      return null;
    case "ListValue":
      return node.values.map((inner) => value(inner, model, type));
    case "ObjectValue":
      return object(node.fields, model, type);
    case "StringValue":
      return type === "Json" ? { $type: "Json", value: node.value } : node.value;
    default:
      return node.value;
  }
}

function object(fields, model, type) {
  // A filter of a JSON field has its path and texts beside values.
  const of = (name) => (type === "Json" ? (/^(path|string_|mode)/.test(name) ? undefined : "Json") : (models[model]?.[name] ?? type));
  return Object.fromEntries(fields.map(({ name, value: v }) => [name.value, value(v, models[of(name.value)] ? of(name.value) : model, of(name.value))]));
}

function selection(field, model) {
  const chosen = {};
  for (const inner of field.selectionSet?.selections ?? []) {
    chosen[inner.name.value] = inner.selectionSet ? nested(inner, models[model]?.[inner.name.value]) : true;
  }
  return chosen;
}

function nested(field, model) {
  return { arguments: object(field.arguments, model), selection: selection(field, model) };
}

// One query of the client, as the engine's JSON.
function translate(text) {
  const field = parse(text, { noLocation: true }).definitions[0].selectionSet.selections[0];
  const name = field.name.value;
  const action = ACTIONS.filter((a) => name.startsWith(a)).sort((a, b) => b.length - a.length)[0];
  const model = name.slice(action.length);
  const query = { action, query: nested(field, model) };
  return { query: model ? { modelName: model, ...query } : query, alias: field.alias?.value ?? name };
}

// The engine marks types that JSON does not have; the client expects plain values.
function plain(data) {
  if (Array.isArray(data)) return data.map(plain);
  if (data === null || typeof data !== "object") return data;
  if ("$type" in data) return data.value;
  return Object.fromEntries(Object.entries(data).map(([k, v]) => [k, plain(v)]));
}

function answer(reply, alias) {
  if (reply.errors) return { errors: reply.errors };
  const [result] = Object.values(reply.data);
  return { data: { [alias]: plain(result) } };
}

async function engine() {
  const client = require.resolve("@prisma/client/runtime/query_engine_bg.postgresql.js");
  const bindings = require(client);
  const module = new WebAssembly.Module(fs.readFileSync(client.replace(/js$/, "wasm")));
  bindings.__wbg_set_wasm(new WebAssembly.Instance(module, { "./query_engine_bg.js": bindings }).exports);
  const overwritten = process.env.OVERWRITE_DATASOURCES ? JSON.parse(process.env.OVERWRITE_DATASOURCES)[0]?.url : undefined;
  const pool = new Pool({ connectionString: overwritten ?? process.env.DATABASE_URL, max: 10 });
  const { bindAdapter } = require("@prisma/driver-adapter-utils");
  const made = new bindings.QueryEngine({ datamodel: schema, logLevel: "error", logQueries: false, enableTracing: false }, () => {}, bindAdapter(new PrismaPg(pool)));
  await made.connect("{}");
  return made;
}

async function main() {
  const port = +process.argv[process.argv.indexOf("-p") + 1];
  const started = await engine();
  const one = async (body, transaction) => {
    const { query, alias } = translate(body.query);
    const reply = JSON.parse(await started.query(JSON.stringify(query), "{}", transaction));
    return answer(reply, alias);
  };
  const handle = async (path, body, transaction) => {
    if (path === "/status") return { status: "ok" };
    if (path.startsWith("/metrics")) return { counters: [], gauges: [], histograms: [] };
    if (path === "/transaction/start") return JSON.parse(await started.startTransaction(JSON.stringify(body), "{}"));
    const end = path.match(/^\/transaction\/(.+)\/(commit|rollback)$/);
    if (end) return JSON.parse(await started[`${end[2]}Transaction`](end[1], "{}"));
    if (!body.batch) return one(body, transaction);
    const translated = body.batch.map((b) => translate(b.query));
    const batch = { batch: translated.map((t) => t.query), transaction: body.transaction ? { isolationLevel: null } : undefined };
    const reply = JSON.parse(await started.query(JSON.stringify(batch), "{}", transaction));
    if (reply.errors) return { errors: reply.errors };
    return { batchResult: reply.batchResult.map((r, i) => answer(r, translated[i].alias)) };
  };
  http
    .createServer(async (request, response) => {
      let text = "";
      for await (const piece of request) text += piece;
      let status = 200;
      let out;
      try {
        out = await handle(request.url, text ? JSON.parse(text) : {}, request.headers["x-transaction-id"]);
      } catch (e) {
        status = 500;
        out = { errors: [{ error: String(e), user_facing_error: { message: String(e), is_panic: false } }] };
      }
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(out));
    })
    .listen(port, "localhost");
}

process.on("SIGINT", () => process.exit(0));
main();
