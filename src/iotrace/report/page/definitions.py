"""The words of a page, explained on it; docs/definitions.md has the whole of each."""

from __future__ import annotations

WORDS = {
    "step": "From one delivery of a batch that is trained on to the next, without evaluation in between.",
    "measured steps": "Those that figures are made of: not the first, not those that await a worker's "
    "first batch, not those that a profiler slowed.",
    "data wait": "The time in a step in which the training loop stood still for its next batch. Its "
    "causes sum to it.",
    "rest of the step": "The step without its data wait: forward, backward, optimizer, all else.",
    "fetch": "Making a batch, in a worker or in the loop: from taking its index to having it prepared.",
    "ready": "The batch lay prepared, and the loop had not asked for it yet. Where batches lie ready, "
    "the loader is fast enough.",
    "ready queue": "How many batches lay ready at each moment. At 0 the loop waits for what is being made.",
    "at most ... faster": "A bound: all of the wait that the fix is about is gone. Gains of several fixes "
    "do not add up.",
    "trust": "How far the figures can be relied on: ok, caution or bad, by noise, other programs, losses "
    "and the cost of tracing.",
    "came last in": "Of all matched collectives, the share in which this rank arrived last.",
    "waits for other ranks": "Waiting inside collectives for ranks that come later.",
    "p95": "Of a hundred steps, five are longer.",
}
SWEEP = {
    "point": "One combination of the settings that the sweep compares.",
    "95 %": "With other runs as noisy as these, the figure would lie in this interval 95 times of 100.",
    "model": "The steps/s that were predicted from the point with the fewest workers.",
    "ceiling": "Training on batches from memory: no loader can be faster.",
    "memory": "Peak of all processes of the run.",
    "yours": "As the program has it without the sweep.",
    "best": "What the sweep advises.",
    "busy": "Other programs took CPUs: the times are not the command's own.",
}
TUNE = {
    **{word: SWEEP[word] for word in ("95 %", "ceiling", "busy")},
    "predicted": "What the model of the batches expected before the setting's first run, in times as fast as "
    "yours. Without a figure: the model had seen too little, or does not know the setting.",
    "measured": "What its runs gave, in times as fast as yours.",
    "missed by": "How far the prediction lay above (+) or below (-) what was measured.",
    "runs": "How often it was run; the best and yours in turns.",
    "yours": "The program as it is.",
    "best": "The simplest setting that is as fast as the fastest.",
}
