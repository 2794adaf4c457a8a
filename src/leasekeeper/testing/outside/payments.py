"""Charges, at a service that honours idempotency keys and at one that does not; and mails, which nobody can take back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leasekeeper.testing.outside.ledger import Entry, Lag, Ledger
from leasekeeper.testing.outside.request import Answer, Request, Route, Service, refuse

__all__ = ["Payments", "mail"]


@dataclass(frozen=True, slots=True)
class Payments:
    """One charge a request. With ``honours_keys`` the same ``Idempotency-Key`` gives the same charge again.

    A key is forgotten after ``key_ttl_ms``; 0 means never. The same key with another order or amount is refused with 422.
    """

    name: str
    path: tuple[str, ...]
    honours_keys: bool
    key_ttl_ms: int = 0

    def service(self) -> Service:
        """POST a charge, GET one or those of an order, DELETE to void one."""
        one = (*self.path, "*")
        return Service(
            self.name,
            (
                Route("POST", self.path, "charge", self.charge),
                Route("GET", self.path, "list", self.find),
                Route("GET", one, "read", self.show),
                Route("DELETE", one, "void", self.void),
            ),
        )

    def charge(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """Take money, once a key or once a request."""
        order, amount = request.body.get("order"), request.body.get("amount_cents")
        if not isinstance(order, str) or not order or not isinstance(amount, int) or amount < 1:
            return refuse(422, "a charge needs an order and an amount_cents of at least 1", got=dict(request.body))
        if (earlier := self._earlier(request, ledger)) is not None:
            same = (earlier.data["order"], earlier.data["amount_cents"]) == (order, amount)
            if not same:
                return refuse(422, "this Idempotency-Key came with another charge before", earlier=dict(earlier.data))
            return Answer(200, self._charges(ledger)[earlier.data["id"]], repeated=True)
        charge = {"id": f"ch_{cause.request}", "order": order, "amount_cents": amount, "status": "paid"}
        ledger.applied(cause, order, charge)
        return Answer(201, charge)

    def find(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """All charges of an order; of every order when none is named."""
        order = request.query.get("order")
        charges = self._charges(ledger, lag).values()
        return Answer(200, {"charges": [charge for charge in charges if order in (None, charge["order"])]})

    def show(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """One charge."""
        charge = self._charges(ledger, lag).get(request.path[-1])
        return Answer(200, charge) if charge else refuse(404, f"no charge {request.path[-1]!r}")

    def void(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """Give the money back."""
        charge = self._charges(ledger).get(request.path[-1])
        if charge is None:
            return refuse(404, f"no charge {request.path[-1]!r}")
        if charge["status"] == "voided":
            return Answer(200, charge, repeated=True)
        voided = {**charge, "status": "voided"}
        ledger.applied(cause, charge["order"], voided)
        return Answer(200, voided)

    def _charges(self, ledger: Ledger, lag: Lag | None = None) -> dict[str, Mapping[str, Any]]:
        return {entry.data["id"]: entry.data for entry in ledger.past(self.name, lag)}

    def _earlier(self, request: Request, ledger: Ledger) -> Entry | None:
        if not (self.honours_keys and request.key):
            return None
        since_ms = time.time_ns() // 1_000_000 - self.key_ttl_ms if self.key_ttl_ms else 0
        for entry in ledger.past(self.name):
            if entry.effect == "charge" and entry.key == request.key and entry.at_ms >= since_ms:
                return entry
        return None


def mail() -> Service:
    """POST sends a mail, however often it is asked; GET reads the outbox."""
    return Service("mail", (Route("POST", ("mails",), "send", _send), Route("GET", ("mails",), "list", _outbox)))


def _send(request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
    to = request.body.get("to")
    if not isinstance(to, str) or "@" not in to:
        return refuse(422, "a mail needs an address in 'to'", got=dict(request.body))
    sent = {"id": f"mail_{cause.request}", **{name: request.body.get(name, "") for name in ("to", "subject", "body")}}
    ledger.applied(cause, to, sent)
    return Answer(202, sent)


def _outbox(request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
    wanted = {name: request.query[name] for name in ("to", "subject") if name in request.query}
    mails = [entry.data for entry in ledger.past("mail", lag)]
    return Answer(200, {"mails": [one for one in mails if all(one[name] == wanted[name] for name in wanted)]})
