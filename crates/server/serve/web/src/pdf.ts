// Text of PDF files: loaded when the first is attached.
import * as pdfjs from "pdfjs-dist";
import workerUrl from "pdfjs-dist/build/pdf.worker.min.mjs?url";
import { scriptUrl } from "./trusted.ts";

const PAGES_MAX = 500;

/** The text of a PDF, page by page. */
export async function pdfText(data: ArrayBuffer): Promise<string> {
  const port = new Worker(scriptUrl(new URL(workerUrl, import.meta.url)), { type: "module" });
  pdfjs.GlobalWorkerOptions.workerPort = port;
  const loading = pdfjs.getDocument({ data, isEvalSupported: false, useWasm: false, disableFontFace: true, useSystemFonts: false });
  try {
    const pdf = await loading.promise;
    const pages: string[] = [];
    for (let n = 1; n <= Math.min(pdf.numPages, PAGES_MAX); n++) {
      const { items } = await (await pdf.getPage(n)).getTextContent();
      pages.push(items.map(item => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : "")).join(""));
    }
    return pages.join("\n\n").trim();
  } finally {
    await loading.destroy();
    port.terminate();
  }
}
