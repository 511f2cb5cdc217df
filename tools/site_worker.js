// Browsers start no Worker from a file:// page, and the search needs one. This one runs the script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const base = new URL(url, location);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow, page = frame.contentDocument;
      const load = (script) => new Promise((resolve) => {
        const tag = page.createElement("script");
        tag.onload = tag.onerror = resolve;
        tag.src = new URL(script, base);
        page.body.appendChild(tag);
      });
      inside.importScripts = (...scripts) => scripts.reduce((p, s) => p.then(() => load(s)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = load(base);
      this.inside = inside;
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
