"""Runs in simulated worlds: replicas are workers on a few runs, whose steps call an outside world that keeps a ledger of its own.

What they run is what production runs: opening, steps, checkpoints, phases, halts, an operator's word, finishing, down to each
plan and each conduct. A driver beside those for threads and asyncio carries the conducts out in virtual time.
"""
