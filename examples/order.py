"""An order: take the money once, send one mail, whatever becomes of the process in between.

Payments honour an idempotency key, but their list of charges may lag behind; mail knows no keys, but its outbox can be
believed. Each effect says so, and that is all that recovery goes by. Run it: ``python examples/order.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasekeeper import Keeper, Observed, Timing, effect
from leasekeeper.runs.effect import Step
from leasekeeper.testing.outside import Trouble, call
from stage import TTL_S, Stage, outside, play

Order = dict[str, Any]


# ---------------------------------------------------------------- the agent


@dataclass(frozen=True)
class OrderState:
    """Where the order stands, for whoever looks from outside."""

    charge: str = ""
    mail: str = ""


@effect(dedupes=True, key_ttl="24h")
def charge(step: Step, order: Order) -> Any:
    """Take the money. The same key gives the same charge: it can be asked for again."""
    body = {"order": order["id"], "amount_cents": order["amount_cents"]}
    return call(outside(), "POST", "/charges", body, headers=step.headers(), timeout_s=step.remaining())


@charge.preflight
def charged(step: Step, order: Order) -> Observed:
    """Whether there is a charge. The list may be old, so a "no" proves nothing."""
    found = call(outside(), "GET", "/charges", query={"order": order["id"]})["charges"]
    return Observed(found[0] if found else None, applied=bool(found), consistency="eventual")


@charge.verify
def paid(step: Step, order: Order, result: Any) -> bool:
    """The charge stands; asked again whenever the recorded result is used."""
    return bool(call(outside(), "GET", f"/charges/{result['id']}")["status"] == "paid")


@effect(probe=True)
def confirm(step: Step, order: Order, charge_id: str) -> Any:
    """Send the mail. A second one cannot be taken back, but the outbox says whether the first was sent."""
    letter = {"to": order["buyer"], "subject": f"Order {order['id']}", "body": f"Thank you. Payment: {charge_id}"}
    return call(outside(), "POST", "/mails", letter, headers=step.headers(), timeout_s=step.remaining())


@confirm.preflight
def confirmed(step: Step, order: Order, charge_id: str) -> Observed:
    """Whether it is in the outbox, which is always up to date."""
    query = {"to": order["buyer"], "subject": f"Order {order['id']}"}
    found = call(outside(), "GET", "/mails", query=query)["mails"]
    return Observed(found[0] if found else None, applied=bool(found))


def agent(order_id: str) -> None:
    """Handle one order, from wherever an earlier life has left it."""
    order = {"id": order_id, "buyer": f"{order_id}@example.org", "amount_cents": 4200}
    with Keeper.from_env(timing=Timing(ttl=TTL_S)) as keeper, keeper.run("order", id=order_id) as run:
        state = run.checkpoint("state", OrderState)
        receipt = run.do("charge", charge, order)
        state.commit(charge=receipt["id"])
        mail = run.do("confirm", confirm, order, receipt["id"])
        state.commit(mail=mail["id"])
        print(f"order {order_id}: {receipt['status']} by {receipt['id']}, confirmed by {mail['id']}")


# ---------------------------------------------------------------- the story


def story(stage: Stage) -> None:
    """Three agents are killed, each at a worse moment than the one before."""
    stage.say("the request for the money is under way when the agent dies, and arrives after its death")
    stage.kill("payments.charge", before=True)
    stage.say("the next one sends it again with the same key, and dies before it hears of the charge")
    stage.kill("payments.charge")
    stage.say("the next one looks, is shown an old list, sends it once more, and dies after the mail is sent")
    stage.world.trouble(Trouble("lag", "payments.list", times=0, writes=1))
    stage.kill("mail.send")
    stage.finish()
    stage.expect_agreement("order")
    charges = stage.world.received("payments.charge", stage.id)
    stage.expect("requests to charge the order", len(charges), 3)
    stage.expect("different idempotency keys among them", len({entry.key for entry in charges}), 1)
    stage.expect("charges", stage.count("payments.charge", stage.id), 1)
    stage.expect("mails", stage.count("mail.send", f"{stage.id}@example.org"), 1)


if __name__ == "__main__":
    play(story, agent)
