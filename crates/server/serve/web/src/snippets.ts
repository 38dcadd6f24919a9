// A request as a program in other languages: pure functions of address and body.

const indent = (text: string, by: string) => text.split("\n").join(`\n${by}`);

/** For a POSIX shell. */
export function curl(url: string, body: object, hasKey: boolean): string {
  const text = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $OCTET_API_KEY"` : "";
  return `curl --no-buffer ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${text}'`;
}

/** A JSON value as Python writes it. */
export function pythonValue(value: unknown, by = ""): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return value.length ? `[\n${value.map(v => `${by}    ${pythonValue(v, `${by}    `)},`).join("\n")}\n${by}]` : "[]";
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([k, v]) => `${by}    ${JSON.stringify(k)}: ${pythonValue(v, `${by}    `)},`);
    return entries.length ? `{\n${entries.join("\n")}\n${by}}` : "{}";
  }
  return JSON.stringify(value);
}

/** The fields that OpenAI's package has arguments for; the rest goes into `extra_body`. */
const OPENAI = new Set(["model", "messages", "stream", "stream_options", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "tools", "response_format", "stop"]);

/** With OpenAI's package. */
export function python(base: string, body: Record<string, unknown>, hasKey: boolean): string {
  const known = Object.entries(body).filter(([name]) => OPENAI.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI.has(name)));
  const args = known.map(([name, value]) => `    ${name}=${pythonValue(value, "    ")},`);
  if (Object.keys(extra).length) args.push(`    extra_body=${pythonValue(extra, "    ")},`);
  const key = hasKey ? `os.environ["OCTET_API_KEY"]` : `"none"`;
  const read = body.stream
    ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`
    : `print(answer.choices[0].message.content)`;
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key=${key})\nanswer = client.chat.completions.create(\n${args.join("\n")}\n)\n${read}`;
}

/** For Node and browsers. */
export function javascript(url: string, body: Record<string, unknown>, hasKey: boolean): string {
  const key = hasKey ? `\n    Authorization: \`Bearer \${process.env.OCTET_API_KEY}\`,` : "";
  const read = body.stream
    ? `for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {\n  process.stdout.write(bytes); // server-sent events\n}`
    : `console.log((await response.json()).choices[0].message.content);`;
  return `const response = await fetch("${url}", {\n  method: "POST",\n  headers: {\n    "Content-Type": "application/json",${key}\n  },\n  body: JSON.stringify(${indent(JSON.stringify(body, null, 2), "  ")}),\n});\n${read}`;
}
