// Where the server is: every address of the page comes from where its own modules lie, so that it works at /, at /app/, at /status/ and
// behind any prefix of a proxy. The one rule: no address of another host is ever made here.

const PAGE = new URL("../", import.meta.url);
const ROOT = /\/(app|status)\/$/.test(PAGE.pathname) ? new URL("../", PAGE) : PAGE;

/** Subprotocols by which a browser, which cannot send headers, gives its key; the server selects the first. */
export const protocolsWith = (key) => (key ? ["realtime", `openai-insecure-api-key.${key}`] : []);

/** Keys hold nothing else: a subprotocol could not carry it. */
export const isKey = (text) => /^[\w!#$%&'*+.^`|~-]+$/.test(text);

export const httpUrl = (path) => new URL(path, ROOT).href;

export function socketUrl(path, query = {}) {
  const url = new URL(path, ROOT);
  url.protocol = url.protocol.replace("http", "ws");
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url.href;
}

export const host = ROOT.host;

/**
 * Get JSON (or text) of the server; `{status, body, ms}`, with status 0 where nobody answers.
 */
export async function get(path, key, { asText = false, timeoutMs = 8000 } = {}) {
  const started = performance.now();
  try {
    const reply = await fetch(httpUrl(path), {
      headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store", signal: AbortSignal.timeout(timeoutMs),
    });
    const ms = performance.now() - started;
    const body = asText && reply.ok ? await reply.text() : await reply.json().catch(() => ({}));
    return { status: reply.status, body, ms };
  } catch {
    return { status: 0, body: {}, ms: performance.now() - started };
  }
}
