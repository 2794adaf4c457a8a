"""The head of a run: which record is its last, and what a person wants to know at a glance.

Everything that is written to a run compares the head, so writes follow one another. Only the last record's number and hash
are decided on; all else in it can be had from the records, and `runs verify` holds it against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leasekeeper.protocol.receipt import FIRST_PREV, seal, text_of, unsealed
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.run_records import RunStatus

__all__ = ["Head", "read_head"]

FORMAT = 1
STATUSES = ("running", "in_doubt", "quarantined", "finished")
DOUBTS_MAX = 64


class Head(NamedTuple):
    """The head. A named tuple: several are made for each step, and a frozen dataclass takes three times as long.

    ``seq`` and ``hash`` are the last record's. ``doubts`` are the steps that wait for an operator.

    ``restarts`` counts the lives of the run since a step was last done; ``due`` are those of the doubts that
    nobody was told of yet, and "" for a quarantine;
    ``key_id`` is the signing key of the last record; ``size`` counts the bytes of all records.
    """

    gen: int = 1
    seq: int = 0
    hash: str = FIRST_PREV
    status: RunStatus = "running"
    token: int = 0
    holder: str = ""
    life: str = ""
    at_ms: int = 0
    done: int = 0
    restarts: int = 0
    doubts: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    key_id: str = ""
    size: int = 0

    def after(self, seq: int, hash_: str, at_ms: int, size: int) -> Head:
        """The head once this record is the last."""
        return self._replace(seq=seq, hash=hash_, at_ms=at_ms, size=self.size + size)

    def in_doubt(self, step: str) -> Head:
        """A step waits for an operator; nobody has been told yet."""
        doubts = tuple(dict.fromkeys((*self.doubts, step)))[:DOUBTS_MAX]
        return self._replace(status="in_doubt", doubts=doubts, due=tuple(dict.fromkeys((*self.due, step)))[:DOUBTS_MAX])

    def settled(self, step: str) -> Head:
        """A step does not wait any more."""
        if step not in self.doubts:
            return self
        doubts = tuple(each for each in self.doubts if each != step)
        status: RunStatus = self.status if doubts or self.status != "in_doubt" else "running"
        return self._replace(status=status, doubts=doubts).told(step)

    def told(self, step: str) -> Head:
        """Somebody was told of a step in doubt; of a quarantine for ""."""
        return self._replace(due=tuple(each for each in self.due if each != step))

    def one_more(self) -> Head:
        """A step was done, so what went before was not in vain."""
        return self._replace(done=self.done + 1, restarts=0)

    def stored(self) -> bytes:
        """Its bytes in etcd."""
        doubts = ",".join(map(text_of, self.doubts))
        due = ",".join(map(text_of, self.due))
        body = (
            f'{{"at":{self.at_ms},"done":{self.done},"doubts":[{doubts}],"due":[{due}],"gen":{self.gen},"hash":"{self.hash}",'
            f'"holder":{text_of(self.holder)},"key":"{self.key_id}","life":"{self.life}","restarts":{self.restarts},'
            f'"seq":{self.seq},"size":{self.size},"status":"{self.status}","token":"{self.token:019d}","v":{FORMAT}}}'
        )
        return seal(body.encode(), None)


_KINDS: dict[str, type] = {
    "at": int,
    "done": int,
    "doubts": list,
    "due": list,
    "gen": int,
    "hash": str,
    "holder": str,
    "key": str,
    "life": str,
    "restarts": int,
    "seq": int,
    "size": int,
    "status": str,
    "token": str,
    "v": int,
}


def read_head(stored: bytes, where: str) -> Head:
    """The head from its bytes; CorruptState for anything that was not written as one."""
    body, _, _ = unsealed(stored, where, "head of a run", FORMAT)
    if body.keys() != _KINDS.keys() or any(type(body[name]) is not kind for name, kind in _KINDS.items()):
        raise _corrupt(where, "it is no head of a run")
    if body["v"] != FORMAT or body["status"] not in STATUSES or not _is_number(body["token"]):
        raise _corrupt(where, f"it is no head of format {FORMAT}")
    head = _head(body)
    if head.stored() != stored:
        raise _corrupt(where, "it is not spelled as a head is")
    return head


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _head(body: dict[str, Any]) -> Head:
    return Head(
        gen=body["gen"],
        seq=body["seq"],
        hash=body["hash"],
        status=body["status"],
        token=int(body["token"]),
        holder=body["holder"],
        life=body["life"],
        at_ms=body["at"],
        done=body["done"],
        restarts=body["restarts"],
        doubts=tuple(map(str, body["doubts"])),
        due=tuple(map(str, body["due"])),
        key_id=body["key"],
        size=body["size"],
    )


def _corrupt(where: str, why: str) -> CorruptState:
    return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
