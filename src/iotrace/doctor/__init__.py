"""What `iotrace run` will capture here and what not: one check a function, each guarded and timed."""
