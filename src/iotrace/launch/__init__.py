"""The launcher's side: the command's environment, the child process and its signals."""
