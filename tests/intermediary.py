"""A gRPC server before a real etcd that hands every message on, and can replace, fail or hold chosen ones.

For what a real server cannot be made to say: an absurd TTL, "not a primary lessor", a reply that is no message. Everything
that no rule is concerned with comes from the real etcd, byte for byte. It also remembers every request, so that a test can
look at what the library really sends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

SERVICES = ("KV", "Lease", "Watch", "Auth", "Cluster", "Maintenance")
WORKERS = 64
WATCH = "/etcdserverpb.Watch/Watch"

M = TypeVar("M", bound=Message)


class Refuse(Exception):
    """Raised by a rule: answer with this status."""

    def __init__(self, code: grpc.StatusCode, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Passing:
    """One request on its way, as a rule sees it: ``forward()`` asks the real etcd, and its reply's bytes come back."""

    method: str
    request: bytes
    forward: Callable[[], bytes]


Act = Callable[[Passing], bytes]


@dataclass(slots=True)
class Rule:
    """What is done to the next requests of a method."""

    method: str
    act: Act
    times: int
    when: Callable[[bytes], bool]
    struck: threading.Event = field(default_factory=threading.Event)
    hits: int = 0


def refuse(code: grpc.StatusCode, text: str = "", *, after: bool = False) -> Act:
    """Answer with a status; ``after`` the real etcd has done what was asked."""

    def act(passing: Passing) -> bytes:
        if after:
            passing.forward()
        raise Refuse(code, text)

    return act


def altered(kind: type[M], change: Callable[[M], object]) -> Act:
    """Change the real reply on its way back."""

    def act(passing: Passing) -> bytes:
        reply = kind.FromString(passing.forward())
        change(reply)
        return reply.SerializeToString()

    return act


def garbage(content: bytes = b"\xff\xff\xff\xff not a message") -> Act:
    """Answer with bytes that are no message."""
    return lambda _: content


class Intermediary:
    """Stand before the etcd at ``target``. A context manager; ``endpoint`` is where clients reach it.

    ``options`` are those of a grpc server.
    """

    def __init__(self, target: str, *, options: Sequence[tuple[str, Any]] = ()) -> None:
        self._channel = grpc.insecure_channel(target, (("grpc.use_local_subchannel_pool", 1),))
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[tuple[str, bytes]] = []
        self._headers: list[tuple[str, dict[str, str | bytes]]] = []
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="intermediary"), options=tuple(options)
        )
        self._server.add_generic_rpc_handlers((_AnyMethod(self),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Intermediary:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._server.stop(0).wait(10)

    # ------------------------------------------------------------ rules

    def on(self, method: str, act: Act, *, times: int = 10**9, when: Callable[[bytes], bool] = lambda _: True) -> Rule:
        """Do this to the next ``times`` requests of ``method`` (as in "LeaseKeepAlive") for which ``when`` is true."""
        rule = Rule(method, act, times, when)
        with self._lock:
            self._rules.append(rule)
        return rule

    def off(self, rule: Rule | None = None) -> None:
        """End one rule, or all."""
        with self._lock:
            self._rules = [] if rule is None else [r for r in self._rules if r is not rule]

    def requests(self, method: str, kind: type[M]) -> list[M]:
        """Every request of a method so far."""
        with self._lock:
            return [kind.FromString(request) for name, request in self._seen if name == method]

    def count(self, method: str) -> int:
        """How many requests of a method there were."""
        with self._lock:
            return sum(name == method for name, _ in self._seen)

    def headers(self, method: str) -> list[dict[str, str | bytes]]:
        """The metadata of every call of a method so far, without what the transport adds."""
        with self._lock:
            return [metadata for name, metadata in self._headers if name == method]

    # ------------------------------------------------------------ within

    def _note(self, method: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._headers.append((method, dict(_passed_on(context))))

    def answer(self, path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer one request: by the first rule that wants it, or by the real etcd."""
        method = path.rpartition("/")[2]
        self._note(method, context)
        try:
            return self._ruled(method, request, lambda: self._forward(path, request, context))
        except Refuse as refused:
            context.abort(refused.code, refused.text)
        except grpc.RpcError as error:
            # What grpc raises is an RpcError that is a Call as well; its stubs do not know that.
            status: Any = error
            context.abort(status.code(), status.details())
        except ValueError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the intermediary is closed")
        raise AssertionError("abort raises")

    def _ruled(self, method: str, request: bytes, forward: Callable[[], bytes]) -> bytes:
        rule = self._rule_for(method, request)
        return forward() if rule is None else rule.act(Passing(method, request, forward))

    def _rule_for(self, method: str, request: bytes) -> Rule | None:
        with self._lock:
            self._seen.append((method, request))
            for rule in self._rules:
                if rule.method == method and rule.times > 0 and rule.when(request):
                    rule.times -= 1
                    rule.hits += 1
                    rule.struck.set()
                    return rule
        return None

    def _forward(self, path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        left_s: float | None = context.time_remaining()  # None without a deadline, whatever the stubs say
        call: Any = self._channel.unary_unary(path)
        reply: bytes = call(request, timeout=min(30.0, max(0.01, left_s or 30.0)), metadata=_passed_on(context))
        return reply

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Carry a watch stream in both directions; rules of "Watch" strike its opening, of "WatchResponse" each reply."""
        self._note("Watch", context)
        method: Any = self._channel.stream_stream(WATCH)
        call: Any = None
        try:
            self._ruled("Watch", b"", lambda: b"")
            call = method(_noted(requests), metadata=_passed_on(context))
            context.add_callback(lambda: (call.cancel(), None)[1])
            for response in call:
                yield self._ruled("WatchResponse", response, partial(_same, response))
        except Refuse as refused:
            if call is not None:
                call.cancel()
            context.abort(refused.code, refused.text)
        except grpc.RpcError as error:
            status: Any = error
            if context.is_active():
                context.abort(status.code(), status.details())
        except ValueError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the intermediary is closed")


class _AnyMethod(grpc.GenericRpcHandler):
    """Serves every method of etcd, as bytes."""

    def __init__(self, intermediary: Intermediary) -> None:
        self._intermediary = intermediary

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        path = details.method
        if path == WATCH:
            return grpc.stream_stream_rpc_method_handler(self._intermediary.stream)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._intermediary.answer(path, request, context)
        )


def _noted(requests: Iterator[bytes]) -> Iterator[bytes]:
    """The client's messages; its going away ends them instead of failing the stream to etcd."""
    try:
        yield from requests
    except Exception:  # noqa: BLE001 - grpc raises a bare Exception when the client has gone
        return


def _same(content: bytes) -> bytes:
    return content


def _passed_on(context: grpc.ServicerContext) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata that is the client's own, not its transport's."""
    theirs = ("user-agent", "te", "content-type")
    pairs = list(context.invocation_metadata())
    return tuple((key, value) for key, value in pairs if not key.startswith(("grpc-", ":")) and key not in theirs)
