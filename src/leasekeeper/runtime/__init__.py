"""The runtime: interpreters of plans, the threads, and what they share."""
