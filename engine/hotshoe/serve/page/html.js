// Preact's `h` as a template tag, and the icons.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);

const PATHS = {
  plus: "M10 4v12M4 10h12",
  chat: "M3.5 4.5h13v9h-8l-3.5 3v-3h-1.5z",
  models: "M10 2.8l6.5 3.6v7.2L10 17.2l-6.5-3.6V6.4zM3.5 6.4L10 10l6.5-3.6M10 10v7.2",
  devices: "M5.5 5.5h9v9h-9zM8 8h4v4H8zM8 2.8v2.7M12 2.8v2.7M8 14.5v2.7M12 14.5v2.7M2.8 8h2.7M2.8 12h2.7M14.5 8h2.7M14.5 12h2.7",
  activity: "M2.5 10h3.5l2.5-6 3.5 12 2.5-6h3",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7h9v9H7zM4 13V4h9",
  edit: "M4 16l.8-3.5L13.5 3.800l2.700 2.700L7.5 15.200zM11.5 5.800l2.700 2.700",
  retry: "M15.5 7A6 6 0 1 0 16 11M16 3.5V7.5h-4",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.600L14 6",
  image: "M3.5 4.5h13v11h-13zM3.5 13l4-4 4 4 2-2 3 3M13 8h.01",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 1 0 0-7M10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.300 4.300l1.100 1.100M14.600 14.600l1.100 1.100M4.300 15.700l1.100-1.100M14.600 5.400l1.100-1.100",
  moon: "M16 11.5A6.5 6.5 0 0 1 8.5 4A6.5 6.5 0 1 0 16 11.5z",
  auto: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  menu: "M3 6h14M3 10h14M3 14h14",
  check: "M4 10.5l4 4 8-9",
  close: "M5 5l10 10M15 5L5 15",
};

export function Icon({ name }) {
  const filled = name === "stop";
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
    <path d=${PATHS[name]} fill=${filled ? "currentColor" : "none"} />
  </svg>`;
}

// A hot shoe from above: two rails, and the contact between them.
export function Logo() {
  return html`<svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M11 6H6v20h5M21 6h5v20h-5" /><circle cx="16" cy="16" r="4" />
  </svg>`;
}

// A button that is an icon. Its label is its name for a screen reader, and its tooltip.
export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="quiet" aria-label=${label} title=${label} ...${rest}><${Icon} name=${icon} /></button>`;
}
