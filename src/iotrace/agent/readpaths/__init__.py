"""Read paths: the library calls inside which files are read and decoded.

Each library is hooked once the program has imported it, never before. One module per family of libraries,
imported with the first library of it; its ``HOOKS`` say what to do with each module.
"""
