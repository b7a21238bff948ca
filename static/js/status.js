// The status page: how the server is, who is on it, and how long its steps take. Everything is asked for, nothing is kept.

import { $, askKey, colour, setText, setUpTheme } from "./dom.js";
import { get, httpUrl } from "./place.js";
import { between, parseMetrics, total } from "./prometheus.js";
import { loadKey, loadSettings, saveSettings } from "./settings.js";
import { formatTime } from "./transcript.js";

const POLL_MS = 1000;
const KEPT = 120; // readings
const HEALTH = {
  ok: ["ok", "Healthy"],
  degraded: ["busy", "Busy: steps are too slow for another caller"],
  loading: ["busy", "Starting"],
  draining: ["busy", "Shutting down"],
  failed: ["down", "Failed"],
};

const settings = loadSettings();
let key = loadKey();
let before = null; // the last reading of the metrics
const steps = []; // {mean, slowest} or null, one a reading

function cell(text, className = "") {
  const element = document.createElement("td");
  element.className = className;
  element.textContent = text;
  return element;
}

function row(call) {
  const element = document.createElement("tr");
  const id = document.createElement("code");
  id.textContent = call.id.slice(0, 8);
  id.title = call.id;
  const first = document.createElement("td");
  first.append(id);
  const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
  element.append(
    first,
    cell(call.protocol),
    cell(call.state),
    cell(formatTime(call.age_s, 0), "number"),
    cell(`${call.backlog_frames} ${call.backlog_frames === 1 ? "frame" : "frames"}`, "number"),
    cell(String(call.ticks_late), "number"),
    cell(`${sum(call.dropped.in)} / ${sum(call.dropped.out)}`, "number"),
  );
  return element;
}

function showStatus({ status, model, device, version, load, calls, slots, uptime_s: uptime, reason, progress }) {
  const [dot, words] = HEALTH[status] ?? ["busy", status];
  $("health").dataset.health = dot;
  setText($("health-text"), words);
  setText($("health-detail"), reason || progress || "");
  setText($("model"), [model, device, `version ${version}`].filter(Boolean).join(" · "));
  setText($("s-slots"), load.slots ? `${load.slots.used} of ${load.slots.total}` : "–");
  setText($("s-queued"), String(load.queued));
  setText($("s-step"), load.p95_step_ms ? `${load.p95_step_ms.toFixed(0)} of ${load.frame_ms.toFixed(0)} ms` : "idle");
  setText($("s-up"), formatTime(uptime, 0));
  $("places").replaceChildren(...slots.map((state, index) => {
    const place = document.createElement("li");
    place.dataset.state = state;
    place.textContent = String(index + 1);
    place.title = state;
    place.setAttribute("aria-label", `Place ${index + 1}: ${state}`);
    return place;
  }));
  const nobody = document.createElement("tr");
  nobody.append(Object.assign(cell("Nobody is calling."), { colSpan: 7 }));
  $("calls").replaceChildren(...(calls.length ? calls.map(row) : [nobody]));
}

function showMetrics(text) {
  const samples = parseMetrics(text);
  setText($("s-late"), String(total(samples, "gateway_ticks_late_total")));
  setText($("s-dropped"), String(total(samples, "gateway_frames_dropped_total")));
  steps.push(before && between(before, samples, "gateway_step_seconds"));
  if (steps.length > KEPT) steps.shift();
  before = samples;
  const last = steps.at(-1);
  setText($("step-now"), last ? `· ${(last.mean * 1000).toFixed(1)} ms now` : "· no steps now");
  draw();
}

/** Bars of the mean, a mark at the bucket of the slowest, a line at the frame. */
function draw(frameMs = 80) {
  const canvas = $("spark");
  const scale = devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const top = Math.max(frameMs * 1.25, ...steps.filter(Boolean).map(({ mean }) => mean * 1100));
  const y = (ms) => height - 4 - (Math.min(ms, top) / top) * (height - 12);
  context.strokeStyle = context.fillStyle = colour("warn");
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(0, y(frameMs));
  context.lineTo(width, y(frameMs));
  context.stroke();
  context.font = "11px system-ui, sans-serif";
  context.fillText(`a frame: ${frameMs} ms`, 2, y(frameMs) - 5);
  const bar = width / KEPT;
  const [calm, late] = [colour("user"), colour("alarm")];
  steps.forEach((step, index) => {
    if (!step) return;
    const x = width - (steps.length - index) * bar;
    context.fillStyle = step.mean * 1000 > frameMs ? late : calm;
    context.fillRect(x, y(step.mean * 1000), Math.max(1, bar - 1.5), height - y(step.mean * 1000));
  });
  canvas.setAttribute("aria-label", `Step time over the last two minutes; now ${$("step-now").textContent || "unknown"}`);
}

/** Say why nothing is shown. */
function refused(status) {
  $("health").dataset.health = "down";
  $("change-key").hidden = status !== 401;
  const words = {
    0: ["The server cannot be reached", "It is looked for every second."],
    401: ["This server asks for a key", "With a key the status is shown."],
    403: [
      "The status is not shown here",
      "It is for people on the server's own machine, or with a key. Through a tunnel it works: ssh -L 8998:localhost:8998 HOST.",
    ],
  };
  const [title, detail] = words[status] ?? [`The server answers ${status}`, ""];
  setText($("health-text"), title);
  setText($("health-detail"), detail);
}

async function look() {
  const [status, metrics] = await Promise.all([get("api/status", key), get("metrics", key, { asText: true })]);
  if (status.status === 200) {
    $("change-key").hidden = true;
    showStatus(status.body);
    if (metrics.status === 200) showMetrics(metrics.body);
  } else {
    refused(status.status);
  }
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, POLL_MS);
}

$("talk-link").href = httpUrl("app/");
$("change-key").addEventListener("click", async () => {
  const entered = await askKey("This server asks for a key", "Enter the key that you were given.");
  if (entered !== null) key = entered;
  look();
});
setUpTheme(settings, () => {
  saveSettings(settings);
  draw();
});
watch();
