"""Named documents behind a fence: configurations, certificates, secrets. An older owner cannot overwrite a newer one's."""

from __future__ import annotations

from dataclasses import dataclass

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import Admitted, admits, parse_token
from leasekeeper.testing.outside.ledger import Entry, Lag, Ledger
from leasekeeper.testing.outside.request import Answer, Request, Route, Service, refuse

__all__ = ["Documents"]


@dataclass(frozen=True, slots=True)
class Documents:
    """PUT ``{"value": …}`` with ``Fencing-Token``, and ``Fencing-Claim`` if it is known; GET reads the current one.

    The fence is a document's own. 428 without a token, 409 for an older one. Whoever sends no claim is taken for the one
    claim without a name: two owners with the same token, which a restored etcd can hand out, are then not told apart.
    """

    name: str

    def service(self) -> Service:
        """Its routes, below a path of its name."""
        path = (self.name, "*")
        return Service(self.name, (Route("PUT", path, "write", self.write), Route("GET", path, "read", self.read)))

    def write(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """Replace a document if the fence admits it."""
        name = request.path[-1]
        if not request.token:
            return refuse(428, "a write needs the header Fencing-Token")
        if "value" not in request.body:
            return refuse(422, "a write needs a 'value'", got=sorted(request.body))
        try:
            token = parse_token(request.token)
        except ConfigError as error:
            return refuse(422, str(error))
        latest = self._latest(name, ledger)
        highest = None if latest is None else Admitted(int(latest.token), latest.data["claim"])
        if not admits(highest, token, request.claim):
            assert highest is not None
            return refuse(409, "a newer owner has written", highest=str(highest.token), token=request.token)
        version = 1 if latest is None else latest.data["version"] + 1
        written = {"name": name, "value": request.body["value"], "version": version, "claim": request.claim}
        ledger.applied(cause, name, written)
        return Answer(200, {"name": name, "version": version})

    def read(self, request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
        """The current document, with the token under which it was written."""
        latest = self._latest(request.path[-1], ledger, lag)
        if latest is None:
            return refuse(404, f"there is no {request.path[-1]!r} in {self.name}")
        return Answer(200, {**latest.data, "token": latest.token})

    def _latest(self, name: str, ledger: Ledger, lag: Lag | None = None) -> Entry | None:
        found = [entry for entry in ledger.past(self.name, lag) if entry.subject == name]
        return found[-1] if found else None
