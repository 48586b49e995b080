"""The sidecar: a process beside the traced command that samples its processes, the host and the GPUs."""
