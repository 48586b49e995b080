"""A weather forecast on gridded fields in zarr, trained by Lightning: tomorrow's fields from today's.

The fields are made on first use. Surface fields have one time to a chunk, as training reads them. The fields
at height were converted in chunks of 64 times, so that each pair of times decompresses 64 or 128 of them.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
import zarr
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

TIMES, LATITUDES, LONGITUDES = 256, 32, 64
FIELDS = {"surface": (3, 1), "height": (8, 64)}  # variables, times to a chunk
HELD_OUT = 8


def make_data(directory: Path) -> None:
    store = directory / "fields.zarr"
    if store.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    partial = directory / f"fields.{os.getpid()}.partial"
    group = zarr.open_group(partial, mode="w")
    codec = zarr.codecs.GzipCodec(level=6)
    longitude = np.linspace(0, 2 * np.pi, LONGITUDES, dtype=np.float32)
    latitude = np.linspace(-1, 1, LATITUDES, dtype=np.float32)[:, None]
    for name, (variables, times) in FIELDS.items():
        shape = (TIMES, variables, LATITUDES, LONGITUDES)
        phase = np.arange(TIMES, dtype=np.float32)[:, None, None, None] / 12
        wave = np.arange(1, variables + 1, dtype=np.float32)[:, None, None]
        values = np.sin(wave * longitude - phase) * (1 - latitude**2)
        values += generator.normal(scale=0.05, size=shape).astype(np.float32)
        chunks = (times, *shape[1:])
        group.create_array(name, shape=shape, chunks=chunks, dtype="f4", compressors=codec)[:] = values
    try:
        partial.rename(store)
    except OSError:  # another process was first
        if not store.exists():
            raise


class Pairs(Dataset):
    """The fields of a time and those of the next one."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "fields.zarr"
        self.arrays: list[zarr.Array] = []

    def __len__(self) -> int:
        return TIMES - 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.arrays:  # opened where it is read: a worker must not inherit zarr's threads
            group = zarr.open_group(self.store, mode="r")
            self.arrays = [group[name] for name in FIELDS]
        pair = np.concatenate([array[index : index + 2] for array in self.arrays], axis=1)
        return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])


class Forecast(pl.LightningModule):
    """Encoder, processor, decoder; predicts the change of the fields."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        variables = sum(count for count, _ in FIELDS.values())
        self.encoder = nn.Conv2d(variables, width, 4, stride=4)
        self.processor = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.decoder = nn.ConvTranspose2d(width, variables, 4, stride=4)
        self.trained = 0

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(fields)
        for layer in self.processor:
            hidden = hidden + nn.functional.gelu(layer(hidden))
        return fields + self.decoder(hidden)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        now, then = batch
        loss = nn.functional.mse_loss(self(now), then)
        self.trained += 1
        if self.trained % 10 == 0:
            print(f"step {self.trained} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> None:
        now, then = batch
        self.log("loss", nn.functional.mse_loss(self(now), then), batch_size=len(now))

    def on_validation_epoch_end(self) -> None:
        print(f"validation loss {float(self.trainer.callback_metrics['loss']):.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/weather"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    make_data(options.data)
    pl.seed_everything(0, verbose=False)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    # Lightning counts the machine's cores and recommends more workers.
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    pairs = Pairs(options.data)
    times = np.random.default_rng(0).integers(0, len(pairs) - HELD_OUT, options.steps * options.batch_size)
    context = options.start_method if options.workers else None

    def loader(indices: list[int]) -> DataLoader:
        return DataLoader(
            Subset(pairs, indices),
            options.batch_size,
            num_workers=options.workers,
            multiprocessing_context=context,
        )

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    model, started = Forecast(), time.perf_counter()
    held_out = list(range(len(pairs) - HELD_OUT, len(pairs)))
    trainer.fit(model, loader(times.tolist()), loader(held_out))
    print(f"trained {model.trained} steps in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
