"""``python -m iotrace``."""

from iotrace.cli import main

if __name__ == "__main__":
    main()
