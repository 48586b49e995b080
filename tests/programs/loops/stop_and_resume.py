"""Training stops early in an epoch; a new loader, model and optimizer resume there and skip what was seen."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform"}


def fit(state: dict, last: int) -> None:
    """Train from step `state` to `last`; an epoch has 25 batches, validation follows each epoch."""
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if state:
        model.load_state_dict(state["model"])
    while state.get("step", 0) < last:
        done = state.get("step", 0) % 25
        skipping = clock.steps(loader_of(100), step=False)
        for number, batch in enumerate(skipping):
            if number < done:
                continue
            clock.begin()
            optimizer.zero_grad()
            loss = model(batch).mean()
            compute(6)
            loss.backward()
            optimizer.step()
            state["step"] = state.get("step", 0) + 1
            if state["step"] == last:
                break
        state["model"] = model.state_dict()
        with clock.evaluation(), torch.no_grad():
            print(state["step"], len([model(batch) for batch in loader_of(20)]))


def loader_of(count: int) -> DataLoader:
    return DataLoader(Items(count, ms=3), batch_size=4)


state = {}
fit(state, 33)
fit(state, 60)
