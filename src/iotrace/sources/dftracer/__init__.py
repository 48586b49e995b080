"""dftracer's logs."""
