"""Perfetto's pages on a timeline: what they look at first, and the server that hands it over."""
