"""A certificate rotation in phases: staged, distributed, activated, old-revoked. Whatever is served can be verified, always.

The order of the phases is what keeps clients connected: they trust the new authority before a server shows a certificate of
it, and lose the old one after the last server has changed. `run.phase` refuses any other order. The certificates are behind
a fence, so a request of a killed agent that arrives late cannot undo what its successor has done.
Run it: ``python examples/rotation.py``. It needs `openssl`, as the judge, and ``pip install 'leasekeeper[signing]'``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from certificates import make_authority, public, verifies
from leasekeeper import Keeper, Observed, Timing, effect
from leasekeeper.runs.effect import Step
from leasekeeper.testing.outside import Refused, call
from stage import TTL_S, Stage, outside, play

PHASES = {
    "planned": ["staged"],
    "staged": ["distributed"],
    "distributed": ["activated"],
    "activated": ["old-revoked"],
    "old-revoked": [],
}


# ---------------------------------------------------------------- the effects


@effect(fences=True, probe=True)
def stage_authority(step: Step, place: str) -> Any:
    """Make the new authority, cross-signed by the old one, and a server certificate. Keys go to the vault, nowhere else."""
    old = read("secrets", f"{place}-ca-1")["value"]
    new = make_authority("CA 2", old)
    write(step, "secrets", f"{place}-ca-2", new)
    return public(new)


@stage_authority.preflight
def staged(step: Step, place: str) -> Observed:
    """Whether it is in the vault."""
    found = read("secrets", f"{place}-ca-2")
    return Observed(public(found["value"]) if found else None, applied=found is not None)


@effect(fences=True, probe=True)
def publish(step: Step, name: str, pem: str) -> Any:
    """Replace what clients trust or what servers show."""
    return write(step, "certificates", name, pem)


@publish.preflight
def published(step: Step, name: str, pem: str) -> Observed:
    """Whether that is what is served."""
    found = read("certificates", name)
    assert found is not None
    return Observed({"name": name, "version": found["version"]}, applied=found["value"] == pem)


def read(kind: str, name: str) -> Any:
    """A document, None if there is none."""
    try:
        return call(outside(), "GET", f"/{kind}/{name}")
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def write(step: Step, kind: str, name: str, value: object) -> Any:
    """Replace a document, with the fencing token of this step's owner."""
    path = f"/{kind}/{name}"
    return call(outside(), "PUT", path, {"value": value}, headers=step.headers(), timeout_s=step.remaining())


# ---------------------------------------------------------------- the agent


def agent(place: str) -> None:
    """Go from phase to phase, from whichever an earlier life has reached."""
    with Keeper.from_env(timing=Timing(ttl=TTL_S)) as keeper, keeper.run("rotation", id=place) as run:
        phase = run.phase("rotation", PHASES)
        old = public(read("secrets", f"{place}-ca-1")["value"])
        new = run.do("stage", stage_authority, place)
        if phase.now() == "planned":
            phase.move("staged")
        if phase.now() == "staged":
            run.do("distribute", publish, f"{place}-trust", old["root"] + new["root"])
            phase.move("distributed")
        if phase.now() == "distributed":
            run.do("activate", publish, f"{place}-server", new["chain"])
            phase.move("activated")
        if phase.now() == "activated":
            run.do("revoke", publish, f"{place}-trust", new["root"])
            phase.move("old-revoked")
        print(f"{place}: {phase.now()}")


# ---------------------------------------------------------------- the story


def story(stage: Stage) -> None:
    """An agent dies in each phase; what is served is verified after each death, and every state that ever was at the end."""
    old = make_authority("CA 1")
    first = {"secrets/{}-ca-1": old, "certificates/{}-trust": old["root"], "certificates/{}-server": old["chain"]}
    for path, value in first.items():
        call(outside(), "PUT", f"/{path.format(stage.id)}", {"value": value}, headers={"Fencing-Token": "1"})
    stage.kill("secrets.write")
    check(stage)
    stage.kill("certificates.write", before=True)
    check(stage)
    for _ in ("distribute", "activate", "revoke"):
        stage.kill("certificates.write")
        check(stage)
    stage.finish()
    stage.expect_agreement("rotation")
    check(stage)
    refused = [entry for entry in stage.world.ledger() if entry.status == 409 and entry.subject.startswith(stage.id)]
    stage.expect("requests of a dead agent that the fence has refused", len(refused), 1)
    stage.expect(
        "times that the clients' roots were replaced", stage.count("certificates.write", f"{stage.id}-trust"), 3
    )
    stage.expect(
        "times that the server's chain was replaced", stage.count("certificates.write", f"{stage.id}-server"), 2
    )
    stage.expect("states without an overlap", gaps(stage), 0)
    stage.expect("the old certificate is still good", verifies(old["chain"], served(stage, "trust")), False)


def served(stage: Stage, what: str) -> str:
    """What clients trust or servers show at this moment."""
    return str(read("certificates", f"{stage.id}-{what}")["value"])


def check(stage: Stage) -> None:
    """Ask openssl about what is served now."""
    stage.expect("openssl verifies what is served", verifies(served(stage, "server"), served(stage, "trust")), True)


def gaps(stage: Stage) -> int:
    """In how many steps of the ledger somebody who is one step behind would have been locked out."""
    names = {f"{stage.id}-trust": "trust", f"{stage.id}-server": "server"}
    states: list[dict[str, str]] = [{}]
    for entry in stage.world.ledger():
        if entry.kind == "applied" and entry.service == "certificates" and entry.subject in names:
            states.append({**states[-1], names[entry.subject]: entry.data["value"]})
    whole = states[2:]
    pairs = [(new["server"], old["trust"]) for old, new in pairwise(whole)] + [
        (one["server"], one["trust"]) for one in whole
    ]
    return sum(not verifies(chain, trust) for chain, trust in pairs)


if __name__ == "__main__":
    play(story, agent)
