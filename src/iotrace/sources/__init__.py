"""One reader per recorded format; each yields plain columns with the clock already undone."""
