"""Who may come in: keys, ephemeral secrets, browser origins, and how much of the gateway one key may take.

Decisions only: no request, no socket, no clock; what is refused is raised as `Refused`, and the transport words it. Without keys everybody
is let in, and nothing is limited by key. The one rule: a key is kept as a digest, compared in constant time, and never enters a message or
the log; there a caller is named by its key's place in the list. Thread: loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import math
import secrets
import string
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from protocols.realtime.handshake import KEY_PREFIX, Refused

EPHEMERAL_PREFIX = "ek_"  # both JavaScript SDKs refuse other keys in a browser
MAX_SECRETS = 10_000  # specs/realtime.md 1.5, ephemeral_max
MAX_SECRETS_BYTES = 64 * 2**20  # of the sessions that are bound to them
MIN_SECRET_S, DEFAULT_SECRET_S, MAX_SECRET_S = 10, 600, 7200
MINUTE_S = 60.0
BUSY_RETRY_S = 5  # of a key that has all its sessions: one may end at any time

KEY_CHARACTERS = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")  # HTTP tokens: a subprotocol entry holds nothing else


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as far as its key tells."""

    key_id: str | None = None  # for limits and logs, such as "key 2"; None where no keys are asked for
    session: Mapping[str, object] | None = None  # session object bound to the ephemeral secret that was used
    secret: bytes | None = dataclasses.field(default=None, repr=False)  # digest of that secret


ANYBODY = Caller()


def parse_keys(text: str) -> tuple[str, ...]:
    """Read keys, one a line or separated by commas; what follows a # at the start of a line or after a space is a comment.

    Raises:
        ValueError: not a key; the message names its line and not the key.
    """
    keys: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        is_comment = line.lstrip().startswith("#")
        entries = () if is_comment else line.partition(" #")[0].split(",")
        for key in filter(None, (entry.strip() for entry in entries)):
            if not KEY_CHARACTERS.issuperset(key):
                raise ValueError(f"line {number}: a key consists of letters, digits and !#$%&'*+-.^_`|~ (a browser can send no other)")
            if key.startswith(EPHEMERAL_PREFIX):
                raise ValueError(f"line {number}: keys that begin with {EPHEMERAL_PREFIX} are made by the server")
            keys[key] = None
    return tuple(keys)


def parse_origins(text: str) -> tuple[str, ...]:
    """Read browser origins separated by commas: scheme://host[:port], or * for all.

    Raises:
        ValueError: not an origin.
    """
    origins = tuple(filter(None, (entry.strip().rstrip("/").lower() for entry in text.split(","))))
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "*" and (not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
            raise ValueError(f"{origin} is no origin: write scheme://host[:port], or * for all")
    return origins


def check_origin(origin: str | None, host: str | None, allowed: Collection[str]) -> None:
    """Let in what is no browser, the page that this server delivered, and every origin of the list; without a list, everybody.

    Args:
        origin, host: headers of the request. Schemes are not compared: a proxy may have ended TLS.

    Raises:
        Refused: 403.
    """
    if origin is None or not allowed or "*" in allowed:
        return
    origin = origin.strip().rstrip("/").lower()
    is_same = host is not None and "://" in origin and origin.partition("://")[2] == host.strip().lower()
    if not is_same and origin not in allowed:
        raise Refused(403, "origin_not_allowed", "pages of this origin may not use this server (--allowed-origins)")


class KeyRing:
    """The keys of this gateway.

    Attributes:
        secrets: ephemeral ones, each made with a key.
    """

    def __init__(self, keys: Sequence[str], *, allow_query: bool = False, is_single_use: bool = False) -> None:
        """`allow_query` takes a key from the URL as well; `is_single_use` lets an ephemeral secret open one connection only."""
        self.secrets = EphemeralSecrets(is_single_use=is_single_use)
        self._digests = [_digest(key) for key in keys]
        self._allow_query = allow_query

    @property
    def is_open(self) -> bool:
        """Whether anybody may come in, for want of keys."""
        return not self._digests

    def check(
        self, headers: Mapping[str, str], query: Mapping[str, str], protocols: Sequence[str], unix_s: float, *, takes_secrets: bool = False
    ) -> Caller:
        """Tell who sends a request.

        Args:
            headers: with names in any case.
            protocols: entries of Sec-WebSocket-Protocol.
            takes_secrets: the route is one that ephemeral secrets are for.

        Raises:
            Refused: 401; the message says what to send.
        """
        key = self._find(headers, query, protocols)
        if key is not None and key.startswith(EPHEMERAL_PREFIX):
            return self._check_secret(key, unix_s, takes_secrets=takes_secrets)
        if self.is_open:
            return ANYBODY
        if key is None:
            raise self._missing(query)
        given, number = _digest(key), 0
        for place, digest in enumerate(self._digests, start=1):  # to the end: how long it takes tells nothing
            number = max(number, place * hmac.compare_digest(given, digest))
        if not number:
            raise _refused_key("invalid_api_key", "the key is wrong")
        return Caller(key_id=f"key {number}")

    def _check_secret(self, value: str, unix_s: float, *, takes_secrets: bool) -> Caller:
        try:
            if not takes_secrets:
                raise _refused_key("invalid_api_key", "an ephemeral key opens Realtime calls and nothing else")
            return self.secrets.look_up(value, unix_s)
        except Refused:
            if self.is_open:  # "If no keys are configured, everything is accepted" (1.4)
                return ANYBODY
            raise

    def _find(self, headers: Mapping[str, str], query: Mapping[str, str], protocols: Sequence[str]) -> str | None:
        """The first key that is present (specs/realtime.md 1.4)."""
        lowered = {name.lower(): value for name, value in headers.items()}
        scheme, _, bearer = lowered.get("authorization", "").strip().partition(" ")
        found = [
            bearer if scheme.lower() == "bearer" else "",
            lowered.get("api-key", ""),
            lowered.get("x-api-key", ""),
            *(entry.removeprefix(KEY_PREFIX) for entry in protocols if entry.startswith(KEY_PREFIX)),
            query.get("api_key", "") if self._allow_query else "",
        ]
        return next((key.strip() for key in found if key.strip()), None)

    def _missing(self, query: Mapping[str, str]) -> Refused:
        if "api_key" in query:
            return _refused_key("missing_api_key", "this server takes no key from the URL (--allow-query-key)")
        return _refused_key("missing_api_key", "this server asks for a key")


@dataclasses.dataclass(slots=True)
class _Secret:
    """What is known of one ephemeral secret."""

    key_id: str | None  # of the key that it was made with
    expires_s: int  # unix time
    session: str  # JSON; "" where none is bound
    is_spent: bool = False


class EphemeralSecrets:
    """Short-lived keys that a server hands to its pages. They open Realtime calls and nothing else, and count as the key that made them."""

    def __init__(self, *, is_single_use: bool = False) -> None:
        self._is_single_use = is_single_use
        self._secrets: dict[bytes, _Secret] = {}
        self._num_bytes = 0

    def issue(self, caller: Caller, session: Mapping[str, object] | None, seconds: int, unix_s: float) -> tuple[str, int]:
        """Make a secret that is good for `seconds`; return it and the unix time of its end.

        Raises:
            Refused: 429, too many are alive.
        """
        bound = "" if session is None else json.dumps(session)
        self._make_room(len(bound), unix_s)
        value = EPHEMERAL_PREFIX + secrets.token_hex(20)
        expires_s = int(unix_s) + seconds
        self._secrets[_digest(value)] = _Secret(caller.key_id, expires_s, bound)
        self._num_bytes += len(bound)
        return value, expires_s

    def look_up(self, value: str, unix_s: float) -> Caller:
        """Tell whose secret it is.

        Raises:
            Refused: 401, unknown, expired or used up.
        """
        digest = _digest(value)
        secret = self._secrets.get(digest)
        if secret is None or secret.is_spent:
            raise _refused_key("invalid_api_key", "the ephemeral key is not known, or used up")
        if secret.expires_s <= unix_s:
            raise _refused_key("ephemeral_key_expired", "the ephemeral key has expired: make another")
        return Caller(secret.key_id, json.loads(secret.session) if secret.session else None, digest)

    @contextlib.contextmanager
    def spend(self, caller: Caller) -> Iterator[None]:
        """Use up the caller's secret, if it has one that is good for one use; it is given back when the block raises.

        Raises:
            Refused: 401, somebody was faster.
        """
        secret = self._secrets.get(caller.secret) if caller.secret is not None and self._is_single_use else None
        if secret is None:
            yield
            return
        if secret.is_spent:
            raise _refused_key("invalid_api_key", "the ephemeral key is used up")
        secret.is_spent = True
        try:
            yield
        except BaseException:
            secret.is_spent = False
            raise

    def _make_room(self, num_bytes: int, unix_s: float) -> None:
        """Forget what has expired, when there is too much."""
        if self._has_room(num_bytes):
            return
        for digest, secret in tuple(self._secrets.items()):
            if secret.expires_s <= unix_s:
                self._num_bytes -= len(self._secrets.pop(digest).session)
        if not self._has_room(num_bytes):
            soonest_s = min((secret.expires_s for secret in self._secrets.values()), default=unix_s)
            raise _too_many("too many ephemeral keys are alive", soonest_s - unix_s)

    def _has_room(self, num_bytes: int) -> bool:
        return len(self._secrets) < MAX_SECRETS and self._num_bytes + num_bytes <= MAX_SECRETS_BYTES


class KeyLimits:
    """How many calls one key may hold, and how often it may knock."""

    def __init__(self, *, max_sessions: int = 0, handshakes_per_minute: int = 0) -> None:
        """Each is per key; 0 is no limit."""
        self._max_sessions = max_sessions
        self._handshakes_per_minute = handshakes_per_minute
        self._num_sessions: Counter[str] = Counter()
        self._knocks: dict[str, deque[float]] = {}  # monotonic seconds, per key

    @contextlib.contextmanager
    def hold(self, caller: Caller, now: float) -> Iterator[None]:
        """Count one connection of the caller's key, from its handshake to its end.

        Raises:
            Refused: 429, with the seconds after which to try again.
        """
        if caller.key_id is None:
            yield
            return
        self._knock(caller.key_id, now)
        if self._max_sessions and self._num_sessions[caller.key_id] >= self._max_sessions:
            raise _too_many(f"this key has {self._max_sessions} sessions open, which is its limit", BUSY_RETRY_S)
        self._num_sessions[caller.key_id] += 1
        try:
            yield
        finally:
            self._num_sessions[caller.key_id] -= 1

    def _knock(self, key_id: str, now: float) -> None:
        """Count an attempt. One that is refused for its rate is not counted: whoever keeps trying gets in again in time."""
        limit = self._handshakes_per_minute
        if not limit:
            return
        knocks = self._knocks.setdefault(key_id, deque())
        while knocks and knocks[0] <= now - MINUTE_S:
            knocks.popleft()
        if len(knocks) >= limit:
            raise _too_many(f"this key has connected {limit} times within a minute, which is its limit", knocks[0] + MINUTE_S - now)
        knocks.append(now)


# -- Private -------------------------------------------------------------------------------------------------------------------------


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _refused_key(code: str, what: str) -> Refused:
    message = f"{what}; send the header Authorization: Bearer <key>, or, from a browser, the WebSocket subprotocol {KEY_PREFIX}<key>"
    return Refused(401, code, message, headers={"WWW-Authenticate": "Bearer"})


def _too_many(message: str, retry_s: float) -> Refused:
    """Word a limit of a key."""
    return Refused(429, "rate_limit_exceeded", message, headers={"Retry-After": str(max(1, math.ceil(retry_s)))})
