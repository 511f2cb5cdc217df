// The page: the side bar, and one of its views.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { setKey } from "./api.js";
import { Chat } from "./chat.js";
import { html, Icon, IconButton, Logo } from "./html.js";
import { begin, changed, conversation, open, refresh, remove, state, subscribe } from "./state.js";
import { Activity, Devices, Models } from "./views.js";

const VIEWS = [
  ["models", "Models", Models],
  ["devices", "Devices", Devices],
  ["activity", "Activity", Activity],
];
const THEMES = { "": ["auto", "Light or dark as the system"], light: ["sun", "Light"], dark: ["moon", "Dark"] };

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("hotshoe.theme", theme);
}
setTheme(localStorage.getItem("hotshoe.theme") || "");

function App() {
  const [, draw] = useState(0);
  const [isOpen, setOpen] = useState(false); // the side bar, on a small screen
  useEffect(() => subscribe(() => draw((n) => n + 1)), []);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || refresh(), 2000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    document.title = state.view === "chat" ? conversation()?.title || "hotshoe" : `hotshoe: ${state.view}`;
  });
  const talk = conversation();
  const go = (view) => {
    state.view = view;
    setOpen(false);
    changed();
  };
  const View = VIEWS.find(([name]) => name === state.view)?.[2];
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <nav class=${isOpen ? "side open" : "side"} aria-label="Conversations and views">
      <div class="brand"><${Logo} />hotshoe</div>
      <button type="button" class="new" onClick=${() => (begin(), setOpen(false))}><${Icon} name="plus" />New conversation</button>
      <ul class="talks" aria-label="Conversations" tabindex="-1">
        ${state.conversations
          .filter((c) => c.messages.length)
          .map(
            (c) => html`<li key=${c.id} class=${state.view === "chat" && c.id === state.current ? "chosen" : ""}>
              <button type="button" aria-current=${state.view === "chat" && c.id === state.current ? "page" : undefined} onClick=${() => (open(c.id), setOpen(false))}>${c.title}</button>
              <${IconButton} icon="trash" label=${`Delete ${c.title}`} onClick=${() => confirm(`Delete “${c.title}”?`) && remove(c.id)} />
            </li>`,
          )}
      </ul>
      <ul class="views">
        ${VIEWS.map(
          ([name, label]) => html`<li><button type="button" aria-current=${state.view === name ? "page" : undefined} onClick=${() => go(name)}><${Icon} name=${name} />${label}</button></li>`,
        )}
      </ul>
      <${Foot} />
    </nav>
    <main id="main" tabindex="-1">
      <${IconButton} icon="menu" label="Conversations and views" class="quiet menu" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)} />
      ${state.error && !state.needsKey && html`<p class="problem banner" role="alert">${state.error}</p>`}
      ${state.needsKey ? html`<${Key} />` : View ? html`<${View} />` : talk && html`<${Chat} talk=${talk} />`}
    </main>
    <p class="visually-hidden" role="status">${state.notice}</p>
  `;
}

function Foot() {
  const theme = document.documentElement.dataset.theme;
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(theme) + 1) % names.length];
  const [icon, label] = THEMES[theme];
  const speed = state.speeds.at(-1) || 0;
  const loaded = (state.status?.models || []).filter((m) => m.state === "loaded").length;
  return html`<div class="foot">
    <span>${speed ? `${speed.toFixed(0)} tokens/s` : state.status ? `${loaded} of ${state.status.models.length} loaded` : ""}</span>
    <${IconButton} icon=${icon} label=${`Colours: ${label}`} onClick=${() => (setTheme(next), changed())} />
  </div>`;
}

function Key() {
  const [value, setValue] = useState("");
  const send = (event) => {
    event.preventDefault();
    setKey(value);
    refresh();
  };
  return html`<form class="card key" onSubmit=${send}>
    <h1>This server asks for a key</h1>
    <label>API key<input type="password" autocomplete="off" value=${value} onInput=${(e) => setValue(e.currentTarget.value)} /></label>
    <p class="why">It is one of the lines of the file that <code>--api-keys</code> names. This tab forgets it when it is closed.</p>
    <button type="submit" class="main" disabled=${!value}>Continue</button>
  </form>`;
}

begin();
render(html`<${App} />`, document.getElementById("app"));
refresh();
