"""The protocol, pure: every conversation with etcd, the state machine and the heartbeat's arithmetic.

Nothing here does I/O, reads a clock, starts a thread or draws a random number; what it needs of those is handed in.
"""
