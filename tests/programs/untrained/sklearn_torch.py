"""scikit-learn's partial_fit on the batches of a DataLoader."""

import time

import clock
from sklearn.linear_model import SGDRegressor
from torch.utils.data import DataLoader
from toy import Items

KNOWN = {"steps": 60, "cause": "transform", "needs": ["sklearn"]}

model = SGDRegressor(random_state=0)
for batch in clock.steps(DataLoader(Items(240, ms=3), batch_size=4)):
    values = batch.numpy() / 240
    model.partial_fit(values, values[:, 0])
    time.sleep(0.008)
