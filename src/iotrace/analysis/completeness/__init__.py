"""What a session does not hold, and what it lost."""
