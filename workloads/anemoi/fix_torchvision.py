"""Make PyPI's torchvision importable beside a torch for the CPU alone.

timm, which anemoi-training needs, imports it. PyPI's wheel is built for CUDA: its library does not load, and
its Python then asks for operators that nobody has defined. They are defined here, first. Done twice it does
nothing.
"""

import importlib.util
import pathlib

found = importlib.util.find_spec("torchvision")
path = pathlib.Path(found.submodule_search_locations[0]) / "_meta_registrations.py"
text = path.read_text()
signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
if "CPU-FIX" not in text:
    for operator in ("nms", "qnms"):
        mark = f'@torch.library.register_fake("torchvision::{operator}")'
        define = f'torch.library.define("torchvision::{operator}", "{signature}")  # CPU-FIX'
        text = text.replace(mark, f"{define}\n{mark}")
    path.write_text(text)
    print("patched", path)
