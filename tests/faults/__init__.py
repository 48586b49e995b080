"""The fault matrix: a real program, a fault, and the same outcome under ``iotrace run`` as without it.

A row is a test under :func:`tests.faults.rows.row`, which states the fault, what is kept, what is lost. Its
``trial`` (:mod:`tests.faults.harness`) runs the program bare and traced and compares the two::

    @row("SIGTERM with a handler", kept="the handler runs, its exit code", lost="nothing")
    def test_sigterm_handled(trial: Trial) -> None:
        pair = trial.both(PROGRAM, act=lambda running: running.when("ready").kill(signal.SIGTERM))
        pair.assert_same()
        pair.assert_nothing_lost()

``tools/test --faults`` runs all rows; the default suite runs those with ``default=True``.
``python -m tests.faults`` writes the table of docs/reliability.md.
"""
