"""A guided search for the loader's best settings; it shares schedule, runner and figures with sweeps."""
