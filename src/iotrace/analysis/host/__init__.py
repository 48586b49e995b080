"""What processes, host and devices did: CPU, memory, what runs out, and the cost of tracing."""
