"""What a run was begun with: stored once, under the run's first key, and never changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from leasekeeper.protocol.receipt import plain, signed_part, unsealed
from leasekeeper.run_errors import CorruptState

__all__ = ["FORMAT", "Meta", "meta_body", "read_meta"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Meta:
    """What a run was begun with."""

    gen: int
    input: bytes
    at_ms: int
    by: str
    life: str


def meta_body(body: dict[str, Any], given: bytes | None) -> bytes:
    """The body of a run's first facts, with the input's own canonical bytes in its place among the keys."""
    before = plain({name: body[name] for name in ("at", "by", "gen", "id")})
    after = plain({name: body[name] for name in ("life", "v", "wf")})
    return before[:-1] + b',"input":' + (given if given is not None else b"null") + b"," + after[1:]


def read_meta(stored: bytes, where: str) -> Meta:
    """What a run was begun with; CorruptState for anything that was not written as that."""
    body, _, _ = unsealed(stored, where, "beginning of a run", FORMAT)
    try:
        gen, at_ms, by, life = body["gen"], body["at"], body["by"], body["life"]
        whole = type(gen) is int and type(at_ms) is int and isinstance(by, str) and isinstance(life, str)
        if not whole or body.get("v") != FORMAT:
            raise TypeError(f"it is not what a run was begun with, in format {FORMAT}")
        text = signed_part(stored)
        start = text.index(b',"input":') + len(b',"input":')
        given = text[start : text.rindex(b',"life":')]
        json.loads(given)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptState(f"{where} cannot be trusted: {error}", where=where, why=str(error)) from None
    return Meta(gen, given, at_ms, by, life)
