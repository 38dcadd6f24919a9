// Finds the conversations in a ZIP file, as ChatGPT exports them. Browsers can unpack its parts, but not find them.

const [END, ENTRY] = [0x06054b50, 0x02014b50];
/** Unpacked, all together: more makes a tab run out of memory. */
const BYTES_MAX = 200 << 20;

/** The text of the first file named conversations.json, or the first of its numbered parts all together as one list. */
export async function conversationsIn(data: ArrayBuffer): Promise<string> {
  const parts: string[] = [];
  let left = BYTES_MAX;
  for (const entry of entries(data)) {
    if (!/(^|\/)conversations(-\d+)?\.json$/.test(entry.name)) continue;
    const bytes = await unpack(data, entry, left);
    left -= bytes.byteLength;
    parts.push(new TextDecoder().decode(bytes));
  }
  if (parts.length < 2) return parts[0] ?? "";
  return JSON.stringify(parts.flatMap(text => JSON.parse(text) as unknown[]));
}

interface Entry {
  name: string;
  method: number;
  packed: number;
  size: number;
  at: number;
}

/** The list at the file's end. */
function entries(data: ArrayBuffer): Entry[] {
  const view = new DataView(data);
  let end = data.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== END) end--;
  if (end < 0) throw new Error("not a ZIP file");
  const out: Entry[] = [];
  let at = view.getUint32(end + 16, true);
  for (let n = view.getUint16(end + 10, true); n > 0 && at + 46 <= data.byteLength && view.getUint32(at, true) === ENTRY; n--) {
    const [name, extra, comment] = [28, 30, 32].map(o => view.getUint16(at + o, true)) as [number, number, number];
    out.push({
      name: new TextDecoder().decode(new Uint8Array(data, at + 46, name)),
      method: view.getUint16(at + 10, true), packed: view.getUint32(at + 20, true), size: view.getUint32(at + 24, true), at: view.getUint32(at + 42, true),
    });
    at += 46 + name + extra + comment;
  }
  return out;
}

/** The bytes of an entry, at most `most`: what it says of its size need not be true. */
async function unpack(data: ArrayBuffer, entry: Entry, most: number): Promise<Uint8Array> {
  const tooLarge = () => new Error(`${entry.name} is too large: a page reads ${BYTES_MAX >> 20} MiB`);
  if (entry.size > most) throw tooLarge();
  const view = new DataView(data);
  const begin = entry.at + 30 + view.getUint16(entry.at + 26, true) + view.getUint16(entry.at + 28, true);
  const bytes = new Uint8Array(data, begin, entry.packed);
  if (entry.method === 0) return bytes;
  if (entry.method !== 8) throw new Error(`${entry.name} is packed in a way that browsers cannot read`);
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.byteLength;
    if (size > most) {
      await reader.cancel();
      throw tooLarge();
    }
    parts.push(value as Uint8Array<ArrayBuffer>);
  }
}
