"""A language model's place: the shape of a chat completion, with an answer that follows from the request alone.

It thinks of nothing. As long as the conversation has fewer results of tools than the request offers tools, the answer is a
call of the next one; after that, a sentence. Arguments are taken from the tool's schema: ``const``, ``default`` or the first of
``enum`` or ``examples``, else a word or number made from the request. The same request always gets the same answer, and each
request is counted as a use of the model, with the tokens that it would be billed for: one a word.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from leasekeeper.testing.outside.ledger import Entry, Lag, Ledger
from leasekeeper.testing.outside.request import Answer, Request, Route, Service, refuse

__all__ = ["chat"]

PATH = ("v1", "chat", "completions")


def chat() -> Service:
    """POST a conversation; with ``"stream": true`` the answer comes in pieces."""
    return Service("chat", (Route("POST", PATH, "complete", _complete),))


def _complete(request: Request, ledger: Ledger, cause: Entry, lag: Lag | None) -> Answer:
    model, messages = request.body.get("model"), request.body.get("messages")
    if not isinstance(model, str) or not isinstance(messages, list) or not messages:
        return refuse(422, "a completion needs a model and messages", got=sorted(request.body))
    digest = hashlib.sha256(_canonical({**request.body, "stream": False})).hexdigest()
    message = _message(messages, request.body.get("tools") or [], digest)
    usage = _usage(messages, message)
    ledger.applied(cause, cause.subject, {"model": model, "digest": digest, "usage": usage})
    head = {"id": f"chatcmpl-{digest[:24]}", "model": model, "created": 0}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    if request.body.get("stream"):
        return Answer(200, pieces=_pieces(head, message, reason, usage))
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return Answer(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})


def _message(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], digest: str) -> dict[str, Any]:
    done = sum(message.get("role") == "tool" for message in messages)
    if done < len(tools):
        function = tools[done].get("function", {})
        properties = function.get("parameters", {}).get("properties", {})
        arguments = {name: _argument(schema, f"{digest}/{name}") for name, schema in properties.items()}
        call = {"name": function.get("name", ""), "arguments": json.dumps(arguments, sort_keys=True)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{digest[:16]}", "type": "function", "function": call}],
        }
    asked = next((str(message.get("content")) for message in messages if message.get("role") == "user"), "nothing")
    return {"role": "assistant", "content": f"Done with {done} tool calls: {asked}"}


def _argument(schema: Mapping[str, Any], seed: str) -> Any:
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("enum", "examples"):
        if schema.get(word):
            return schema[word][0]
    digest = hashlib.sha256(seed.encode()).hexdigest()
    return int(digest[:4], 16) if schema.get("type") in ("integer", "number") else digest[:8]


def _usage(messages: Sequence[Mapping[str, Any]], message: Mapping[str, Any]) -> dict[str, int]:
    prompt = sum(len(str(one.get("content") or "").split()) for one in messages)
    completion = len(str(message.get("content") or message.get("tool_calls")).split())
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _pieces(
    head: Mapping[str, Any], message: Mapping[str, Any], reason: str, usage: Mapping[str, int]
) -> tuple[Any, ...]:
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": 0, **call} for call in message["tool_calls"]]})
    else:
        deltas.extend({"content": word} for word in _words(message["content"]))
    chunk = {**head, "object": "chat.completion.chunk"}
    said = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
    return (*said, end, "[DONE]")


def _words(text: str) -> list[str]:
    """The text in pieces that give it again when they are put together."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
