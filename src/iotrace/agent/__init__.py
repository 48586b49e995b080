"""What runs inside the user's processes. A guest: standard library only, guarded, undoable, measured."""
