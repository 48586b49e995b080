"""torchdata's StatefulDataLoader with two workers, whose state is taken in the middle."""

import clock
from torchdata.stateful_dataloader import StatefulDataLoader
from toy import Items, train

KNOWN = {"steps": 40, "cause": "transform", "needs": ["torchdata"]}

loader = StatefulDataLoader(Items(160, ms=20), batch_size=4, num_workers=2)
for number, batch in enumerate(clock.steps(loader), 1):
    train(batch)
    if number == 30:
        state = loader.state_dict()
