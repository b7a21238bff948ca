// Ogg pages and the Opus headers in them (RFC 3533, RFC 7845), as far as one mono stream each way needs: a writer of whole pages, and a
// reader that takes messages of whole pages and gives packets. The one rule: whatever comes, the reader goes on; what cannot be read is
// counted. No DOM, no clock.

const CAPTURE = [0x4f, 0x67, 0x67, 0x53]; // "OggS"
const HEADER_BYTES = 27;
const FIRST_PAGE = 2; // flag: beginning of the stream
const CONTINUED = 1; // flag: the first packet began on the page before
const VENDOR = "duplex-gateway page";

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte << 24;
  for (let bit = 0; bit < 8; bit += 1) value = value & 0x80000000 ? (value << 1) ^ 0x04c11db7 : value << 1;
  return value >>> 0;
});

/** Checksum of a page whose own field is zero: polynomial 04C11DB7, nothing reflected. */
export function crc(bytes) {
  let value = 0;
  for (const byte of bytes) value = ((value << 8) ^ CRC_TABLE[(value >>> 24) ^ byte]) >>> 0;
  return value;
}

/** The identification header of one mono stream. `preSkip` in samples at 48 kHz. */
export function opusHead(rate, preSkip) {
  const bytes = new Uint8Array(19);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode("OpusHead"));
  bytes.set([1, 1], 8); // version, channels
  view.setUint16(10, preSkip, true);
  view.setUint32(12, rate, true);
  return bytes;
}

function opusTags() {
  const vendor = new TextEncoder().encode(VENDOR);
  const bytes = new Uint8Array(16 + vendor.length);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode("OpusTags"));
  view.setUint32(8, vendor.length, true);
  bytes.set(vendor, 12);
  return bytes;
}

/** Samples at 48 kHz of an Opus packet, by its first bytes (RFC 6716 section 3.1). */
export function packetSamples(packet) {
  if (!packet.length) return 0;
  const config = packet[0] >> 3;
  const frame = config >= 16 ? 120 << (config & 3) : config >= 12 ? 480 << (config & 1) : [480, 960, 1920, 2880][config & 3];
  const code = packet[0] & 3;
  return frame * (code === 0 ? 1 : code < 3 ? 2 : (packet[1] ?? 0) & 63);
}

export class OggWriter {
  /** `rate` of the microphone in Hz, for the header; `serial` of the stream. */
  constructor(rate, serial) {
    this.rate = rate;
    this.serial = serial;
    this.sequence = 0;
    this.granule = 0; // samples at 48 kHz up to the end of the last page
  }

  /** The two header pages. Comes before every other page. */
  headers() {
    return [this._page([opusHead(this.rate, 0)], FIRST_PAGE), this._page([opusTags()], 0)];
  }

  /** One page of whole packets. */
  page(packets) {
    for (const packet of packets) this.granule += packetSamples(packet);
    return this._page(packets, 0);
  }

  _page(packets, flags) {
    const lacing = packets.flatMap(({ length }) => [...Array(Math.floor(length / 255)).fill(255), length % 255]);
    const bytes = new Uint8Array(HEADER_BYTES + lacing.length + packets.reduce((sum, { length }) => sum + length, 0));
    const view = new DataView(bytes.buffer);
    bytes.set(CAPTURE);
    bytes[5] = flags;
    view.setBigUint64(6, BigInt(this.granule), true);
    view.setUint32(14, this.serial, true);
    view.setUint32(18, this.sequence, true);
    bytes[26] = lacing.length;
    bytes.set(lacing, HEADER_BYTES);
    let place = HEADER_BYTES + lacing.length;
    for (const packet of packets) {
      bytes.set(packet, place);
      place += packet.length;
    }
    view.setUint32(22, crc(bytes), true);
    this.sequence += 1;
    return bytes;
  }
}

export class OggReader {
  /** `faults` counts pages and packets that could not be read. */
  constructor() {
    this.faults = 0;
    this.partial = []; // pieces of a packet that goes on
  }

  /** Take one message, return the audio packets that it completes. */
  read(message) {
    const packets = [];
    let place = 0;
    while (place + HEADER_BYTES <= message.length) {
      const page = this._pageAt(message, place);
      if (!page) {
        place += 1;
        continue;
      }
      place = page.end;
      packets.push(...this._packets(message, page));
    }
    return packets.filter((packet) => !isHeader(packet));
  }

  _pageAt(message, place) {
    if (!CAPTURE.every((byte, index) => message[place + index] === byte)) return null;
    const count = message[place + 26];
    const lacing = message.subarray(place + HEADER_BYTES, place + HEADER_BYTES + count);
    const body = place + HEADER_BYTES + count;
    const end = body + lacing.reduce((sum, length) => sum + length, 0);
    if (lacing.length < count || end > message.length || !this._isSound(message.subarray(place, end))) {
      this.faults += 1;
      return null;
    }
    return { flags: message[place + 5], lacing, body, end };
  }

  _isSound(page) {
    const copy = page.slice();
    const view = new DataView(copy.buffer);
    const expected = view.getUint32(22, true);
    view.setUint32(22, 0, true);
    return crc(copy) === expected;
  }

  _packets(message, { flags, lacing, body }) {
    const packets = [];
    if (!(flags & CONTINUED) || flags & FIRST_PAGE) this.partial = [];
    let skips = Boolean(flags & CONTINUED) && !this.partial.length; // the beginning of the first packet was lost
    let [start, end] = [body, body];
    lacing.forEach((length, index) => {
      end += length;
      if (length < 255 || index === lacing.length - 1) {
        if (!skips) this.partial.push(message.slice(start, end));
        start = end;
      }
      if (length < 255) {
        const packet = concat(this.partial);
        if (packet.length) packets.push(packet);
        else if (!skips) this.faults += 1;
        [this.partial, skips] = [[], false];
      }
    });
    return packets;
  }
}

function isHeader(packet) {
  const name = String.fromCharCode(...packet.subarray(0, 8));
  return name === "OpusHead" || name === "OpusTags";
}

/** One array of several pieces. */
export function concat(pieces) {
  const bytes = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let place = 0;
  for (const piece of pieces) {
    bytes.set(piece, place);
    place += piece.length;
  }
  return bytes;
}
