"""What was read and written: by file, group and mount; chunks, row groups, maps; what the kernel counted."""
