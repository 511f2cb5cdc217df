// Markdown that a model wrote. Its HTML is shown as text, and what marked makes is cleaned by DOMPurify; the page's
// policy allows no script and no picture from elsewhere besides.
import { Component } from "preact";
import { useState } from "preact/hooks";
import DOMPurify from "dompurify";
import { marked } from "marked";
import { html, IconButton } from "./html.js";

const TAGS = [
  ..."p br hr strong em del code pre blockquote ul ol li a h2 h3 h4 h5 h6".split(" "),
  ..."table thead tbody tr th td".split(" "),
];
const RULES = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "align", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_ATTR: ["target", "rel"],
  RETURN_TRUSTED_TYPE: true,
};

const escape = (text) =>
  text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

marked.use({
  gfm: true,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(6, depth + 1); // the page has the first level
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

// One block. Only the last one of an answer that is being written changes, so only that one is drawn again.
class Block extends Component {
  shouldComponentUpdate(next) {
    return next.raw !== this.props.raw;
  }
  render({ token }) {
    if (token.type === "code") return html`<${Code} text=${token.text} language=${(token.lang || "").split(/\s/)[0]} />`;
    const clean = DOMPurify.sanitize(marked.parser([token]), RULES);
    return html`<div class="block" dangerouslySetInnerHTML=${{ __html: clean }} />`;
  }
}

export function Code({ text, language }) {
  return html`<figure class="code">
    <figcaption><span>${language || "text"}</span><${Copy} text=${text} what="code" /></figcaption>
    <pre tabindex="0" aria-label=${`code${language ? `, ${language}` : ""}`}><code>${text}</code></pre>
  </figure>`;
}

export function Copy({ text, what }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return; // the browser does not allow it
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<${IconButton} icon=${done ? "check" : "copy"} label=${done ? "Copied" : `Copy ${what}`} onClick=${copy} />`;
}

export function Markdown({ text }) {
  const blocks = marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
  return html`<div class="markdown">${blocks.map((token, i) => html`<${Block} key=${i} token=${token} raw=${token.raw} />`)}</div>`;
}
