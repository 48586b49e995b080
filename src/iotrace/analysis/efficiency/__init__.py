"""How well a device is used: floating-point operations against its peak, launches, what the first steps pay."""
