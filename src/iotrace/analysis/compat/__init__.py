"""The figures of other tools, computed as they compute them."""
