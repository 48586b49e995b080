"""What processes and host did: CPU, memory, I/O, and the cost of tracing."""
