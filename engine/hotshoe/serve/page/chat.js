// The conversation: messages, and the field in which the next one is written.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html, Icon, IconButton, Logo } from "./html.js";
import { Code, Copy, Markdown } from "./markdown.js";
import { ask, change, isWriting, retry, state, stop, textModels } from "./state.js";

const number = new Intl.NumberFormat("en");
const MAX_PICTURE = 20 << 20;

export function Chat({ talk }) {
  const writing = isWriting(talk.id);
  const models = textModels();
  const model = models.find((m) => m.name === talk.model);
  const end = useRef(null);
  const follows = useRef(true); // whether the newest text is in view, and is to stay there

  useLayoutEffect(() => {
    if (follows.current) end.current?.parentElement.scrollTo({ top: end.current.parentElement.scrollHeight });
  });
  useEffect(() => {
    const stopByKey = (event) => event.key === "Escape" && isWriting(talk.id) && stop(talk.id);
    addEventListener("keydown", stopByKey);
    return () => removeEventListener("keydown", stopByKey);
  }, [talk.id]);
  const scrolled = ({ currentTarget: at }) => {
    follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < 60;
  };

  return html`
    <header class="bar">
      <h1 class="visually-hidden">${talk.title || "New conversation"}</h1>
      <label class="pick">
        <span class="visually-hidden">Model</span>
        <select value=${talk.model} onChange=${(e) => change(talk, { model: e.currentTarget.value })}>
          ${models.map((m) => html`<option value=${m.name}>${m.name}${m.state === "loaded" ? "" : ` (${m.state})`}</option>`)}
        </select>
      </label>
      ${model?.state === "loaded" && html`<span class="about" title=${model.why}>${model.device}, ${number.format(model.context_length)} tokens of context</span>`}
      <${Settings} talk=${talk} model=${model} />
    </header>
    <div class="messages" role="log" aria-live="off" aria-label="Messages" tabindex="0" onScroll=${scrolled}>
      ${talk.messages.length
        ? talk.messages.map((message, i) =>
            message.role === "user"
              ? html`<${Question} key=${i} talk=${talk} message=${message} index=${i} writing=${writing} />`
              : html`<${Answer} key=${i} talk=${talk} message=${message} index=${i} writing=${writing && i === talk.messages.length - 1} />`,
          )
        : html`<${Welcome} model=${model} />`}
      <div ref=${end}></div>
    </div>
    <${Composer} key=${talk.id} talk=${talk} model=${model} writing=${writing} onSend=${() => (follows.current = true)} />
  `;
}

function Welcome({ model }) {
  return html`<div class="welcome">
    <${Logo} />
    <p>${model ? (model.state === "loaded" ? model.why : `${model.name} is loaded with the first message.`) : "This server has no model that chats."}</p>
  </div>`;
}

function Settings({ talk, model }) {
  const set = (name) => (event) => change(talk, { settings: { ...talk.settings, [name]: event.currentTarget.value } });
  const { system, temperature, max_tokens: most, thinking } = talk.settings;
  const panel = useRef(null);
  useEffect(() => {
    const close = (event) => {
      if (event.type === "keydown" ? event.key === "Escape" : !panel.current.contains(event.target)) panel.current.open = false;
    };
    addEventListener("pointerdown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("pointerdown", close);
      removeEventListener("keydown", close);
    };
  }, []);
  return html`<details class="settings" ref=${panel}>
    <summary class="quiet" aria-label="Settings of this conversation" title="Settings of this conversation"><${Icon} name="sliders" /></summary>
    <div class="card">
      <label>Instruction<textarea rows="4" value=${system} onInput=${set("system")} placeholder="You are …"></textarea></label>
      <div class="pair">
        <label>Temperature<input type="number" min="0" max="5" step="0.1" placeholder="default" value=${temperature} onInput=${set("temperature")} /></label>
        <label>Most tokens<input type="number" min="1" placeholder="no limit" value=${most} onInput=${set("max_tokens")} /></label>
      </div>
      ${model?.capabilities?.includes("thinking") &&
      html`<label>Thinking<select value=${thinking} onChange=${set("thinking")}>
        <option value="">as the model likes</option><option value="on">on</option><option value="off">off</option>
      </select></label>`}
    </div>
  </details>`;
}

function Question({ talk, message, index, writing }) {
  const [draft, setDraft] = useState(null);
  const field = useRef(null);
  useEffect(() => {
    if (draft !== null) field.current.focus();
  }, [draft === null]);
  if (draft !== null) {
    const save = () => {
      setDraft(null);
      ask(talk, draft, message.images, index);
    };
    const key = (event) => {
      if (event.key === "Escape") setDraft(null);
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    };
    return html`<article class="question editing" aria-label="You">
      <textarea ref=${field} aria-label="Edit the message" rows=${Math.min(12, draft.split("\n").length + 1)} value=${draft} onInput=${(e) => setDraft(e.currentTarget.value)} onKeyDown=${key}></textarea>
      <div class="row"><button type="button" onClick=${() => setDraft(null)}>Cancel</button>
        <button type="button" class="main" disabled=${!draft.trim()} onClick=${save}>Ask again</button></div>
    </article>`;
  }
  return html`<article class="question" aria-label="You">
    <div class="bubble">
      ${(message.images || []).map((url, i) => html`<img src=${url} alt=${`picture ${i + 1}`} />`)}
      <p>${message.content}</p>
    </div>
    <div class="tools">
      <${Copy} text=${message.content} what="message" />
      <${IconButton} icon="edit" label="Edit and ask again" disabled=${writing} onClick=${() => setDraft(message.content)} />
    </div>
  </article>`;
}

function Answer({ talk, message, index, writing }) {
  const { content, reasoning, calls, error, stopped } = message;
  const starting = writing && !content && !reasoning && !calls.length;
  const thinking = writing && reasoning && !content;
  const model = textModels().find((m) => m.name === message.model);
  return html`<article class="answer" aria-label=${message.model} aria-busy=${writing}>
    ${reasoning &&
    html`<details class="fold">
      <summary>${thinking ? html`<span class="pulse">Thinking</span>` : message.thought > 1 ? `Thought for ${message.thought.toFixed(1)} s` : "Thoughts"}</summary>
      <${Markdown} text=${reasoning} />
    </details>`}
    ${content && html`<${Markdown} text=${content} />`}
    ${calls.map(
      (call) => html`<details class="fold"><summary>Call of <code>${call.function.name}</code></summary>
        <${Code} text=${pretty(call.function.arguments)} language="json" /></details>`,
    )}
    ${starting && html`<p class="pulse waiting">${model?.state === "loaded" ? "Reading the prompt" : "Loading the model"}</p>`}
    ${error && html`<p class="problem" role="alert">${error}</p>`}
    <footer>
      ${!writing &&
      html`<div class="tools">
        <${Copy} text=${content} what="answer" />
        <${IconButton} icon="retry" label="Answer again" disabled=${isWriting(talk.id)} onClick=${() => retry(talk, index)} />
      </div>`}
      <${Numbers} message=${message} writing=${writing} stopped=${stopped} />
    </footer>
  </article>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const rate = (n) => n.toFixed(n < 100 ? 1 : 0);

// Why the answer took the time that it took.
function Numbers({ message, writing, stopped }) {
  const { timings: t, speed, finish } = message;
  if (!t) {
    const text = writing ? (speed ? `${rate(speed)} tokens/s` : "") : stopped ? "stopped" : "";
    return text && html`<p class="numbers">${text}</p>`;
  }
  const read = t.cache_n + t.prompt_n;
  const facts = [
    ["Device", t.why || t.device],
    ["Waited", `${(t.queued_ms / 1000).toFixed(2)} s before the first step`],
    ["Read", `${number.format(read)} tokens, ${number.format(t.cache_n)} of them from the cache; ${number.format(t.prompt_n)} at ${t.prompt_per_second.toFixed(1)}/s`],
    ["Wrote", `${number.format(t.predicted_n)} tokens at ${t.predicted_per_second.toFixed(1)}/s`],
    ...(finish && finish !== "stop" ? [["Ended by", { length: "the limit of tokens, or the full context", tool_calls: "a call" }[finish] || finish]] : []),
    ...(t.ignored.length ? [["Without effect", t.ignored.join(", ")]] : []),
  ];
  return html`<details class="numbers" onToggle=${(e) => e.currentTarget.open && e.currentTarget.scrollIntoView({ block: "nearest" })}>
    <summary>${t.device}, ${rate(t.predicted_per_second)} tokens/s${stopped ? ", stopped" : ""}${finish === "length" ? ", cut at the limit" : ""}</summary>
    <dl>${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </details>`;
}

function Composer({ talk, model, writing, onSend }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [problem, setProblem] = useState("");
  const field = useRef(null);
  const file = useRef(null);
  const sees = !!model?.capabilities?.includes("vision");
  useEffect(() => field.current.focus(), [talk.id]);
  useLayoutEffect(() => {
    const style = field.current.style;
    style.height = "auto";
    style.height = `${Math.min(field.current.scrollHeight, innerHeight * 0.4)}px`;
  }, [text]);

  const send = () => {
    if (writing || !text.trim() || !talk.model) return;
    onSend();
    ask(talk, text, images);
    setText("");
    setImages([]);
  };
  const attach = (files) => {
    setProblem("");
    for (const one of files) {
      if (!one.type.startsWith("image/")) setProblem(`${one.name} is not a picture`);
      else if (one.size > MAX_PICTURE) setProblem(`${one.name} is larger than 20 MiB`);
      else {
        const reader = new FileReader();
        reader.onload = () => setImages((all) => [...all, reader.result]);
        reader.readAsDataURL(one);
      }
    }
  };
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    const last = talk.messages.findLast((m) => m.role === "user");
    if (event.key === "ArrowUp" && !text && last) {
      event.preventDefault();
      setText(last.content);
    }
  };
  const drop = (event) => {
    if (!sees || !event.dataTransfer.files.length) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  };
  const paste = (event) => sees && event.clipboardData.files.length && (event.preventDefault(), attach(event.clipboardData.files));

  return html`<form class="composer" aria-label="New message" onSubmit=${(e) => (e.preventDefault(), send())} onDragOver=${(e) => sees && e.preventDefault()} onDrop=${drop}>
    ${images.length > 0 &&
    html`<ul class="pictures" aria-label="Pictures of this message">
      ${images.map((url, i) => html`<li><img src=${url} alt=${`picture ${i + 1}`} />
        <${IconButton} icon="close" label=${`Remove picture ${i + 1}`} onClick=${() => setImages(images.filter((_, j) => j !== i))} /></li>`)}
    </ul>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <textarea ref=${field} rows="1" aria-label="Message" placeholder="Write a message" value=${text} onInput=${(e) => setText(e.currentTarget.value)} onKeyDown=${key} onPaste=${paste}></textarea>
    <div class="row">
      ${sees &&
      html`<${IconButton} icon="image" label="Attach a picture" onClick=${() => file.current.click()} />
        <input ref=${file} type="file" accept="image/*" multiple hidden onChange=${(e) => (attach(e.currentTarget.files), (e.currentTarget.value = ""))} />`}
      <span class="hint">${writing ? "Esc stops" : "Enter sends, Shift+Enter begins a line"}</span>
      ${writing
        ? html`<button type="button" class="main round" aria-label="Stop" title="Stop (Esc)" onClick=${() => stop(talk.id)}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="main round" aria-label="Send" title="Send (Enter)" disabled=${!text.trim() || !talk.model}><${Icon} name="send" /></button>`}
    </div>
  </form>`;
}
