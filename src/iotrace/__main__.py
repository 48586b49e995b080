"""``python -m iotrace``."""

from iotrace_command import main

if __name__ == "__main__":
    main()
