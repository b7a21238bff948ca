"""Who may come in: where a key may stand, what a refusal says, ephemeral secrets, origins, limits of a key."""

from __future__ import annotations

import hmac

import pytest

from gateway import auth
from gateway.auth import ANYBODY, Caller, EphemeralSecrets, KeyLimits, KeyRing, check_origin, parse_keys, parse_origins
from protocols.realtime.handshake import KEY_PREFIX, Refused

NOW_S = 1_790_000_000.5  # unix
RING = KeyRing(["sk-good", "sk-other"])

PLACES = [
    ({"Authorization": "Bearer sk-good"}, {}, ()),
    ({"AUTHORIZATION": "bEaReR   sk-good "}, {}, ()),
    ({"api-key": "sk-good"}, {}, ()),
    ({"X-API-Key": "sk-good"}, {}, ()),
    ({}, {}, ("realtime", KEY_PREFIX + "sk-good", "openai-beta.realtime-v1")),
    ({"Authorization": "Basic c2stYmFk"}, {}, (KEY_PREFIX + "sk-good",)),  # a proxy's own password is no key of ours
    ({"Authorization": "Bearer "}, {}, (KEY_PREFIX + "sk-good",)),
    ({"Authorization": "Bearer sk-good", "api-key": "sk-bad"}, {"api_key": "sk-bad"}, (KEY_PREFIX + "sk-bad",)),  # the first wins
]
WRONG = [
    ({"Authorization": "Bearer sk-bad"}, {}, (KEY_PREFIX + "sk-good",)),
    ({"Authorization": "Bearer sk-goo"}, {}, ()),
    ({"Authorization": "Bearer sk-goodx"}, {}, ()),
    ({"Authorization": "Bearer SK-GOOD"}, {}, ()),
    ({"Authorization": "Bearer \udcff"}, {}, ()),  # what aiohttp makes of a byte that is no UTF-8
    ({}, {}, (KEY_PREFIX + "sk-bad",)),
]
MISSING = [
    ({}, {}, ()),
    ({"Authorization": "sk-good"}, {}, ()),
    ({"Authorization": "Basic sk-good"}, {}, ("realtime",)),
    ({}, {"api_key": "sk-good"}, ()),  # not unless it is allowed
]


def refusal(ring: KeyRing, *args: object, **flags: bool) -> Refused:
    with pytest.raises(Refused) as refused:
        ring.check(*args, NOW_S, **flags)  # type: ignore[arg-type]
    return refused.value


@pytest.mark.parametrize(("headers", "query", "protocols"), PLACES)
def test_a_key_is_found_in_every_place(headers: dict[str, str], query: dict[str, str], protocols: tuple[str, ...]) -> None:
    assert RING.check(headers, query, protocols, NOW_S) == Caller(key_id="key 1")


@pytest.mark.parametrize(("headers", "query", "protocols"), WRONG)
def test_a_wrong_key_is_refused(headers: dict[str, str], query: dict[str, str], protocols: tuple[str, ...]) -> None:
    refused = refusal(RING, headers, query, protocols)
    assert (refused.status, refused.code, refused.headers) == (401, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
    assert "sk-" not in refused.message


@pytest.mark.parametrize(("headers", "query", "protocols"), MISSING)
def test_a_missing_key_is_refused_with_the_header_to_send(
    headers: dict[str, str], query: dict[str, str], protocols: tuple[str, ...]
) -> None:
    """Another server said 403 without a hint, and its user did not know that a key was expected."""
    refused = refusal(RING, headers, query, protocols)
    assert (refused.status, refused.code, refused.headers) == (401, "missing_api_key", {"WWW-Authenticate": "Bearer"})
    assert "Authorization: Bearer <key>" in refused.message
    assert "\n" not in refused.message
    assert ("--allow-query-key" in refused.message) == ("api_key" in query)


def test_a_key_of_the_url_counts_where_it_is_allowed() -> None:
    ring = KeyRing(["sk-good"], allow_query=True)
    assert ring.check({}, {"api_key": "sk-good"}, (), NOW_S) == Caller(key_id="key 1")
    assert refusal(ring, {}, {"api_key": "sk-bad"}, ()).code == "invalid_api_key"


def test_keys_are_told_apart_by_their_place() -> None:
    assert RING.check({"api-key": "sk-other"}, {}, (), NOW_S).key_id == "key 2"


def test_without_keys_everybody_may_come_in() -> None:
    ring = KeyRing([])
    assert ring.is_open
    assert not RING.is_open
    for headers in ({}, {"Authorization": "Bearer whatever"}, {"Authorization": "Bearer ek_whatever"}):
        assert ring.check(headers, {}, (), NOW_S, takes_secrets=True) is ANYBODY
        assert ring.check(headers, {}, (), NOW_S) is ANYBODY


def test_keys_are_compared_in_constant_time_with_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return compare_digest(given, known)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    RING.check({"api-key": "sk-good"}, {}, (), NOW_S)
    assert len(compared) == 2
    assert {len(side) for pair in compared for side in pair} == {32}


def test_neither_ring_nor_caller_shows_a_key() -> None:
    assert "sk-good" not in repr(RING) + repr(vars(RING)) + repr(RING.check({"api-key": "sk-good"}, {}, (), NOW_S))


# -- Files and lists -----------------------------------------------------------------------------------------------------------------


def test_keys_stand_on_lines_or_between_commas_beside_comments() -> None:
    text = "# keys of the house\n\n sk-one \nsk-two # of the phone bridge\r\nsk-one\n  # sk-old\nsk-3,,sk#4 ,\n"
    assert parse_keys(text) == ("sk-one", "sk-two", "sk-3", "sk#4")
    assert parse_keys("") == ()


@pytest.mark.parametrize("bad", ["has space", "base64/key=", "schlüssel", "ek_mine"])
def test_what_is_no_key_is_refused_by_its_line_and_not_shown(bad: str) -> None:
    with pytest.raises(ValueError, match="line 3") as refused:
        parse_keys(f"sk-one\n\nsk-two,{bad}\n")
    assert bad not in str(refused.value)


def test_origins_are_schemes_and_hosts() -> None:
    assert parse_origins(" https://App.example.com/ ,http://localhost:5173,") == ("https://app.example.com", "http://localhost:5173")
    assert parse_origins("*") == ("*",)
    assert parse_origins("") == ()
    for bad in ("app.example.com", "https://app.example.com/page", "https://", "https://a.example?x"):
        with pytest.raises(ValueError, match="no origin"):
            parse_origins(bad)


# -- Origins -------------------------------------------------------------------------------------------------------------------------

LISTED = ("https://app.example.com", "http://localhost:5173")
LET_IN = [
    (None, "gateway:8998", LISTED),  # no browser
    ("https://evil.example", "gateway:8998", ()),  # no list
    ("https://evil.example", "gateway:8998", ("*",)),
    ("https://app.example.com", "gateway:8998", LISTED),
    ("HTTPS://APP.example.com/", "gateway:8998", LISTED),
    ("http://gateway:8998", "gateway:8998", LISTED),  # the page that this server delivered
    ("https://voice.example.com", "voice.example.com", LISTED),  # likewise, behind a proxy that ended TLS
]
KEPT_OUT = [
    ("https://evil.example", "gateway:8998", LISTED),
    ("http://app.example.com", "gateway:8998", LISTED),
    ("http://localhost:5174", "gateway:8998", LISTED),
    ("https://app.example.com.evil.example", "gateway:8998", LISTED),
    ("null", "gateway:8998", LISTED),
    ("null", "null", LISTED),
    ("", "", LISTED),
    ("http://gateway:8999", "gateway:8998", LISTED),
    ("http://gateway:8998", None, LISTED),
]


@pytest.mark.parametrize(("origin", "host", "allowed"), LET_IN)
def test_pages_of_the_list_and_our_own_are_let_in(origin: str | None, host: str, allowed: tuple[str, ...]) -> None:
    check_origin(origin, host, allowed)


@pytest.mark.parametrize(("origin", "host", "allowed"), KEPT_OUT)
def test_other_pages_are_kept_out(origin: str, host: str | None, allowed: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        check_origin(origin, host, allowed)
    assert (refused.value.status, refused.value.code) == (403, "origin_not_allowed")


# -- Ephemeral secrets ---------------------------------------------------------------------------------------------------------------

OWNER = Caller(key_id="key 1")


def test_a_secret_opens_realtime_calls_until_it_expires_and_nothing_else() -> None:
    ring = KeyRing(["sk-good"])
    value, expires_s = ring.secrets.issue(OWNER, {"type": "realtime", "instructions": "Be kind."}, 600, NOW_S)
    assert value.startswith("ek_")
    assert len(value) >= 3 + 32
    assert value[3:].isalnum()
    assert value[3:].isascii()
    assert expires_s == int(NOW_S) + 600
    headers = {"Authorization": f"Bearer {value}"}
    for _ in range(2):  # more than once, unless told otherwise
        caller = ring.check(headers, {}, (), expires_s - 0.1, takes_secrets=True)
        assert (caller.key_id, caller.session) == ("key 1", {"type": "realtime", "instructions": "Be kind."})
    with pytest.raises(Refused) as refused:
        ring.check(headers, {}, (), expires_s, takes_secrets=True)
    assert (refused.value.status, refused.value.code) == (401, "ephemeral_key_expired")
    elsewhere = refusal(ring, headers, {}, ())
    assert (elsewhere.status, elsewhere.code) == (401, "invalid_api_key")
    assert "Realtime" in elsewhere.message


def test_a_secret_that_nobody_made_is_refused() -> None:
    refused = refusal(RING, {}, {}, (KEY_PREFIX + "ek_" + "0" * 40,), takes_secrets=True)
    assert (refused.status, refused.code) == (401, "invalid_api_key")


def test_a_secret_brings_its_session_to_an_open_server_too() -> None:
    ring = KeyRing([])
    value, expires_s = ring.secrets.issue(ANYBODY, {"instructions": "x"}, 10, NOW_S)
    assert ring.check({"api-key": value}, {}, (), NOW_S, takes_secrets=True).session == {"instructions": "x"}
    assert ring.check({"api-key": value}, {}, (), expires_s + 1, takes_secrets=True) is ANYBODY


def test_secrets_differ_and_are_not_kept_in_clear() -> None:
    secrets = EphemeralSecrets()
    values = {secrets.issue(OWNER, None, 10, NOW_S)[0] for _ in range(50)}
    assert len(values) == 50
    kept = repr(vars(secrets))
    assert not any(value in kept for value in values)


def test_a_single_use_secret_opens_one_connection() -> None:
    secrets = EphemeralSecrets(is_single_use=True)
    value, _ = secrets.issue(OWNER, None, 600, NOW_S)
    first, second = secrets.look_up(value, NOW_S), secrets.look_up(value, NOW_S)  # two handshakes at once
    with secrets.spend(first):
        with pytest.raises(Refused) as refused, secrets.spend(second):
            pass
        assert refused.value.code == "invalid_api_key"
    with pytest.raises(Refused) as refused:
        secrets.look_up(value, NOW_S)
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


def test_a_single_use_secret_is_not_lost_on_a_full_server() -> None:
    secrets = EphemeralSecrets(is_single_use=True)
    value, _ = secrets.issue(OWNER, None, 600, NOW_S)
    with pytest.raises(RuntimeError), secrets.spend(secrets.look_up(value, NOW_S)):
        raise RuntimeError("every slot is taken")
    with secrets.spend(secrets.look_up(value, NOW_S)):
        pass


def test_spending_leaves_other_callers_alone() -> None:
    secrets = EphemeralSecrets()
    value, _ = secrets.issue(OWNER, None, 600, NOW_S)
    for caller in (OWNER, ANYBODY, secrets.look_up(value, NOW_S)):
        with secrets.spend(caller):
            pass
    assert secrets.look_up(value, NOW_S)


def test_the_table_is_bounded_and_forgets_the_expired_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_SECRETS", 3)
    secrets = EphemeralSecrets()
    short, _ = secrets.issue(OWNER, None, 10, NOW_S)
    long, _ = secrets.issue(OWNER, None, 100, NOW_S)
    secrets.issue(OWNER, None, 50, NOW_S)
    with pytest.raises(Refused) as refused:
        secrets.issue(OWNER, None, 10, NOW_S)
    assert (refused.value.status, refused.value.code, refused.value.headers) == (429, "rate_limit_exceeded", {"Retry-After": "10"})
    secrets.issue(OWNER, None, 100, NOW_S + 20)
    assert secrets.look_up(long, NOW_S + 20).key_id == "key 1"
    with pytest.raises(Refused, match="not known"):
        secrets.look_up(short, NOW_S + 20)


def test_the_sessions_of_secrets_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_SECRETS_BYTES", 100)
    secrets = EphemeralSecrets()
    secrets.issue(OWNER, {"instructions": "x" * 60}, 10, NOW_S)
    secrets.issue(OWNER, None, 10, NOW_S)
    with pytest.raises(Refused):
        secrets.issue(OWNER, {"instructions": "x" * 60}, 10, NOW_S)
    for step in range(1, 4):
        secrets.issue(OWNER, {"instructions": "x" * 60}, 10, NOW_S + 20 * step)
    assert 60 < secrets._num_bytes <= 100


# -- Limits of a key -----------------------------------------------------------------------------------------------------------------


def test_a_key_may_hold_so_many_sessions_and_others_are_not_counted() -> None:
    limits = KeyLimits(max_sessions=2)
    other = Caller(key_id="key 2")
    with limits.hold(OWNER, 0.0), limits.hold(OWNER, 0.0), limits.hold(other, 0.0):
        with pytest.raises(Refused) as refused, limits.hold(OWNER, 0.0):
            pass
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        assert int(refused.value.headers["Retry-After"]) > 0
        assert refused.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    with pytest.raises(KeyError), limits.hold(OWNER, 0.0):
        raise KeyError
    with limits.hold(OWNER, 0.0), limits.hold(OWNER, 0.0):
        pass


def test_a_secret_counts_as_the_key_that_made_it() -> None:
    limits, secrets = KeyLimits(max_sessions=1), EphemeralSecrets()
    value, _ = secrets.issue(OWNER, None, 600, NOW_S)
    with limits.hold(secrets.look_up(value, NOW_S), 0.0), pytest.raises(Refused), limits.hold(OWNER, 0.0):
        pass


def test_a_key_may_knock_so_often_in_a_minute() -> None:
    limits = KeyLimits(handshakes_per_minute=3)

    def knock(now: float, caller: Caller = OWNER) -> int | None:
        try:
            with limits.hold(caller, now):
                return None
        except Refused as refused:
            return int(refused.headers["Retry-After"]) if refused.status == 429 else -1

    assert [knock(now) for now in (100.0, 110.0, 120.0)] == [None] * 3
    assert knock(120.5) == 40
    assert knock(121.0, Caller(key_id="key 2")) is None
    assert [knock(159.0 + step / 100) for step in range(90)] == [1] * 90  # a client that loops is told each time ...
    assert knock(160.0) is None  # ... and gets in when its time has come, for refused attempts are not counted
    assert knock(160.0) == 10


def test_without_a_key_nothing_is_limited_by_key() -> None:
    limits = KeyLimits(max_sessions=1, handshakes_per_minute=1)
    with limits.hold(ANYBODY, 0.0), limits.hold(ANYBODY, 0.0):
        pass


def test_zero_is_no_limit() -> None:
    limits = KeyLimits()
    for _ in range(200):
        with limits.hold(OWNER, 0.0):
            pass
