"""Clocks of a session, and times brought from one to another."""
