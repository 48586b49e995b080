"""What the accelerator and the host threads did, from traces of torch.profiler."""
