"""How well a device is used: operations against its peak, launches, what the first steps pay."""
