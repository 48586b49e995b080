"""Traces of torch.profiler (Kineto), as columns."""
