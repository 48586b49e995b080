"""What holds for the whole job: its verdict, why, the fixes with their gain, how far to trust it."""
