"""The outside world of the testing kit: its services, what goes wrong there, and the ledger that tells what happened."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.errors import ConfigError, Misuse, Unavailable
from leasekeeper.testing import ports
from leasekeeper.testing.outside import Count, Entry, OutsideView, OutsideWorld, Refused, Trouble, call
from leasekeeper.testing.outside.ledger import Lag, Ledger, counts, read_ledger
from leasekeeper.testing.outside.server import OutsideServer
from leasekeeper.testing.outside.troubles import TROUBLES_MAX, Troubles
from tests.support import until

LONG_MS = 60_000
NO_ANSWER = (OSError, http.client.HTTPException)


@pytest.fixture(scope="module")
def shared() -> Iterator[OutsideWorld]:
    """One world for many tests, which use orders and names of their own."""
    with OutsideWorld() as world:
        yield world


@pytest.fixture
def world(shared: OutsideWorld) -> Iterator[OutsideWorld]:
    """The shared world, healed at the end."""
    yield shared
    shared.heal()


def charge(world: OutsideWorld, order: str, key: str = "", path: str = "/charges", amount: int = 999) -> Any:
    """Charge an order."""
    headers = {"Idempotency-Key": key} if key else {}
    return call(world.url, "POST", path, {"order": order, "amount_cents": amount}, headers=headers)


def write(world: OutsideWorld, name: str, token: object, claim: str = "", value: object = "x") -> Any:
    """Write a configuration."""
    headers = {"Fencing-Token": str(token), "Fencing-Claim": claim}
    return call(world.url, "PUT", f"/configs/{name}", {"value": value}, headers=headers)


def completion(world: OutsideWorld, **body: Any) -> Any:
    """Ask the model."""
    return call(world.url, "POST", "/v1/chat/completions", {"model": "stub-1", **body})


# ---------------------------------------------------------------- the services


def test_a_key_charges_once(world: OutsideWorld) -> None:
    """The same key gives the same charge again, and the ledger counts one effect of two requests."""
    first, second = charge(world, "keyed", "k1"), charge(world, "keyed", "k1")
    assert first == second
    assert len(world.applied("payments.charge", "keyed")) == 1
    assert [entry.key for entry in world.received("payments.charge", "keyed")] == ["k1", "k1"]
    repeated = [entry.repeated for entry in world.ledger() if entry.kind == "answered" and entry.key == "k1"]
    assert repeated == [False, True]


def test_without_a_key_it_charges_each_time(world: OutsideWorld) -> None:
    """Nothing but the key makes two requests one."""
    assert charge(world, "unkeyed") != charge(world, "unkeyed")
    assert len(world.applied("payments.charge", "unkeyed")) == 2


def test_the_till_ignores_keys(world: OutsideWorld) -> None:
    """A service without support for keys takes one, and charges twice."""
    assert charge(world, "till", "k2", "/till/charges") != charge(world, "till", "k2", "/till/charges")
    assert len(world.applied("till.charge", "till")) == 2


def test_a_key_with_another_charge_is_refused(world: OutsideWorld) -> None:
    """A key stands for one charge: with another amount it is an error, not that charge and not a new one."""
    charge(world, "other", "k3")
    with pytest.raises(Refused, match="another charge") as refused:
        charge(world, "other", "k3", amount=1)
    assert refused.value.status == 422
    assert len(world.applied("payments.charge", "other")) == 1


class Hesitant(Ledger):
    """Takes its time between what a service reads and what it does then."""

    def past(self, service: str, lag: Lag | None = None) -> Sequence[Entry]:
        """What was applied, and then a pause."""
        found = super().past(service, lag)
        time.sleep(0.02)
        return found


def test_racers_with_one_key_charge_once(tmp_path: Path) -> None:
    """Eight requests with one key at the same time have one effect: looking and charging is one step."""
    path = tmp_path / "ledger.jsonl"
    with OutsideServer(ports.listener(), path) as server:
        server.ledger.close()
        server.ledger = Hesitant(path)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, headers = f"http://127.0.0.1:{server.server_address[1]}", {"Idempotency-Key": "k4"}
        body = {"order": "raced", "amount_cents": 1}
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(call, url, "POST", "/charges", body, headers=headers) for _ in range(8)]
            assert len({future.result(30)["id"] for future in futures}) == 1
        server.shutdown()
    assert counts(read_ledger(path)) == {"payments.charge": Count(received=8, applied=1, repeated=7)}


def test_a_key_is_forgotten(tmp_path: Path) -> None:
    """After its time a key is as good as new: who relies on it for longer charges twice."""
    with OutsideWorld(tmp_path, key_ttl_ms=50) as forgetful:
        charge(forgetful, "late", "k5")
        time.sleep(0.1)
        charge(forgetful, "late", "k5")
        assert len(forgetful.applied("payments.charge", "late")) == 2


def test_charges_are_found_and_voided(world: OutsideWorld) -> None:
    """A charge is found by its order and by its id, and shows when it was voided."""
    made = charge(world, "found")
    assert call(world.url, "GET", "/charges", query={"order": "found"}) == {"charges": [made]}
    assert call(world.url, "GET", f"/charges/{made['id']}")["status"] == "paid"
    assert call(world.url, "DELETE", f"/charges/{made['id']}")["status"] == "voided"
    assert call(world.url, "GET", "/charges", query={"order": "found"})["charges"][0]["status"] == "voided"
    assert len(world.applied("payments.void", "found")) == 1
    with pytest.raises(Refused, match="no charge"):
        call(world.url, "GET", "/charges/ch_0")


def test_every_mail_is_sent(world: OutsideWorld) -> None:
    """Mail knows no keys."""
    letter = {"to": "ann@example.org", "subject": "hello", "body": "…"}
    for _ in range(2):
        call(world.url, "POST", "/mails", letter, headers={"Idempotency-Key": "k6"})
    outbox = call(world.url, "GET", "/mails", query={"to": "ann@example.org", "subject": "hello"})["mails"]
    assert [mail["subject"] for mail in outbox] == ["hello", "hello"]
    assert len(world.applied("mail.send", "ann@example.org")) == 2


def test_an_older_token_is_refused(world: OutsideWorld) -> None:
    """A document takes what its newest owner writes, and nothing of an older one's."""
    write(world, "fenced", 7, "a", "old")
    assert write(world, "fenced", 8, "b", "new")["version"] == 2
    for token, claim in ((7, "a"), (8, "c")):
        with pytest.raises(Refused, match="newer owner") as refused:
            write(world, "fenced", token, claim)
        assert (refused.value.status, refused.value.body["highest"]) == (409, "8")
    current = call(world.url, "GET", "/configs/fenced")
    assert (current["value"], current["version"], current["token"]) == ("new", 2, "8")
    assert [entry.token for entry in world.applied("configs.write", "fenced")] == ["7", "8"]


def test_a_token_is_compared_as_a_number(world: OutsideWorld) -> None:
    """Tokens come padded or not, and 10 is more than 9."""
    write(world, "padded", "0000000000000000009")
    write(world, "padded", 10)
    with pytest.raises(Refused, match="newer owner"):
        write(world, "padded", 9)


@pytest.mark.parametrize(("token", "status"), [("", 428), ("seven", 422), ("0", 422)])
def test_a_document_needs_a_token(world: OutsideWorld, token: str, status: int) -> None:
    """Without a token, or with something that is none, nothing is written."""
    with pytest.raises(Refused) as refused:
        write(world, f"tokenless-{status}", token)
    assert refused.value.status == status
    assert not world.applied("configs.write", f"tokenless-{status}")


def test_kinds_of_documents_do_not_meet(world: OutsideWorld) -> None:
    """A configuration, a certificate and a secret of one name are three documents."""
    for kind in ("configs", "certificates", "secrets"):
        call(world.url, "PUT", f"/{kind}/same", {"value": kind}, headers={"X-Fencing-Token": "5"})
    for kind in ("configs", "certificates", "secrets"):
        assert call(world.url, "GET", f"/{kind}/same")["value"] == kind


TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "pay", "parameters": {"properties": {"sum": {"default": 7}}}}},
]


def test_the_model_answers_from_the_request_alone(world: OutsideWorld) -> None:
    """The same request gets the same answer, and is billed each time."""
    asked = {"messages": [{"role": "user", "content": "pay the bill"}], "tools": TOOLS}
    before = world.counts().get("chat.complete", Count()).applied
    assert completion(world, **asked) == completion(world, **asked)
    assert world.counts()["chat.complete"].applied == before + 2
    assert world.applied("chat.complete", "stub-1")[-1].data["usage"]["prompt_tokens"] == 3
    completion(world, **asked, user="ann")
    assert [entry.data["model"] for entry in world.applied("chat.complete", "ann")] == ["stub-1"]


def test_the_model_calls_each_tool_and_ends(world: OutsideWorld) -> None:
    """One call of each tool that is offered, in order, and then a sentence."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "pay the bill"}]
    called = []
    for _ in TOOLS:
        message = completion(world, messages=messages, tools=TOOLS)["choices"][0]["message"]
        (one,) = message["tool_calls"]
        called.append((one["function"]["name"], json.loads(one["function"]["arguments"])))
        messages += [message, {"role": "tool", "tool_call_id": one["id"], "content": "ok"}]
    assert [name for name, _ in called] == ["look", "pay"]
    assert called[1][1] == {"sum": 7}
    last = completion(world, messages=messages, tools=TOOLS)["choices"][0]
    assert last["finish_reason"] == "stop"
    assert "pay the bill" in last["message"]["content"]


def streamed(world: OutsideWorld, content: str) -> list[Any]:
    """The events of a streamed answer, as far as they came."""
    connection = http.client.HTTPConnection(world.url.removeprefix("http://"), timeout=30)
    asked = {"model": "stub-2", "stream": True, "messages": [{"role": "user", "content": content}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(asked))
    with connection.getresponse() as response:
        lines = response.read().decode().split("\n\n")
    connection.close()
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines if line]


def test_a_stream_gives_the_same_text(world: OutsideWorld) -> None:
    """Put together, the pieces are the answer that comes without streaming."""
    whole = completion(world, model="stub-2", messages=[{"role": "user", "content": "one two  three"}])
    *pieces, end, done = streamed(world, "one two  three")
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert (end["usage"], done) == (whole["usage"], "[DONE]")


def test_a_stream_can_break(world: OutsideWorld) -> None:
    """A lost reply of a stream is one that ends in the middle; it is billed all the same."""
    world.trouble(Trouble("lose_reply", "chat.complete"))
    before = len(world.applied("chat.complete", "stub-2"))
    pieces = streamed(world, "four five six")
    assert pieces
    assert "[DONE]" not in pieces
    assert len(world.applied("chat.complete", "stub-2")) == before + 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/charges", {"order": "", "amount_cents": 1}, 422),
        ("POST", "/charges", {"order": "x", "amount_cents": 0}, 422),
        ("POST", "/mails", {"to": "nobody"}, 422),
        ("POST", "/v1/chat/completions", {"model": "stub-1"}, 422),
        ("PUT", "/charges", {}, 404),
        ("GET", "/configs/none", None, 404),
        ("POST", "/__control", {"trouble": {"kind": "bad luck"}}, 422),
        ("POST", "/__control", {"trouble": {"kind": "fail", "wher": "*"}}, 422),
        ("POST", "/__control", {}, 422),
    ],
)
def test_what_is_wrong_is_refused(
    world: OutsideWorld, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    """A request that means nothing has no effect, and the answer says why."""
    effects = sum(count.applied for count in world.counts().values())
    with pytest.raises(Refused) as refused:
        call(world.url, method, path, body)
    assert refused.value.status == status
    assert sum(count.applied for count in world.counts().values()) == effects


@pytest.mark.parametrize(("content", "status"), [(b"[]", 400), (b"{", 400), (b"x" * (1 << 20) + b"x", 413)])
def test_a_body_is_an_object_of_some_size(world: OutsideWorld, content: bytes, status: int) -> None:
    """What cannot be a request is told so before anything looks at it."""
    connection = http.client.HTTPConnection(world.url.removeprefix("http://"), timeout=30)
    try:
        connection.request("POST", "/mails", content)
        assert connection.getresponse().status == status
    except (BrokenPipeError, ConnectionResetError):
        assert status == 413  # it did not wait for the rest
    finally:
        connection.close()


# ---------------------------------------------------------------- what goes wrong


def test_a_lost_reply_has_had_its_effect(world: OutsideWorld) -> None:
    """The asker hears nothing, the ledger shows the effect, and the next request is answered."""
    world.trouble(Trouble("lose_reply", "payments.charge"))
    with pytest.raises(NO_ANSWER):
        charge(world, "lost", "k7")
    assert len(world.applied("payments.charge", "lost")) == 1
    charge(world, "lost", "k7")
    assert len(world.applied("payments.charge", "lost")) == 1


@pytest.mark.parametrize(("kind", "effects"), [("fail", 0), ("fail_after", 1)])
def test_a_failure_is_before_or_after(world: OutsideWorld, kind: Any, effects: int) -> None:
    """Both answer 500, and only the ledger tells them apart."""
    world.trouble(Trouble(kind, "payments.*"))
    with pytest.raises(Refused) as refused:
        charge(world, f"order-{kind}")
    assert refused.value.status == 500
    assert len(world.applied("payments.charge", f"order-{kind}")) == effects


def test_an_outage_drops_everything(world: OutsideWorld) -> None:
    """No answer and no effect, until the world is healed."""
    world.trouble(Trouble("outage", times=0))
    for _ in range(2):
        with pytest.raises(NO_ANSWER):
            charge(world, "outage")
    world.heal()
    charge(world, "outage")
    assert len(world.received("payments.charge", "outage")) == 3
    assert len(world.applied("payments.charge", "outage")) == 1


@pytest.mark.parametrize(("kind", "effects"), [("delay", 0), ("delay_reply", 1)])
def test_a_delay_is_before_or_after(world: OutsideWorld, kind: Any, effects: int) -> None:
    """During a delay the effect has not happened, or it has; healing ends it, and both end well."""
    order = f"order-{kind}"
    world.trouble(Trouble(kind, "payments.charge", ms=LONG_MS))
    asker = threading.Thread(target=charge, args=(world, order))
    seen = len(world.received("payments.charge"))
    asker.start()
    world.wait_received("payments.charge", seen + 1)
    if effects:
        until(lambda: world.applied("payments.charge", order))
    assert len(world.applied("payments.charge", order)) == effects
    assert asker.is_alive()
    world.heal()
    asker.join(30)
    assert len(world.applied("payments.charge", order)) == 1


def test_an_asker_who_is_gone_does_not_undo_the_effect(world: OutsideWorld) -> None:
    """A request that was given up while it was delayed happens all the same."""
    world.trouble(Trouble("delay", "mail.send", ms=300))
    with pytest.raises(TimeoutError):
        call(world.url, "POST", "/mails", {"to": "gone@example.org"}, timeout_s=0.05)
    assert len(until(lambda: world.applied("mail.send", "gone@example.org"))) == 1


@pytest.mark.parametrize(
    "lag", [Trouble("lag", "payments.list", ms=LONG_MS), Trouble("lag", "payments.list", writes=1)]
)
def test_a_replica_that_lags_shows_the_past(world: OutsideWorld, lag: Trouble) -> None:
    """A charge that was just made is not found at first; the next request, past the trouble, finds it."""
    order = f"lag-{lag.ms}"
    charge(world, order)
    world.trouble(lag)
    assert call(world.url, "GET", "/charges", query={"order": order}) == {"charges": []}
    assert len(call(world.url, "GET", "/charges", query={"order": order})["charges"]) == 1


def test_a_lag_does_not_fool_the_service_itself(world: OutsideWorld) -> None:
    """Only who reads sees the past: a key is honoured and a fence holds as ever."""
    world.trouble(Trouble("lag", "*", times=0, ms=LONG_MS))
    charge(world, "lagging", "k8")
    charge(world, "lagging", "k8")
    assert len(world.applied("payments.charge", "lagging")) == 1
    write(world, "lagging", 8)
    with pytest.raises(Refused, match="newer owner"):
        write(world, "lagging", 7)


def test_a_trouble_strikes_the_requests_that_it_names() -> None:
    """Only those that match count, from the nth on, as many as it says."""
    troubles = Troubles()
    troubles.add(Trouble("fail", "mail.send", nth=2, times=2))
    assert troubles.meet("mail", "list").of("fail") is None
    assert [bool(troubles.meet("mail", "send").of("fail")) for _ in range(5)] == [False, True, True, False, False]


def test_the_latest_trouble_of_a_kind_wins_and_their_number_is_bounded() -> None:
    """Troubles add up by kind; nobody can add them for ever."""
    troubles = Troubles()
    for status in range(400, 400 + TROUBLES_MAX):
        troubles.add(Trouble("fail", status=status))
    found = troubles.meet("mail", "send").of("fail")
    assert found is not None
    assert found.status == 399 + TROUBLES_MAX
    with pytest.raises(ConfigError, match="at most"):
        troubles.add(Trouble("fail"))


@pytest.mark.parametrize("wrong", [{"nth": 0}, {"times": -1}, {"ms": "5"}, {"kind": "luck"}, {"status": 200}])
def test_a_trouble_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Its fields are checked where it is made."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Trouble(**{"kind": "fail", **wrong})


# ---------------------------------------------------------------- the ledger, and the world's own life


def test_a_killed_world_comes_back_with_its_past(tmp_path: Path) -> None:
    """After a kill it serves at the same address, knows every charge and key, and goes on numbering."""
    with OutsideWorld(tmp_path) as world:
        before, url = charge(world, "past", "k9"), world.url
        world.kill()
        with pytest.raises(Misuse):
            _ = world.pid
        with pytest.raises(ConnectionRefusedError):
            charge(world, "past", "k9")
        world.start()
        assert world.url == url
        assert charge(world, "past", "k9") == before
        numbers = [entry.number for entry in world.ledger()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(world.applied("payments.charge", "past")) == 1


def test_a_torn_line_is_nothing(tmp_path: Path) -> None:
    """What a killed world had half written is skipped by readers, and removed by the next world."""
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as first:
        first.applied(first.received("mail", "send"), "a@example.org", {"id": "mail_1"})
    with path.open("ab") as file:
        file.write(b'{"number":3,"kind":"app')
    assert [entry.number for entry in read_ledger(path)] == [1, 2]
    with closing(Ledger(path)) as again:
        assert len(again.past("mail")) == 1
        again.received("mail", "list")
    assert [entry.number for entry in read_ledger(path)] == [1, 2, 3]


def test_counts_tell_requests_from_effects(tmp_path: Path) -> None:
    """A request that was refused counts as received, one that was repeated as repeated, and nothing counts twice."""
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        first = ledger.received("payments", "charge", key="k")
        ledger.applied(first, "o", {})
        ledger.answered(first, 201)
        ledger.answered(ledger.received("payments", "charge", key="k"), 200, repeated=True)
        ledger.answered(ledger.received("payments", "charge"), 422)
    assert counts(read_ledger(tmp_path / "ledger.jsonl")) == {"payments.charge": Count(3, 1, 1)}


def test_the_world_looks_the_same_over_the_wire(world: OutsideWorld) -> None:
    """Who does not see the file reads the same lines and numbers, and makes the same trouble."""
    view = OutsideView(world.url)
    view.trouble(Trouble("fail", "payments.charge"))
    with pytest.raises(Refused):
        charge(world, "wire")
    charge(world, "wire")
    view.wait_applied("payments.charge", timeout_s=5)
    assert view.ledger() == world.ledger()
    assert view.applied("payments.charge", "wire") == world.applied("payments.charge", "wire")
    counted = {name: Count(**count) for name, count in call(world.url, "GET", "/__counts").items()}
    assert counted == view.counts() == world.counts()
    with pytest.raises(Refused, match="GET /__counts"):
        call(world.url, "GET", "/__nothing")


def test_waiting_has_an_end(world: OutsideWorld) -> None:
    """What does not happen is told with what did."""
    with pytest.raises(Unavailable, match=r"payments\.void happened 999 times"):
        world.wait_applied("payments.void", 999, timeout_s=0.05)


def test_a_world_runs_once_and_says_why_it_does_not(tmp_path: Path) -> None:
    """Starting it twice is a mistake; a ledger that is no file ends the start with the world's own words."""
    with OutsideWorld(tmp_path / "one") as world:
        with pytest.raises(Misuse):
            world.start()
        assert world.pid != os.getpid()
    (tmp_path / "two" / "ledger.jsonl").mkdir(parents=True)
    with pytest.raises(Unavailable, match="IsADirectoryError"):
        OutsideWorld(tmp_path / "two").start()
    with pytest.raises(Misuse):
        _ = OutsideWorld(tmp_path / "three").url
