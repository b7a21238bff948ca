// Muting by button, by the space bar and by M: a tap changes it for good, holding changes it for as long as it is held. The one rule: what
// the button says is what the microphone does.

const HOLD_MS = 400;

export class MuteKey {
  /** `onChange(isMuted)`. */
  constructor(button, onChange) {
    this.button = button;
    this.onChange = onChange;
    this.isMuted = false;
    this.pressedAt = null;
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this._press();
    });
    button.addEventListener("pointerup", () => this._release());
    button.addEventListener("pointercancel", () => this._release());
    button.addEventListener("click", (event) => {
      if (event.detail === 0 && !this.wasKey) this._set(!this.isMuted); // a screen reader: neither pointer nor key
      this.wasKey = false;
    });
    document.addEventListener("keydown", (event) => this._keyDown(event));
    document.addEventListener("keyup", (event) => this._keyUp(event));
    addEventListener("blur", () => this._release());
  }

  _isOurs({ code, target, ctrlKey, metaKey, altKey }) {
    if (this.button.hidden || ctrlKey || metaKey || altKey) return false;
    if (target === this.button || target === document.body || target.id === "talk") return code === "Space" || code === "KeyM";
    return code === "KeyM" && !target.closest("input, textarea, select, dialog");
  }

  _keyDown(event) {
    if (!this._isOurs(event)) return;
    event.preventDefault();
    if (!event.repeat) this._press();
  }

  _keyUp(event) {
    if (!this._isOurs(event)) return;
    event.preventDefault();
    this.wasKey = true;
    this._release();
    setTimeout(() => { this.wasKey = false; });
  }

  _press() {
    if (this.pressedAt !== null) return;
    this.pressedAt = performance.now();
    this._set(!this.isMuted);
  }

  _release() {
    if (this.pressedAt === null) return;
    const heldMs = performance.now() - this.pressedAt;
    this.pressedAt = null;
    if (heldMs >= HOLD_MS) this._set(!this.isMuted);
  }

  _set(isMuted) {
    this.isMuted = isMuted;
    this.button.setAttribute("aria-pressed", String(isMuted));
    this.button.firstChild.textContent = isMuted ? "Muted " : "Mute ";
    this.onChange(isMuted);
  }
}
