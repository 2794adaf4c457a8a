"""A deterministic simulator: replicas with leasekeeper's own plans and heartbeat, on a model etcd, in virtual time."""

from __future__ import annotations
