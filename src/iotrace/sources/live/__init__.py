"""A session while its command runs: what its files grew by since the last look, and its newest part."""
