// What a conversation is made of, as it is kept in the browser and exported.

/** A conversation. Its messages form a tree: an edit or a new answer is a further child of the same parent. */
export interface Chat {
  id: string;
  title: string;
  created: number;
  updated: number;
  /** Which child is shown, by parent; "" is the parent of first messages. */
  picks: Record<string, string>;
  /** Settings of this conversation; the others are the defaults. */
  own?: Own;
  /** What is written in the message field and not sent yet. */
  draft?: string;
  /** What it was imported from, so that it is not imported twice. */
  from?: string;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

export interface Attachment {
  name: string;
  kind: "text" | "pdf" | "image";
  /** Of a picture: its data URL. */
  text: string;
  bytes: number;
}

/** Figures of an answer. Times in milliseconds. */
export interface Figures {
  first?: number;
  tokens?: number;
  rate?: number;
  prompt?: number;
  cached?: number;
  promptRate?: number;
}

/** Tokens that each expert was chosen for while an answer ran, `[layers][experts]`. */
export interface ExpertCounts {
  perToken: number;
  layers: { layer: number; counts: number[] }[];
}

export type State = "done" | "running" | "stopped" | "cut" | "failed";

export interface Message {
  id: string;
  chat: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  text: string;
  created: number;
  state: State;
  reasoning?: string;
  reasoningMs?: number;
  attachments?: Attachment[];
  calls?: ToolCall[];
  /** Of a tool's result: the call that it answers. */
  callId?: string;
  tool?: string;
  /** A tool that failed; the text says how. */
  failed?: boolean;
  error?: string;
  /** The server's own words, where `error` says it in the user's. */
  errorDetail?: string;
  /** What the user can do about the error: shorten the message that was answered. */
  fix?: "shorten";
  finish?: string;
  figures?: Figures;
  model?: string;
  /** Who answered and why, where a router decided. */
  route?: string;
  warning?: string;
  /** The name of the stream on the server, while it may be read again. */
  stream?: string;
  /** Characters that stood there before the answer was continued. */
  continued?: number;
  experts?: ExpertCounts;
}

export const PARAMETERS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "seed", "max_tokens"] as const;
export type Parameter = (typeof PARAMETERS)[number];

export interface Tool {
  id: string;
  kind: "manual" | "http" | "mcp";
  enabled: boolean;
  /** Runs without asking. */
  auto: boolean;
  name: string;
  description: string;
  /** JSON schema of the arguments. */
  schema: string;
  url: string;
  method: "GET" | "POST";
  /** Further headers, one `Name: value` a line. */
  headers: string;
}

/** What a tool gave. */
export interface Result {
  text: string;
  failed: boolean;
}

export interface Preset {
  name: string;
  text: string;
}

export interface Settings {
  model: string;
  thinking: "" | "on" | "off";
  system: string;
  presets: Preset[];
  sampling: Partial<Record<Parameter, number>>;
  schemaOn: boolean;
  schema: string;
  /** Further fields of requests, as JSON. */
  extra: string;
  tools: Tool[];
  /** Tools of the server (`server/name`) that are switched off, and those that run without asking. */
  serverToolsOff: string[];
  serverToolsAllowed: string[];
  theme: "" | "light" | "dark";
  language: "" | "en" | "de";
}

/** What a conversation may have of its own. Of tools: whether each is on, by its id. */
export type Own = Partial<Pick<Settings, "model" | "thinking" | "system" | "sampling" | "schemaOn" | "schema" | "extra">> & { tools?: Record<string, boolean> };
