"""What the server counted: how many calls of each kind it has answered."""

from __future__ import annotations

import re
import urllib.request

__all__ = ["calls", "leases"]

LINE = re.compile(r'grpc_server_started_total\{.*?grpc_method="(\w+)".*?\} (\S+)')


def calls(endpoint: str) -> dict[str, float]:
    """Calls begun so far, by method, from etcd's own metrics."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        return {method: float(count) for method, count in LINE.findall(answer.read().decode())}


def leases(endpoint: str) -> int:
    """How many leases there are."""
    request = urllib.request.Request(f"http://{endpoint}/v3/lease/leases", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: bytes = answer.read()
        return found.count(b'"ID"')
