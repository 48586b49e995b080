"""The session directory: the only thing between capture and reports.

Nothing is imported here: `iotrace.session.names` is used inside traced processes.
"""
