"""Other clients, each in a process and virtual environment of its own (they cannot be imported together)."""
