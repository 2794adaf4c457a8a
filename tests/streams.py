"""Asking the outside world's model for an answer in pieces, and spooling what has come: for tests and the program they kill."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from leasekeeper import Answered, effect
from leasekeeper.runs.effect import Effect, Step

__all__ = ["ABOUT", "PROMPT", "asking"]

PROMPT = "tell me a story of about twenty words that comes in pieces and that somebody may cut off in the middle of it"
ABOUT = {"model": "stub-2", "params": {"temperature": 0}, "budget_tokens": 500}


def asking(url: str, heard: Callable[[str], object] = lambda _: None, every_s: float = 0.0) -> Effect:
    """A memo's function that streams the answer. ``heard`` is told what there is so far, once it was spooled."""

    @effect(spool_every=every_s)
    def ask(step: Step, prompt: str) -> Answered:
        so_far = ""
        end: dict[str, Any] = {}
        for event in _stream(url, prompt):
            choice = event["choices"][0]
            so_far += choice["delta"].get("content", "")
            end = event if choice["finish_reason"] else end
            step.spool(so_far)
            heard(so_far)
        about = {"ref": end["id"], "usage": end["usage"], "finish": end["choices"][0]["finish_reason"]}
        return Answered(so_far, about)

    return ask


def _stream(url: str, prompt: str) -> Iterator[Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30.0)
    try:
        body = {"model": "stub-2", "stream": True, "messages": [{"role": "user", "content": prompt}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            text = line.decode().removeprefix("data: ").strip()
            if text and text != "[DONE]":
                yield json.loads(text)
    finally:
        connection.close()
