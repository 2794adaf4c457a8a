"""`runs resolve`, `halt` and `unhalt` against a real etcd: an operator's word, and what it changes."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper import Keeper
from tests.told_runs import fine, finished, in_doubt, signer

# ---------------------------------------------------------------- resolve


def test_resolve_applied_goes_on_with_the_result(cli: Any, keeper: Keeper) -> None:
    """C23: the operator's word is a record; the next life takes the step for done, with its result; nothing is resolved twice."""
    in_doubt(keeper)
    words = ("runs", "resolve", "order/o-2", "charge", "--applied", "--evidence", "the bank's list")
    done = cli(*words, "--result", '{"id": 7}', "-o", "json")
    assert (done.code, done.json["seq"], done.json["applied"]) == (0, 10, True)
    with keeper.run("order", id="o-2", ttl=5) as run:
        assert run.do("charge", pytest.fail) == {"id": 7}
    again = cli(*words)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "there is nothing to resolve" in again.err


def test_resolve_lifts_a_quarantine(cli: Any, keeper: Keeper) -> None:
    """A run that is put aside goes on after the word; a run that is not is left as it is."""
    for _ in range(2):
        with pytest.raises(RuntimeError), keeper.run("order", id="o-3", ttl=5, restarts=1):
            raise RuntimeError("early")
    with pytest.raises(BaseException, match="aside"), keeper.run("order", id="o-3", ttl=5, restarts=1):
        pass
    assert cli("runs", "ls", "-o", "json").json[0]["status"] == "quarantined"
    words = ("runs", "resolve", "order/o-3", "--lift-quarantine", "--evidence", "mended")
    assert cli(*words).code == 0
    with keeper.run("order", id="o-3", ttl=5) as run:
        assert run.do("a", fine, 1) == {"value": 1}
    assert cli(*words).code == 2


def test_resolve_signs_with_the_environments_key(cli: Any, keeper: Keeper) -> None:
    """A signed run takes only a signed word: without the key it is refused, with it the record is signed."""
    in_doubt(keeper, signer=signer())
    words = ("runs", "resolve", "order/o-2", "charge", "--not-applied", "--evidence", "looked")
    refused = cli(*words)
    assert refused.code == 2
    assert "key" in refused.err
    text = f"ed25519:k1:{'azFrMWsxazFrMWsxazFrMWsxazFrMWsxazFrMWsxazE='}"
    assert cli(*words, env={"LEASEKEEPER_SIGNING_KEY": text}).code == 0
    assert cli("runs", "show", "order/o-2", "-o", "json").json["records"][-1]["key_id"] == "k1"


# ---------------------------------------------------------------- halt


def test_halt_list_unhalt(cli: Any, keeper: Keeper) -> None:
    """B15: after halt no step begins in its scope, elsewhere it does; it is listed with its reason, and ends by unhalt."""
    done = cli("halt", "order/*", "--reason", "wrong prices", "-o", "json")
    assert done.code == 0
    assert done.json["revision"] > 0
    with pytest.raises(BaseException, match="halted"):
        finished(keeper)
    finished_elsewhere = keeper.run("mail", id="m", ttl=5)
    with finished_elsewhere as run:
        run.do("a", fine, 1)
    (one,) = cli("halt", "--list", "-o", "json").json
    assert (one["scope"], one["reason"]) == ("order/*", "wrong prices")
    assert "wrong prices" in cli("halt", "--list").out
    assert cli("unhalt", "order/*").code == 0
    assert cli("unhalt", "order/*").code == 1
    finished(keeper)
    assert cli("halt", "--list").out == ""
