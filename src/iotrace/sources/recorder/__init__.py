"""The files of our recorder of POSIX calls."""
