"""Chrome trace JSON, of any layout and in any state."""
