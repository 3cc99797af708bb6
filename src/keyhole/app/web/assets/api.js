// The token is in this module's memory alone, and goes out as a header: no cookie, no storage.

let token = null;

export class Failed extends Error {
  constructor(status, answer) {
    super(answer.why || answer.error || `status ${status}`);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, {
    ...options, headers, credentials: "omit", cache: "no-store", redirect: "error",
    referrerPolicy: "no-referrer",
  });
  if (!answer.ok) {
    let said = {};
    try { said = await answer.json(); } catch { /* no words */ }
    throw new Failed(answer.status, said);
  }
  return answer;
}

export async function login(key) {
  const body = JSON.stringify({ key });
  const headers = { "Content-Type": "application/json" };
  const answer = await send("/api/login", { method: "POST", body, headers });
  token = (await answer.json()).token;
}

export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null);
  const words = new URLSearchParams(given).toString();
  const answer = await send(words ? `${path}?${words}` : path, { signal });
  return answer.json();
}

export async function post(path, value = undefined) {
  const options = { method: "POST" };
  if (value !== undefined) {
    options.body = JSON.stringify(value);
    options.headers = { "Content-Type": "application/json" };
  }
  const answer = await send(path, options);
  return answer.status === 204 ? null : answer.json();
}

// Server-sent events by `fetch`: an EventSource can send no header. Calls `told` with each event;
// returns when the stream ends.
export async function follow(told, opened) {
  const answer = await send("/api/live");
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const found = /^event: (\w+)\ndata: (.*)$/.exec(part);
      if (found) told(found[1], JSON.parse(found[2]));
    }
  }
}
