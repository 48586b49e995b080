"""transformers' Trainer: evaluation after every twentieth step, accumulation over two batches."""

import os

os.environ["USE_TF"] = "0"
import clock
from datasets import Dataset
from hf_toy import Model, collate
from transformers import Trainer, TrainingArguments

# Training and evaluation: each a DataLoader, and accelerate's loader around it.
KNOWN = {"steps": 40, "cause": "collate", "loaders": 4, "needs": ["transformers", "datasets"]}


class Asks:
    """Times the asks of one step: the first batch begins it."""

    def __init__(self, iterator):
        self.iterator, self.first = iterator, True

    def __next__(self):
        batch = clock.next_(self.iterator, step=self.first)
        self.first = False
        return batch


class Timed(Trainer):
    def get_batch_samples(self, epoch_iterator, *arguments):
        return super().get_batch_samples(Asks(epoch_iterator), *arguments)

    def evaluate(self, *arguments, **options):
        with clock.evaluation():
            return super().evaluate(*arguments, **options)


data = Dataset.from_dict({"x": [[float(row)] * 16 for row in range(320)], "labels": [0.0] * 320})
arguments = TrainingArguments(
    "out",
    max_steps=40,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=20,
    save_strategy="no",
    logging_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
    log_level="error",
)
trainer = Timed(
    Model(), arguments, train_dataset=data, eval_dataset=data.select(range(16)), data_collator=collate
)
trainer.remove_callback(
    next(one for one in trainer.callback_handler.callbacks if "Printer" in type(one).__name__)
)
print("global step", trainer.train().global_step)
