// The page's policy lets only named makers give addresses of scripts; this one gives those of the page's own files.

const policy = window.trustedTypes?.createPolicy("octet", {
  createScriptURL: text => {
    if (new URL(text).origin !== location.origin) throw new TypeError("a script of another server");
    return text;
  },
});

/** The address of one of the page's scripts. */
export function scriptUrl(url: URL): string {
  return (policy?.createScriptURL(url.href) ?? url.href) as string;
}
