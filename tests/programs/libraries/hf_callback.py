"""transformers' Trainer with iotrace's callback: alone it makes a session, under the launcher nothing."""

import os

os.environ["USE_TF"] = "0"
import clock
from datasets import Dataset
from hf_toy import Model, collate
from transformers import Trainer, TrainingArguments

import iotrace
from iotrace.transformers import IotraceCallback

# A DataLoader, and accelerate's loader around it.
KNOWN = {"steps": 30, "cause": "collate", "loaders": 2, "needs": ["transformers", "datasets"]}


class Asks:
    def __init__(self, iterator):
        self.iterator = iterator

    def __next__(self):
        return clock.next_(self.iterator)


class Timed(Trainer):
    def get_batch_samples(self, epoch_iterator, *arguments):
        return super().get_batch_samples(Asks(epoch_iterator), *arguments)


data = Dataset.from_dict({"x": [[float(row)] * 16 for row in range(120)], "labels": [0.0] * 120})
arguments = TrainingArguments(
    "out",
    max_steps=30,
    per_device_train_batch_size=4,
    save_strategy="no",
    logging_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
    log_level="error",
)
callback = IotraceCallback("callback-session", report=False)
trainer = Timed(Model(), arguments, train_dataset=data, data_collator=collate, callbacks=[callback])
trainer.remove_callback(
    next(one for one in trainer.callback_handler.callbacks if "Printer" in type(one).__name__)
)
print("global step", trainer.train().global_step)
if os.path.exists("callback-session"):
    report = iotrace.load("callback-session")
    assert report.session.complete
    assert report.ranks[0].steps.begun == 30, report.ranks[0].steps
    assert report.verdict.cause == "collate", report.verdict
else:
    assert "IOTRACE_AGENT" in os.environ
