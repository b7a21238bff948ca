"""The OpenAI Realtime wire of `/v1/realtime`, sans I/O: specs/realtime.md is the contract, `codec` puts the parts together."""
