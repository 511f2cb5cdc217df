// What the page knows: conversations, which the browser keeps, and the server's status, which is asked for again.
import { ApiError, chat, get, post } from "./api.js";

const KEPT = "hotshoe.conversations";
const listeners = new Set();
const streams = new Map(); // conversation → AbortController

export const state = {
  view: "chat",
  conversations: load(),
  current: null,
  status: null,
  devices: null,
  error: "", // why the server's status is unknown
  needsKey: false,
  speeds: [], // pieces of text per second, of the last two minutes
  notice: "", // said to a screen reader
  busy: {}, // models that are being loaded or unloaded
};

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let scheduled = false;
export function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    for (const listener of listeners) listener();
  });
}

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

// Another tab changed the conversations: keep only what is being written here.
addEventListener("storage", ({ key }) => {
  if (key !== KEPT) return;
  const own = state.conversations.filter((c) => streams.has(c.id) || !c.messages.length);
  state.conversations = [...own, ...load().filter((c) => !own.some((o) => o.id === c.id))];
  conversation() ? changed() : begin();
});

function keep() {
  const kept = state.conversations.filter((c) => c.messages.length);
  try {
    localStorage.setItem(KEPT, JSON.stringify(kept));
  } catch {
    // full: keep texts only
    const texts = kept.map((c) => ({ ...c, messages: c.messages.map((m) => ({ ...m, images: [] })) }));
    try {
      localStorage.setItem(KEPT, JSON.stringify(texts));
    } catch {
      state.notice = "The browser's storage is full: new messages are not kept.";
    }
  }
}

// Conversations.

export function conversation() {
  return state.conversations.find((c) => c.id === state.current) || null;
}

export function open(id) {
  state.current = id;
  state.view = "chat";
  changed();
}

export function begin() {
  const last = conversation();
  const settings = last ? { ...last.settings } : { system: "", temperature: "", max_tokens: "", thinking: "" };
  const id = [...crypto.getRandomValues(new Uint32Array(4))].join("-"); // randomUUID needs https or localhost
  const fresh = { id, title: "", model: last ? last.model : "", settings, messages: [] };
  state.conversations = [fresh, ...state.conversations.filter((c) => c.messages.length)];
  open(fresh.id);
}

export function remove(id) {
  stop(id);
  state.conversations = state.conversations.filter((c) => c.id !== id);
  if (state.current === id) state.current = null;
  keep();
  state.current ? changed() : begin();
}

export function change(talk, values) {
  Object.assign(talk, values);
  keep();
  changed();
}

export function isWriting(id) {
  return streams.has(id);
}

export function stop(id) {
  streams.get(id)?.abort();
}

// Ask again from message `index` on; `text` replaces it. Later messages are dropped.
export function ask(talk, text, images, index = talk.messages.length) {
  talk.messages = [...talk.messages.slice(0, index), { role: "user", content: text, images: images || [] }];
  talk.title ||= text.trim().replace(/\s+/g, " ").slice(0, 60);
  state.conversations = [talk, ...state.conversations.filter((c) => c !== talk)];
  return answer(talk);
}

export function retry(talk, index) {
  talk.messages = talk.messages.slice(0, index);
  return answer(talk);
}

function sent(message) {
  const found = { role: message.role, content: message.content };
  if (message.images?.length) {
    const pictures = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
    found.content = [...pictures, { type: "text", text: message.content }];
  }
  if (message.reasoning) found.reasoning_content = message.reasoning;
  if (message.calls?.length) found.tool_calls = message.calls;
  return found;
}

function request(talk) {
  const { system, temperature, max_tokens, thinking } = talk.settings;
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  const messages = talk.messages.filter((m) => m.role === "user" || m.content || m.calls.length).map(sent);
  const body = { model: talk.model, messages: [...first, ...messages] };
  if (temperature !== "") body.temperature = Number(temperature);
  if (max_tokens !== "") body.max_tokens = Number(max_tokens);
  if (thinking !== "") body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  return body;
}

async function answer(talk) {
  const body = request(talk);
  const reply = { role: "assistant", content: "", reasoning: "", calls: [], model: talk.model, pieces: 0 };
  talk.messages = [...talk.messages, reply];
  const control = new AbortController();
  streams.set(talk.id, control);
  keep();
  changed();
  const start = performance.now();
  let first = 0;
  try {
    for await (const chunk of chat(body, control.signal)) {
      const choice = chunk.choices[0] || { delta: {} };
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
      if (content || reasoning || calls) {
        first ||= performance.now();
        reply.pieces += 1;
        reply.speed = reply.pieces > 1 ? (1000 * (reply.pieces - 1)) / (performance.now() - first) : 0;
      }
      if (reasoning) reply.reasoning += reasoning;
      if (content) {
        if (reply.reasoning && !reply.content) reply.thought = (performance.now() - start) / 1000;
        reply.content += content;
      }
      for (const { index, ...call } of calls || []) reply.calls.push(call);
      if (choice.finish_reason) reply.finish = choice.finish_reason;
      if (chunk.timings) reply.timings = chunk.timings;
      changed();
    }
    state.notice = "The answer is complete.";
  } catch (error) {
    if (error.name === "AbortError") {
      reply.stopped = true;
      state.notice = "The answer was stopped.";
    } else {
      reply.error = error.message;
      state.notice = `The answer failed: ${error.message}`;
      if (error.status === 401) state.needsKey = true;
    }
  } finally {
    streams.delete(talk.id);
    keep();
    changed();
  }
}

// The server.

let counted = null;

export async function refresh() {
  try {
    state.status = await get("api/status");
    state.error = "";
    state.needsKey = false;
    const now = performance.now() / 1000;
    const written = state.status.models.reduce((sum, m) => sum + m.written, 0);
    if (counted) state.speeds = [...state.speeds.slice(-59), Math.max(0, written - counted[1]) / (now - counted[0])];
    counted = [now, written];
    const names = textModels().map((m) => m.name);
    for (const talk of state.conversations) if (!names.includes(talk.model) && !talk.messages.length) talk.model = names[0] || "";
  } catch (error) {
    state.needsKey = error instanceof ApiError && error.status === 401;
    state.error = error.message;
  }
  changed();
}

export async function refreshDevices() {
  try {
    state.devices = await get("api/devices");
  } catch (error) {
    state.devices = { devices: [], verdicts: [], why: null, error: error.message };
  }
  changed();
}

export function textModels() {
  return (state.status?.models || []).filter((m) => !m.task || m.task === "text");
}

export async function setLoaded(name, loaded) {
  state.busy = { ...state.busy, [name]: loaded ? "loading" : "unloading" };
  changed();
  try {
    await post("api/generate", loaded ? { model: name } : { model: name, keep_alive: 0 });
    state.notice = `${name} was ${loaded ? "loaded" : "unloaded"}.`;
    delete state.busy[`${name} failed`];
  } catch (error) {
    state.busy[`${name} failed`] = error.message;
    state.notice = error.message;
  }
  delete state.busy[name];
  await refresh();
}
