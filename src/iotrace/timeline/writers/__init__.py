"""Writers of timelines: Chrome JSON and native Perfetto."""
