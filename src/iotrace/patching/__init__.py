"""From a change that was tried to a patch of the user's own source; nothing is guessed."""
