// Takes the pictures of docs/, with `--shots`. Called by run.py.
import { join } from "node:path";
import test, { after, before } from "node:test";
import { answered, fresh, launch, saying, send, start, TEST } from "./setup.mjs";

const SKIP = { skip: !process.env.SHOTS, ...TEST };
let octet, url, browser;

before(async () => {
  if (SKIP.skip) return;
  const started = await start(process.env.OCTET, ["serve", "--port", "0", "--seed", "1"], /listening at (http:\S+)\s/);
  [octet, url] = [started.child, started.match[1]];
  browser = await launch();
});

after(async () => {
  await browser?.close();
  octet?.removeAllListeners("exit");
  octet?.kill("SIGKILL");
});

const shot = (page, name) => page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
const phone = { isMobile: true, hasTouch: true, deviceScaleFactor: 1 };
const TEXT = "A **fox** is a small animal of the dog family.\n\n| species | mass | length |\n|:--|--:|--:|\n| red fox | 8 kg | 70 cm |\n| fennec | 1.2 kg | 40 cm |\n\n```mermaid\nflowchart LR\n  den --> hunt{mouse?}\n  hunt -->|yes| dinner\n  hunt -->|no| sleep\n```\n\n- [x] hears a mouse under 60 cm of snow\n- [ ] sleeps at night";

test("a conversation and its experts", SKIP, async () => {
  const { page, context } = await fresh(browser, url, { options: { colorScheme: "light", viewport: { width: 1280, height: 800 } } });
  await page.click("#open-experts");
  await send(page, "Tell me a story about a fox.");
  await answered(page);
  await page.waitForFunction(() => {
    const canvas = document.querySelector("aside canvas");
    return canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(n => n > 0);
  });
  await page.waitForSelector(".words span");
  await shot(page, "page");
  await context.close();
});

test("the performance panel", SKIP, async () => {
  const { page, context } = await fresh(browser, url, { options: { colorScheme: "dark", viewport: { width: 1280, height: 800 } }, settings: saying(TEXT) });
  await page.click("#open-performance");
  await send(page, "What is a fox?");
  await answered(page);
  // After the rest in which the memory is measured, something that is seen in the charts.
  await page.waitForSelector(".chart .limit", { timeout: 60_000, state: "attached" });
  await page.evaluate(async body => (await fetch("v1/chat/completions", { method: "POST", body, headers: { "Content-Type": "application/json" } })).text(), JSON.stringify({ messages: [{ role: "user", content: "Tell me a story." }], max_tokens: 600, ignore_eos: true }));
  await page.waitForFunction(() => !document.querySelector('.chart[data-metric="performance.generated"] strong').textContent.startsWith("0"));
  await page.frameLocator("iframe").locator("svg .node >> nth=1").waitFor();
  await shot(page, "page-dark");
  await context.close();
});

for (const colorScheme of ["light", "dark"]) {
  for (const [width, height, more] of [[1440, 900, {}], [1024, 768, {}], [390, 844, phone]]) {
    test(`${width} pixels, ${colorScheme}`, SKIP, async () => {
      const { page, context } = await fresh(browser, url, { options: { colorScheme, viewport: { width, height }, ...more }, settings: saying(TEXT) });
      await page.waitForFunction(() => document.querySelectorAll(".examples button").length === 4);
      await shot(page, `page-empty-${width}-${colorScheme}`);
      await send(page, "What is a fox? Draw how it hunts.");
      await answered(page);
      await page.frameLocator("iframe").locator("svg .node >> nth=1").waitFor();
      await page.evaluate(() => document.querySelector("#log").scrollTo(0, 0));
      await shot(page, `page-${width}-${colorScheme}`);
      await context.close();
    });
  }
}
