// Every end of a connection has a sentence, and what cannot go better is not tried again.

import assert from "node:assert/strict";
import { test } from "node:test";

import { constraints, describeRefusal, missingHere } from "../../../static/js/mic.js";
import { describeClose, describeWait, describeWarning, diagnose, retryDelay } from "../../../static/js/policy.js";

const CODES = [1000, 1001, 1002, 1003, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 1013, 1014];

test("every code has a sentence of its own, without jargon", () => {
  for (const code of [...CODES, 4999]) {
    const { title, detail } = describeClose(code);
    assert.ok(title.length > 8 && detail.length > 8, String(code));
    assert.doesNotMatch(`${title} ${detail}`, /websocket|socket|protocol/i);
  }
});

test("a full, a starting, a slow and a stopping server are told apart, though all of them say 1013 or 1001", () => {
  const title = (code, reason) => describeClose(code, reason).title;
  assert.equal(title(1013, "every slot is taken (4 of 4)"), "The server is full");
  assert.equal(title(1013, "no slot became free in 20 s"), "The server is full");
  assert.equal(title(1013, "the model is still loading"), "The server is starting");
  assert.equal(title(1013, "the server is too slow for another caller at the moment"), "The server is busy");
  assert.equal(title(1001, "the server is shutting down"), "The server is shutting down");
  assert.equal(title(1000, "the call reached its length limit"), "The call has reached its length limit");
  assert.equal(title(1008, "no audio for 60 s"), "The call ended for want of audio");
  assert.match(describeClose(1008, "unknown voice 'x'").detail, /unknown voice 'x'/);
  assert.doesNotMatch(describeClose(1011, "internal error").detail, /internal error/);
});

test("after a refusal nothing is tried again; after a loss it is, later and later, up to half a minute", () => {
  for (const code of [1000, 1002, 1003, 1007, 1008, 1009, 4000]) assert.equal(retryDelay(code, 0, 0), null, String(code));
  for (const code of [1001, 1006, 1012, 1013, 1014]) assert.ok(retryDelay(code, 0, 0) >= 2, String(code));
  const delays = [0, 1, 2, 3, 4, 9].map((attempt) => retryDelay(1006, attempt, 0));
  assert.deepEqual(delays, [2, 4, 8, 16, 30, 30]);
  assert.ok(retryDelay(1013, 0, 0.99) > retryDelay(1013, 0, 0), "callers must not come back all at once");
  assert.equal(retryDelay(1011, 0, 0), 2);
  assert.equal(retryDelay(1011, 3, 0), null);
});

test("the wait says why and how long", () => {
  assert.equal(describeWait("The server is full", 5), "The server is full, trying again in 5 s");
});

test("a call that never opened is explained by what the server says otherwise", () => {
  assert.equal(diagnose(0, {}, false).title, "The server cannot be reached");
  assert.equal(diagnose(401, {}, false).needsKey, true);
  assert.equal(diagnose(401, {}, true).title, "The key was not accepted");
  assert.equal(diagnose(403, {}, true).retries, false);
  assert.equal(diagnose(200, { status: "loading" }, true).title, "The server is starting");
  assert.equal(diagnose(200, { status: "failed", load: { accepts: false } }, true).title, "The server has failed");
  assert.equal(diagnose(200, { status: "ok", load: { slots: { used: 4, total: 4 } } }, true).title, "The server is full");
  assert.match(diagnose(200, { status: "ok", load: { slots: { used: 1, total: 4 }, accepts: true } }, true).detail, /proxy/);
});

test("a proxy that does not find the server is never told as a lack of room or of WebSockets", () => {
  for (const status of [500, 502, 503, 504]) {
    const { title, detail, retries } = diagnose(status, {}, true);
    assert.deepEqual([title, retries], ["A proxy got no answer from the server", true]);
    assert.match(detail, new RegExp(status));
  }
  for (const [status, body] of [[404, { error: "Not Found" }], [200, {}], [405, {}]]) {
    const { title, retries } = diagnose(status, body, true);
    assert.deepEqual([title, retries], ["What answers here is not the server", false]);
  }
});

test("warnings are for people", () => {
  assert.match(describeWarning("audio was dropped: more arrives than the server can take"), /too slow/);
  assert.match(describeWarning("audio was dropped: you do not read it fast enough"), /network/);
  assert.match(describeWarning("this call ends in 10 seconds"), /this call ends in 10 seconds/);
});

test("every refusal of a microphone says what to do", () => {
  for (const name of ["insecure", "unsupported", "NotAllowedError", "NotFoundError", "NotReadableError", "OverconstrainedError", "AbortError"]) {
    const { title, detail } = describeRefusal(name);
    assert.ok(title && detail.length > 20, name);
  }
  assert.deepEqual(describeRefusal("SecurityError"), describeRefusal("NotAllowedError"));
  assert.equal(describeRefusal("Strange", "odd").detail, "odd");
});

test("what this browser lacks is known before it is tried", () => {
  const navigator = { mediaDevices: { getUserMedia() {} } };
  assert.equal(missingHere({ isSecureContext: false, navigator }), "insecure");
  assert.equal(missingHere({ isSecureContext: true, navigator }), "unsupported");
  assert.equal(missingHere({ isSecureContext: true, navigator, AudioWorkletNode() {} }), null);
});

test("the switches become wishes, and no device is no wish", () => {
  const wishes = constraints({ device: "", echoCancellation: true, noiseSuppression: false, autoGainControl: true }).audio;
  assert.deepEqual(wishes, { channelCount: 1, echoCancellation: true, noiseSuppression: false, autoGainControl: true });
  assert.deepEqual(constraints({ device: "x" }).audio.deviceId, { exact: "x" });
});
