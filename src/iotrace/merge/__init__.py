"""Many profilers' files to one timeline, streaming: memory does not grow with the input."""
