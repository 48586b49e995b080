"""A small GPT trained on a memory-mapped file of tokens, as in Megatron: one .bin, and an index of documents.

The tokens are made on first use. Each sample strings short documents together that lie anywhere in the file,
so it touches dozens of places. No system call reads them: the kernel does, page by page, when they are first
touched. With ``--cold`` the file is dropped from the page cache first, and the touch waits for the disk.
"""

import argparse
import mmap
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKENS, VOCABULARY, DOCUMENT, LENGTH = 1 << 26, 512, 8, 128


def make_data(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    partial = directory / f"tokens.{os.getpid()}.partial"
    if not (directory / "tokens.npy").exists():
        # Where each document begins, and where the last one ends.
        sizes = generator.integers(DOCUMENT // 2, 3 * DOCUMENT // 2, TOKENS // DOCUMENT // 64)
        places = generator.integers(0, TOKENS - 2 * DOCUMENT, len(sizes))
        with partial.open("wb") as file:
            np.save(file, np.stack([places, sizes], axis=1))
        partial.rename(directory / "tokens.npy")
    if not (directory / "tokens.bin").exists():
        # A walk with small steps: the next token can be guessed from the last one.
        walk = np.cumsum(generator.integers(-2, 3, TOKENS, dtype=np.int8), dtype=np.int32)
        with partial.open("wb") as file:
            (walk % VOCABULARY).astype(np.uint16).tofile(file)
            os.fsync(file.fileno())  # what is not on the disk cannot be dropped from the cache
        partial.rename(directory / "tokens.bin")


class Tokens(Dataset):
    """Samples of documents drawn at random, until they are long enough."""

    def __init__(self, directory: Path, samples: int) -> None:
        self.directory = directory
        self.samples = samples
        self.index = np.load(directory / "tokens.npy")
        self.tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.tokens is None:  # mapped where it is read: a map is not worth sending to a worker
            self.tokens = np.memmap(self.directory / "tokens.bin", np.uint16, mode="r")
            self.tokens._mmap.madvise(mmap.MADV_RANDOM)  # reading ahead would fetch what nobody asks for
        generator = np.random.default_rng(number)
        pieces: list[np.ndarray] = []
        while sum(map(len, pieces)) <= LENGTH:
            place, size = self.index[generator.integers(len(self.index))]
            pieces.append(self.tokens[place : place + size])
        return torch.from_numpy(np.concatenate(pieces)[: LENGTH + 1].astype(np.int64))


class GPT(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(len(places), device=tokens.device)
        hidden = self.tokens(tokens) + self.places(places)
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/tokens"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    parser.add_argument("--cold", action="store_true", help="drop the tokens from the page cache first")
    options = parser.parse_args()

    make_data(options.data)
    if options.cold:
        with (options.data / "tokens.bin").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    context = options.start_method if options.workers else None
    loader = DataLoader(
        Tokens(options.data, options.steps * options.batch_size),
        options.batch_size,
        num_workers=options.workers,
        multiprocessing_context=context,
    )
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    started, steps = time.perf_counter(), 0
    for batch in loader:
        tokens = batch.to(device)
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 10 == 0:
            print(f"step {steps} loss {loss.item():.4f}")
    print(f"trained {steps} steps in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
