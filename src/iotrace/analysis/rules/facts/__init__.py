"""What rules rest on: figures of a loader, a rank and a device, and examples of them."""
