// Builds the pages into ../assets: index.html, admin.html, and page/ with the rest, whose list the server includes. Names have no hashes: the
// server sends an ETag, and a change is a change of one file. The operator's page is built by itself, after the other (`--mode admin`), so that
// these share no files and neither grows by the other.
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const TYPES: Record<string, string> = {
  js: "text/javascript; charset=utf-8",
  mjs: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  woff2: "font/woff2",
  txt: "text/plain; charset=utf-8",
  html: "text/html; charset=utf-8",
  svg: "image/svg+xml",
  png: "image/png",
  webmanifest: "application/manifest+json",
};

/** Mermaid, for the frame that shows diagrams: its own small build, without the kinds of diagrams that need further libraries. */
const MERMAID = "node_modules/@mermaid-js/tiny";

/** Copies what no build changes: `static/`, and Mermaid. */
function copied(): Plugin {
  let out = "";
  return {
    name: "copied",
    configResolved(config) {
      out = config.build.outDir;
    },
    writeBundle() {
      const page = join(out, "page");
      mkdirSync(page, { recursive: true });
      for (const name of readdirSync("static")) copyFileSync(join("static", name), join(page, name));
      copyFileSync(join(MERMAID, "dist/mermaid.tiny.js"), join(page, "mermaid.js"));
    },
  };
}

/** Writes `page/licences.txt`: the licence of each package that is part of the page. */
function licences(): Plugin {
  const folders = new Set<string>([MERMAID]);
  let out = "";
  return {
    name: "licences",
    configResolved(config) {
      out = config.build.outDir;
    },
    generateBundle(_, bundle) {
      const modules = Object.values(bundle).flatMap(file => (file.type === "chunk" ? file.moduleIds : file.originalFileNames));
      for (const id of modules) {
        const folder = /^\0?(?:.*\/)?(node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replaceAll("\\", "/"))?.[1];
        if (folder) folders.add(folder);
      }
    },
    writeBundle() {
      const parts = [...folders].sort().map(folder => {
        const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Record<string, string>;
        const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "license"].map(f => join(folder, f)).find(existsSync);
        const text = file ? readFileSync(file, "utf8").trim() : `Licence: ${license}`;
        return `${name} ${version}\n${"=".repeat(name!.length + version!.length + 1)}\n\n${text}\n`;
      });
      writeFileSync(join(out, "page/licences.txt"), `The page contains parts of these packages.\n\n${parts.join("\n\n")}`);
    },
  };
}

/** Compresses all but fonts and pictures, which are, and writes `page/files.in`: path, content type and bytes of each file, as Rust. The first build deletes
 * what is there. */
function list(isFirst: boolean): Plugin {
  let out = "";
  return {
    name: "list",
    configResolved(config) {
      out = config.build.outDir;
    },
    buildStart() {
      if (isFirst) rmSync(join(out, "page"), { recursive: true, force: true });
    },
    closeBundle() {
      const names = readdirSync(join(out, "page")).filter(name => name !== "files.in").map(name => name.replace(/\.gz$/, "")).sort();
      const line = (path: string, type: string, file: string, gzip: boolean) => `    ("${path}", "${type}", include_bytes!("${file}"), ${gzip}),\n`;
      const lines = names.map(name => {
        const type = TYPES[name.split(".").pop() ?? ""];
        if (!type) throw new Error(`which content type has ${name}?`);
        if (type.startsWith("font/") || type === "image/png") return line(name, type, name, false);
        const path = join(out, "page", name);
        if (existsSync(path)) {
          writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
          rmSync(path);
        }
        return line(name, type, `${name}.gz`, true);
      });
      for (const document of isFirst ? ["index.html"] : ["admin.html", "index.html"]) {
        lines.unshift(line(document, "text/html; charset=utf-8", `../${document}`, false));
      }
      writeFileSync(join(out, "page/files.in"), `&[\n${lines.join("")}]\n`);
    },
  };
}

/** KaTeX names three forms of each font; every browser that runs the page reads the first. */
function woff2Only(): Plugin {
  return {
    name: "woff2-only",
    enforce: "pre",
    transform(code, id) {
      if (!id.endsWith("katex.min.css")) return null;
      return code.replace(/,url\([^)]*\.woff\) format\("woff"\),url\([^)]*\.ttf\) format\("truetype"\)/g, "");
    },
  };
}

const server = process.env.OCTET ?? "http://127.0.0.1:8080";

export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: mode === "admin" ? [list(false)] : [woff2Only(), licences(), copied(), list(true)],
  server: {
    proxy: Object.fromEntries(["v1", "api", "ready", "props", "experts", "metrics", "streams", "openapi.json", "admin/status", "key", "user", "team", "v2", "spend"].map(path => [`/${path}`, { target: server, changeOrigin: true, headers: { origin: server } }])),
  },
  build: {
    outDir: process.env.OUT ?? "../assets",
    emptyOutDir: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2023",
    // These have light-dark(), which would else be replaced by something that no switch can change.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
    rolldownOptions: {
      input: mode === "admin" ? "admin.html" : "index.html",
      output: {
        entryFileNames: mode === "admin" ? "page/admin.js" : "page/app.js",
        chunkFileNames: "page/[name].js",
        assetFileNames: "page/[name][extname]",
      },
    },
  },
}));
