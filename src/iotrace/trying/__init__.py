"""``iotrace try``: carry out a fix without an edit of the program, and prove by runs what it gains."""
