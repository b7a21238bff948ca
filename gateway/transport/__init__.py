"""The shells that touch sockets: `ws` carries every WebSocket codec, `http` everything that is answered with one reply."""
