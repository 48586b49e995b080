"""Programs whose first fix `iotrace try` carries out, and measures against what was told."""
