// Models, devices and activity: what the server has, where it is, and what it does.
import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { refreshDevices, setLoaded, state } from "./state.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const PARTS = ["weights", "cache", "graph"];
const number = new Intl.NumberFormat("en");

export function bytes(n) {
  let unit = 0;
  for (; n >= 1024 && unit < UNITS.length - 1; unit++) n /= 1024;
  return `${unit ? n.toFixed(1) : n} ${UNITS[unit]}`;
}

function Page({ title, children }) {
  return html`<header class="bar"><h1>${title}</h1></header><div class="page" tabindex="0" role="region" aria-label=${title}>${children}</div>`;
}

// Models.

export function Models() {
  const models = state.status?.models || [];
  return html`<${Page} title="Models">${models.map((model) => html`<${Model} key=${model.name} model=${model} />`)}<//>`;
}

function Model({ model }) {
  const busy = state.busy[model.name];
  const failed = state.busy[`${model.name} failed`];
  const loaded = model.state === "loaded";
  const facts = loaded
    ? [
        ["Architecture", model.architecture],
        ["Context", model.task === "text" ? `${number.format(model.context_length)} tokens` : null],
        ["File", bytes(model.size)],
        ["In memory", bytes(model.memory.total)],
        ["Can", model.capabilities.join(", ")],
        ["Now", model.requests ? `${model.requests} requests, ${model.waiting} of them wait` : "idle"],
      ].filter(([, value]) => value)
    : [];
  return html`<section class="card model" aria-label=${model.name}>
    <div class="head">
      <h2>${model.name}</h2>
      <span class=${`state ${busy || model.state === "loading" ? "busy" : loaded ? "on" : ""}`}>${busy || model.state}</span>
      <button type="button" disabled=${!!busy || model.state === "loading"} onClick=${() => setLoaded(model.name, !loaded)}>
        ${loaded ? "Unload" : "Load"}<span class="visually-hidden"> ${model.name}</span>
      </button>
    </div>
    ${failed && html`<p class="problem" role="alert">${failed}</p>`}
    ${model.warning && html`<p class="problem">${model.warning}</p>`}
    ${loaded && html`<p class="why">${model.why}</p>`}
    ${loaded && html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${loaded && html`<${Plan} memory=${model.memory} />`}
  </section>`;
}

// Which layers are on which device: a cell for each layer, and a bar for each device.
export function Plan({ memory }) {
  const { devices } = memory;
  const n = Math.max(0, ...devices.flatMap((d) => d.layers.map((l) => l.layer + 1)));
  const cells = [];
  for (let layer = -1; layer < n; layer++) {
    const shares = devices.map((d) => {
      const found = d.layers.find((l) => l.layer === layer);
      return found ? found.weights + found.cache : 0;
    });
    const sum = shares.reduce((a, b) => a + b, 0);
    if (sum) cells.push({ layer, shares });
  }
  const last = n - 1; // what comes after the last layer
  const name = (layer) => (layer < 0 ? "input" : layer === last ? "output" : `layer ${layer}`);
  const most = Math.max(...devices.map((d) => d.total), 1);
  const story = devices.map((d) => `${d.device}: ${d.layers.length ? runs(d.layers.map((l) => l.layer), last) : "no layers"}`).join("; ");
  return html`<figure class="plan">
    <div class="layers" role="img" aria-label=${`Layers by device. ${story}`}>
      ${cells.map(
        ({ layer, shares }) => html`<span key=${layer}>${shares.map(
          (share, d) => share > 0 && html`<i class=${`device-${d % 6}`} style=${{ flexGrow: share }} title=${`${name(layer)} on ${devices[d].device}: ${bytes(share)}`}></i>`,
        )}</span>`,
      )}
    </div>
    <figcaption>${story}</figcaption>
    ${devices.map(
      (d, i) => html`<div class="meter">
        <span class="label"><i class=${`dot device-${i % 6}`}></i>${d.device}</span>
        <span class="track">
          ${PARTS.map((part) => html`<i class=${`device-${i % 6} ${part}`} style=${{ width: `${(100 * d[part]) / most}%` }} title=${`${part}: ${bytes(d[part])}`}></i>`)}
        </span>
        <span class="value">${PARTS.filter((part) => d[part]).map((part) => `${bytes(d[part])} ${part}`).join(", ")}</span>
      </div>`,
    )}
  </figure>`;
}

function runs(layers, last) {
  const words = layers.includes(-1) ? ["input"] : [];
  const middle = layers.filter((l) => l >= 0 && l !== last);
  for (let i = 0; i < middle.length; ) {
    let j = i;
    while (j + 1 < middle.length && middle[j + 1] === middle[j] + 1) j++;
    words.push(i === j ? `layer ${middle[i]}` : `layers ${middle[i]} to ${middle[j]}`);
    i = j + 1;
  }
  if (layers.includes(last)) words.push("output");
  return words.join(", ");
}

// Devices.

export function Devices() {
  useEffect(() => {
    refreshDevices();
    const timer = setInterval(refreshDevices, 30_000);
    return () => clearInterval(timer);
  }, []);
  const found = state.devices;
  if (!found) return html`<${Page} title="Devices"><p class="pulse">Looking for devices</p><//>`;
  const models = (state.status?.models || []).filter((m) => m.memory);
  return html`<${Page} title="Devices">
    ${found.error && html`<p class="problem">${found.error}</p>`}
    ${found.why && html`<p class="lead"><strong>Used by default:</strong> ${found.why}</p>`}
    ${found.devices.map((device) => {
      const ours = models.map((m) => [m.name, m.memory.devices.find((d) => d.device === device.name)?.total || 0]).filter(([, n]) => n);
      const used = ours.reduce((sum, [, n]) => sum + n, 0);
      const total = device.memory_total;
      const others = Math.max(0, total - device.memory_free - used);
      return html`<section class="card" aria-label=${device.name} key=${device.name}>
        <div class="head"><h2>${device.name}</h2><span class="state">${device.type}</span></div>
        <p class="why">${device.description || "no description"}; by ${device.provider}</p>
        ${total > 0 &&
        html`<div class="meter below">
          <span class="track tall">
            <i class="device-1 weights" style=${{ width: `${(100 * used) / total}%` }} title=${`models of this server: ${bytes(used)}`}></i>
            <i class="device-0 cache" style=${{ width: `${(100 * others) / total}%` }} title=${`others: ${bytes(others)}`}></i>
          </span>
          <span class="value">${used ? `${ours.map(([name, n]) => `${name} ${bytes(n)}`).join(", ")}; ` : ""}${device.memory_free ? `${bytes(device.memory_free)} of ${bytes(total)} free` : bytes(total)}</span>
        </div>`}
      </section>`;
    })}
    <h2 class="above">Backends</h2>
    <ul class="verdicts card">
      ${found.verdicts.map(
        (v) => html`<li key=${v.candidate}>
          <h3>${v.candidate}</h3>
          <p><span class=${`state ${v.outcome === "available" ? "on" : ""}`}>${v.outcome}</span> ${v.reason}</p>
          ${v.hint && html`<p class="hint">${v.hint}</p>`}
        </li>`,
      )}
    </ul>
  <//>`;
}

// Activity.

export function Activity() {
  const { status, speeds } = state;
  if (!status) return html`<${Page} title="Activity"><p class="pulse">Asking the server</p><//>`;
  const sum = (name) => status.models.reduce((all, m) => all + m[name], 0);
  const now = speeds.at(-1) || 0;
  const memory = status.models.reduce((all, m) => all + (m.memory?.total || 0), 0);
  const recent = status.models
    .flatMap((m) => m.recent.map((r) => ({ ...r, model: m.name })))
    .sort((a, b) => b.at - a.at)
    .slice(0, 30);
  return html`<${Page} title="Activity">
    <dl class="tiles">
      <div><dt>Speed now</dt><dd>${now.toFixed(1)} <small>tokens/s</small></dd></div>
      <div><dt>Being answered</dt><dd>${sum("requests") - sum("waiting")}</dd></div>
      <div><dt>Waiting</dt><dd>${sum("waiting")}</dd></div>
      <div><dt>Memory of the models</dt><dd>${bytes(memory)}</dd></div>
    </dl>
    <${Spark} values=${speeds} />
    <h2 class="above">Recent answers</h2>
    ${recent.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label="Recent answers"><table>
          <thead><tr><th>Time</th><th>Model</th><th>Device</th><th>Waited</th><th>Read</th><th>From cache</th><th>Wrote</th><th>Speed</th><th>Without effect</th></tr></thead>
          <tbody>${recent.map(
            (r) => html`<tr>
              <td>${new Date(1000 * r.at).toLocaleTimeString()}</td><td>${r.model}</td><td title=${r.why}>${r.device}</td>
              <td>${(r.queued_ms / 1000).toFixed(2)} s</td><td>${number.format(r.cache_n + r.prompt_n)}</td>
              <td>${r.cache_n + r.prompt_n ? Math.round((100 * r.cache_n) / (r.cache_n + r.prompt_n)) : 0} %</td>
              <td>${number.format(r.predicted_n)}</td><td>${r.predicted_per_second.toFixed(1)}/s</td><td>${r.ignored.join(", ")}</td>
            </tr>`,
          )}</tbody></table></div>`
      : html`<p class="why">No answer was given since the server started.</p>`}
  <//>`;
}

function Spark({ values }) {
  const most = Math.max(1, ...values);
  const points = values.map((v, i) => `${(100 * (60 - values.length + i)) / 59},${29 - (27 * v) / most}`);
  return html`<figure class="spark">
    <svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label=${`Tokens per second of the last two minutes; at most ${most.toFixed(1)}`}>
      ${points.length > 1 && html`<polygon points=${`${points[0].split(",")[0]},30 ${points.join(" ")} 100,30`} /><polyline points=${points.join(" ")} />`}
    </svg>
    <figcaption><span>two minutes ago</span><span>at most ${most.toFixed(1)} tokens/s</span><span>now</span></figcaption>
  </figure>`;
}
