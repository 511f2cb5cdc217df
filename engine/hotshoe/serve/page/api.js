// The server's public endpoints. All addresses are relative to the page.

let key = sessionStorage.getItem("hotshoe.key") || "";

export function setKey(value) {
  key = value;
  sessionStorage.setItem("hotshoe.key", value);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, body, signal) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
  if (!response.ok) {
    const text = await response.text();
    let found;
    try {
      found = JSON.parse(text).error;
    } catch {
      found = text;
    }
    throw new ApiError(response.status, (found && found.message) || found || `status ${response.status}`);
  }
  return response;
}

export async function get(path) {
  return (await send(path)).json();
}

export async function post(path, body) {
  return (await send(path, body)).json();
}

// The chunks of an answer of /v1/chat/completions. Throws ApiError, also for an error in the middle of the stream.
export async function* chat(body, signal) {
  const response = await send("v1/chat/completions", { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new ApiError(500, chunk.error.message);
      yield chunk;
    }
  }
}
