// An agent of a few lines on the AI SDK, which OpenCode and others are built on: ai_sdk.mjs URL MODEL HISTORY PROMPT.
import { execSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages lie elsewhere: where run.py installs them.
const found = createRequire(process.env.AI_SDK + "/");
const load = async (name) => await import(pathToFileURL(found.resolve(name)));
const { isStepCount, stepCountIs, streamText, tool } = await load("ai");
const { z } = await load("zod");

const [url, model, history, prompt] = process.argv.slice(2);
const text = z.string();
const tools = {
  write: tool({
    description: "Writes a file.",
    inputSchema: z.object({ path: text, content: text }),
    execute: async ({ path, content }) => (writeFileSync(path, content), "written"),
  }),
  edit: tool({
    description: "Replaces a text in a file.",
    inputSchema: z.object({ path: text, before: text, after: text }),
    execute: async ({ path, before, after }) => (writeFileSync(path, readFileSync(path, "utf8").replace(before, after)), "edited"),
  }),
  shell: tool({
    description: "Runs a command.",
    inputSchema: z.object({ command: text }),
    execute: async ({ command }) => execSync(command, { encoding: "utf8" }),
  }),
};
const settings = { name: "octet", baseURL: `${url}/v1`, apiKey: "none" };
const provider =
  process.env.PROVIDER === "openai"
    ? (await load("@ai-sdk/openai")).createOpenAI(settings)
    : (await load("@ai-sdk/openai-compatible")).createOpenAICompatible({ ...settings, includeUsage: true });
const messages = existsSync(history) ? JSON.parse(readFileSync(history, "utf8")) : [];
messages.push({ role: "user", content: prompt });
const result = streamText({
  model: provider(model),
  messages,
  tools,
  stopWhen: (isStepCount ?? stepCountIs)(20),
  onError: ({ error }) => {
    console.error(error);
    process.exitCode = 1;
  },
});
for await (const piece of result.textStream) process.stdout.write(piece);
messages.push(...(await result.response).messages);
writeFileSync(history, JSON.stringify(messages));
