"""The checks of `iotrace doctor`, a subject a module."""
