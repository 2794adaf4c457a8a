"""Durable runs: steps whose intent, outcome and receipt are recorded in etcd under a lease's fence."""
