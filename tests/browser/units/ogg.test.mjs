// Pages that others can read, and pages of others, whole and broken. Vectors V2, V6, V8 and V9 are those of the protocol's specification.

import assert from "node:assert/strict";
import { test } from "node:test";

import { concat, crc, OggReader, OggWriter, opusHead, packetSamples } from "../../../static/js/ogg.js";

const bytes = (hex) => Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
const HEAD = bytes("4f6767530002000000000000000078563412000000005a34c41401134f707573486561640101000f80bb0000000000");
const SERVER = bytes(
  "4f676753000200000000000000002a00000000000000aefef3f101134f707573486561640101000f80bb0000000000"
  + "4f676753000000000000000000002a000000010000004b3c0171011b4f707573546167730b0000004b79757461694d6f73686900000000"
  + "4f676753000080070000000000002a000000020000000836c05001336a180be4c136ecc58d8c49484a317641985df5fae35f9f5b800007c97227e144ea55f1f0c0d1b0c0c23f490ebeb11a07ec7ec0"
  + "4f6767530000000f0000000000002a0000000300000089a1c62a01336907c979c8c957c0a21223fa59ce1ad2285ff6b11a26a4a6a48007c979c8c957c0a21223fa59ce1ad2285ff6b11a26a4a6a480",
);
const packet = (length, start = 0x68) => Uint8Array.from({ length }, (_, index) => (index ? (index * 7) & 255 : start));

test("the checksum is the one of others", () => {
  const page = HEAD.slice();
  page.fill(0, 22, 26);
  assert.equal(crc(page), new DataView(HEAD.buffer).getUint32(22, true));
});

test("headers are pages 0 and 1, audio begins with 2, the granule counts samples at 48 kHz", () => {
  const writer = new OggWriter(24_000, 7);
  const pages = [...writer.headers(), writer.page([packet(98), packet(68)]), writer.page([packet(70), packet(71)])];
  const views = pages.map((page) => new DataView(page.buffer));
  assert.deepEqual(views.map((view) => view.getUint32(18, true)), [0, 1, 2, 3]);
  assert.deepEqual(views.map((view) => view.getUint32(14, true)), [7, 7, 7, 7]);
  assert.deepEqual(views.map((view) => Number(view.getBigUint64(6, true))), [0, 0, 1920, 3840]);
  assert.deepEqual(pages.map((page) => page[5]), [2, 0, 0, 0]);
  assert.deepEqual(pages[0].slice(28), opusHead(24_000, 0));
});

test("what is written is read, also packets of 255 bytes and more, several pages in a message", () => {
  const writer = new OggWriter(24_000, 7);
  const packets = [1, 254, 255, 256, 510, 700].map((length) => packet(length));
  const message = concat([...writer.headers(), writer.page(packets.slice(0, 3)), writer.page(packets.slice(3))]);
  const reader = new OggReader();
  assert.deepEqual(reader.read(message), packets);
  assert.equal(reader.faults, 0);
});

test("the stream of Kyutai's server is read", () => {
  const packets = new OggReader().read(SERVER);
  assert.deepEqual(packets.map(({ length }) => length), [51, 51]);
  assert.deepEqual(packets.map(packetSamples), [1920, 1920]);
});

test("a packet that goes on over two pages is one, and its rest alone is none", () => {
  const long = packet(600);
  const page = (body, lacing, flags) => {
    const made = new Uint8Array(27 + lacing.length + body.length);
    made.set(HEAD.slice(0, 27));
    made[5] = flags;
    made[26] = lacing.length;
    made.set(lacing, 27);
    made.set(body, 27 + lacing.length);
    made.fill(0, 22, 26);
    new DataView(made.buffer).setUint32(22, crc(made), true);
    return made;
  };
  const [begin, rest] = [page(long.slice(0, 510), [255, 255], 0), page(long.slice(510), [90], 1)];
  assert.deepEqual(new OggReader().read(concat([begin, rest])), [long]);
  assert.deepEqual(new OggReader().read(rest), []);
});

test("broken pages are counted and cost nobody else", () => {
  const writer = new OggWriter(24_000, 7);
  const [good, bad, cut] = [writer.page([packet(60)]), writer.page([packet(61)]), writer.page([packet(62)])];
  bad[40] ^= 1;
  const reader = new OggReader();
  const found = reader.read(concat([bad, packet(30, 1), good, cut.slice(0, 50)]));
  assert.deepEqual(found, [packet(60)]);
  assert.equal(reader.faults, 2);
});

test("a packet without a byte is none, one of a single byte is silence", () => {
  const hostile = bytes("4f676753000080070000000000002a000000020000002fbe645c0100");
  const silent = bytes("4f6767530000c0030000000000002a0000000200000036651325010168");
  assert.deepEqual(new OggReader().read(hostile), []);
  assert.deepEqual(new OggReader().read(silent), [Uint8Array.of(0x68)]);
});

test("durations by the first byte", () => {
  const samples = (config, code, count = 0) => packetSamples(Uint8Array.of((config << 3) | code, count));
  assert.deepEqual([0, 1, 2, 3].map((config) => samples(config, 0)), [480, 960, 1920, 2880]);
  assert.deepEqual([12, 13].map((config) => samples(config, 0)), [480, 960]);
  assert.deepEqual([28, 29, 30, 31].map((config) => samples(config, 0)), [120, 240, 480, 960]);
  assert.equal(samples(31, 1), 1920);
  assert.equal(samples(31, 3, 3), 2880);
  assert.equal(packetSamples(new Uint8Array(0)), 0);
});
