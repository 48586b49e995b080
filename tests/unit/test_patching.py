# ruff: noqa: E501 (a program is a line)
"""A patch changes one value of the user's source, where its place is certain; else a sentence says why."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import tarfile
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from iotrace.errors import IotraceError
from iotrace.patching.data import DataChange
from iotrace.patching.git import apply
from iotrace.patching.loader import MadeLoader
from iotrace.patching.patch import Patch, Setting, make_patch
from iotrace.patching.program import Program

WORKERS = Setting("num_workers", "4")
HAD = {"num_workers": "2", "prefetch_factor": "2", "in_order": "True", "persistent_workers": "False"}


def patched(
    folder: Path,
    program: str | bytes,
    *changes: Setting,
    argv: str = "",
    site: int | str | None = None,
    had: dict[str, str] | None = None,
    builder: str | None = None,
    others: tuple[int, ...] = (),
    data: DataChange | None = None,
    **files: str,
) -> Patch:
    """The patch of train.py, whose loader is made in the line of ``# here``, or else the one of DataLoader."""
    folder.mkdir(exist_ok=True)
    content = program if isinstance(program, bytes) else dedent(program).encode()
    path = folder / "train.py"
    path.write_bytes(content)
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    lines = content.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    marked = [at for at, line in enumerate(lines, 1) if "# here" in line]
    called = [at for at, line in enumerate(lines, 1) if "DataLoader(" in line and "class" not in line]
    command = ["python", "train.py", *argv.split()]
    if data is not None:
        return make_patch(None, Program(command, str(folder)), changes, time.time_ns() + 10**9, data)
    at = site if site is not None else (marked or called)[0]
    made = MadeLoader(
        site=f"{path}:{at}" if isinstance(at, int) else str(folder / at),
        builder=builder,
        settings={**HAD, **(had or {})},
        others=[f"{path}:{line}" for line in others],
    )
    return make_patch(made, Program(command, str(folder)), changes or [WORKERS], time.time_ns() + 10**9)


def after(folder: Path, patch: Patch) -> str:
    """What ``patch -p1`` makes of the program; every file that it changes parses."""
    assert patch.diff is not None, patch.why_not
    done = subprocess.run(
        ["git", "apply", "-p1", "--whitespace=nowarn", "-"],
        input=patch.diff.encode(),
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.stderr, patch.diff)
    data = (folder / "train.py").read_bytes().decode()
    ast.parse(data.removeprefix("\ufeff"))
    return data


CALLS = [
    (
        f"x = DataLoader(\n    data, collate_fn={'long' * 10}, sampler={'s' * 10}\n)\n",
        f"x = DataLoader(\n    data, collate_fn={'long' * 10}, sampler={'s' * 10},\n    num_workers=4\n)\n",
    ),
    (
        "x = DataLoader(data, batch_size=4, num_workers=2)",
        "x = DataLoader(data, batch_size=4, num_workers=4)",
    ),
    ("x = DataLoader(data)", "x = DataLoader(data, num_workers=4)"),
    ("x = DataLoader()", "x = DataLoader(num_workers=4)"),
    ("x = DataLoader(data, 8,)", "x = DataLoader(data, 8, num_workers=4,)"),
    ("x = DataLoader(data, (8))", "x = DataLoader(data, (8), num_workers=4)"),
    ("x = DataLoader(f('(é'), 8, True, None, None, 2)", "x = DataLoader(f('(é'), 8, True, None, None, 4)"),
    (
        "x = torch.utils.data.DataLoader(a, num_workers = 2) ; y = 1",
        "x = torch.utils.data.DataLoader(a, num_workers = 4) ; y = 1",
    ),
    (
        "for b in list(DataLoader(a, num_workers=(2))): pass",
        "for b in list(DataLoader(a, num_workers=(4))): pass",
    ),
    (
        "x = DataLoader(\n    data,\n    batch_size=4,\n)\n",
        "x = DataLoader(\n    data,\n    batch_size=4,\n    num_workers=4,\n)\n",
    ),
    (
        "x = DataLoader(\n    data,\n    batch_size=4\n)\n",
        "x = DataLoader(\n    data,\n    batch_size=4,\n    num_workers=4\n)\n",
    ),
    (
        "x = DataLoader(\n    data,\n    batch_size=4)\n",
        "x = DataLoader(\n    data,\n    batch_size=4,\n    num_workers=4)\n",
    ),
    (
        "x = DataLoader(data,\n               batch_size=4)\n",
        "x = DataLoader(data,\n               batch_size=4,\n               num_workers=4)\n",
    ),
    (
        "x = DataLoader(\n    data,\n    batch_size=4,  # few\n    # and no more\n)\n",
        "x = DataLoader(\n    data,\n    batch_size=4,  # few\n    num_workers=4,\n    # and no more\n)\n",
    ),
    (
        "x = DataLoader(\n\tdata,\n\tbatch_size=4  # few\n)\n",
        "x = DataLoader(\n\tdata,\n\tbatch_size=4,  # few\n\tnum_workers=4\n)\n",
    ),
    (
        "x = DataLoader(\n    data, batch_size=4,\n    collate_fn=lambda b: (\n        b, 1),\n)\n",
        "x = DataLoader(\n    data, batch_size=4,\n    collate_fn=lambda b: (\n        b, 1),\n    num_workers=4,\n)\n",
    ),
    (
        "def f():\n\tif 1:\n\t\tx = DataLoader(d, num_workers=2)\n",
        "def f():\n\tif 1:\n\t\tx = DataLoader(d, num_workers=4)\n",
    ),
    (
        "@cached('é')\ndef f():\n  return DataLoader(d, num_workers=2)\n",
        "@cached('é')\ndef f():\n  return DataLoader(d, num_workers=4)\n",
    ),
    (
        "größe = 'ß'; x = DataLoader(größe, num_workers=2) # ü",
        "größe = 'ß'; x = DataLoader(größe, num_workers=4) # ü",
    ),
    (
        "from t import DataLoader as DL\nx = DL(d, num_workers=2)  # here",
        "from t import DataLoader as DL\nx = DL(d, num_workers=4)  # here",
    ),
    ("x = StatefulDataLoader(d, num_workers=2)", "x = StatefulDataLoader(d, num_workers=4)"),
    ("x = DataLoader(d, **{'shuffle': True})", "x = DataLoader(d, **{'shuffle': True}, num_workers=4)"),
    (
        "x = DataLoader(\n    d,\n    *[],\n    num_workers=2)",
        "x = DataLoader(\n    d,\n    *[],\n    num_workers=4)",
    ),
    ("x = DataLoader(d, num_workers=2)\r\ny = 1\r\n", "x = DataLoader(d, num_workers=4)\r\ny = 1\r\n"),
    (
        "x = DataLoader(\r\n    d,\r\n    shuffle=True,\r\n)\r\n",
        "x = DataLoader(\r\n    d,\r\n    shuffle=True,\r\n    num_workers=4,\r\n)\r\n",
    ),
    ("\ufeffx = DataLoader(d, num_workers=2)\n", "\ufeffx = DataLoader(d, num_workers=4)\n"),
    (
        "'''\x0c one line \u2028 more'''\nx = DataLoader(d, num_workers=2)\n",
        "'''\x0c one line \u2028 more'''\nx = DataLoader(d, num_workers=4)\n",
    ),
]


@pytest.mark.parametrize(("before", "wanted"), CALLS)
def test_the_call_is_changed_and_nothing_else(tmp_path: Path, before: str, wanted: str) -> None:
    had = {} if "2" in before else {"num_workers": "0"}
    patch = patched(tmp_path, before.encode(), had=had)
    assert after(tmp_path, patch) == wanted


ORIGINS = [
    ("workers = 2\nx = DataLoader(d, num_workers=workers)\n", "workers = 4\nx"),
    ("a, workers = 1, 2\nx = DataLoader(d, num_workers=workers)\n", "a, workers = 1, 4\nx"),
    ("workers: int = 2\ndef f():\n    return DataLoader(d, num_workers=workers)\n", "workers: int = 4\n"),
    ("def f(d, n=2):\n    return DataLoader(d, num_workers=n)\nf(1)\n", "def f(d, n=4):"),
    ("def f(d, n=0):\n    return DataLoader(d, num_workers=n)\nf(1, n=2)\n", "f(1, n=4)\n"),
    ("def f(d, *, n: int = 2):\n    return DataLoader(d, num_workers=int(n))\nf(1)\nf(2)\n", "n: int = 4"),
    # Another use of the variable stays as it is.
    (
        "n = 2\nprint(n)\nx = DataLoader(d, num_workers=n)\n",
        "n = 2\nprint(n)\nx = DataLoader(d, num_workers=4)\n",
    ),
    (
        "p.add_argument('-j', '--workers', type=int, default=2)\nargs = p.parse_args()\n"
        "x = DataLoader(d, num_workers=args.workers)\n",
        "type=int, default=4)",
    ),
    (
        "p.add_argument('--num-workers', default=2, help='é')\nargs, _ = p.parse_known_args()\n"
        "def main(args):\n    return DataLoader(d, num_workers=args.num_workers)\nmain(args)\n",
        "default=4, help='é')",
    ),
    (
        "@click.option('--workers', default=2)\ndef main(workers):\n    return DataLoader(d, num_workers=workers)\n",
        "default=4)\ndef main(workers)",
    ),
    (
        "@dataclass\nclass Config:\n    batch: int = 1\n    num_workers: int = 2\ncfg = Config()\n"
        "x = DataLoader(d, num_workers=cfg.num_workers)\n",
        "num_workers: int = 4\ncfg",
    ),
    (
        "@dataclass\nclass Config:\n    num_workers: int = field(default=2)\ndef main(cfg: Config):\n"
        "    x = DataLoader(d, num_workers=cfg.num_workers)\nmain(Config())\n",
        "field(default=4)",
    ),
    (
        "@dataclass\nclass Config:\n    n: int = 0\ncfg = Config(n=2)\nx = DataLoader(d, num_workers=cfg.n)\n",
        "Config(n=4)",
    ),
    ("class C:\n    N = 2\nx = DataLoader(d, num_workers=C().N)\n", "    N = 4\n"),
    (
        "kw = {'num_workers': 2, 'shuffle': True}\nx = DataLoader(d, **kw)\n",
        "{'num_workers': 4, 'shuffle': True}",
    ),
    ("kw = dict(num_workers=2)\nx = DataLoader(d, **kw)\n", "dict(num_workers=4)"),
    ("n = 2\nprint(n)\nkw = {'num_workers': n}\nx = DataLoader(d, **kw)\n", "kw = {'num_workers': 4}"),
    (
        "cfg = {'data': {'num_workers': 2}}\nx = DataLoader(d, num_workers=cfg['data']['num_workers'])\n",
        "{'num_workers': 4}}",
    ),
    ("cfg = {'loader': dict(num_workers=2)}\nx = DataLoader(d, **cfg['loader'])\n", "dict(num_workers=4)"),
    (
        "make = functools.partial(DataLoader, shuffle=True, num_workers=2)\nx = make(d)  # here\n",
        "shuffle=True, num_workers=4)\n",
    ),
    (
        "make = partial(DataLoader, num_workers=2)\nx = make(d)  # here\ny = make(e)\n",
        "num_workers=2)\nx = make(d, num_workers=4)  # here\ny = make(e)\n",
    ),
    (
        "class Mine(DataLoader):\n    def __init__(self, d, n):\n        super().__init__(d, num_workers=n)  # here\n"
        "x = Mine(d, 2)\n",
        "x = Mine(d, 4)\n",
    ),
    ("class Mine(DataLoader):\n    pass\nx = Mine(d, num_workers=2)  # here\n", "x = Mine(d, num_workers=4)"),
    (
        "class Data(L.LightningDataModule):\n    def __init__(self, num_workers: int = 2):\n        super().__init__()\n"
        "        self.num_workers = num_workers\n    def train_dataloader(self):\n"
        "        return DataLoader(self.d, num_workers=self.num_workers)\nData()\n",
        "num_workers: int = 4",
    ),
    (
        "class Data(L.LightningDataModule):\n    def __init__(self, num_workers=1):\n        super().__init__()\n"
        "        self.save_hyperparameters()\n    def train_dataloader(self):\n"
        "        return DataLoader(self.d, num_workers=self.hparams.num_workers)\nData(num_workers=2)\n",
        "Data(num_workers=4)\n",
    ),
    (
        "class Data:\n    def __init__(self, args):\n        self.args = args\n    def loader(self):\n"
        "        return DataLoader(d, num_workers=self.args.workers)\n"
        "p.add_argument('--workers', default=2)\nData(p.parse_args())\n",
        "default=4)",
    ),
]


@pytest.mark.parametrize(("before", "wanted"), ORIGINS)
def test_the_place_that_the_value_comes_from_is_changed(tmp_path: Path, before: str, wanted: str) -> None:
    patch = patched(tmp_path, before)
    assert wanted in after(tmp_path, patch)
    (changed,) = [line for line in (patch.diff or "").splitlines() if line[:1] == "+" and line[:3] != "+++"]
    ((file, line),) = patch.lines
    assert "4" in changed
    assert (tmp_path / "train.py").read_text().splitlines()[line - 1] == changed[1:]
    assert file == str(tmp_path / "train.py")


REFUSED = [
    ("a, b = DataLoader(x, num_workers=2), DataLoader(y, num_workers=2)\n", "2 calls of DataLoader"),
    ("x = make_loader(d)  # here\n", "no call of DataLoader"),
    ("x = DataLoader(d, num_workers=os.cpu_count() // 2)\n", "computed: os.cpu_count() // 2"),
    ("x = DataLoader(d, num_workers=2 if big else 0)\n", "computed"),
    ("x = DataLoader(d, num_workers=3)\n", "train.py:1 says num_workers=3, but the recorded run had 2"),
    ("n = 2\nn = 3\nx = DataLoader(d, num_workers=n)\n", "set in several places of train.py: lines 1, 2"),
    ("n = 1\nn += 1\nx = DataLoader(d, num_workers=n)\n", "set in several places"),
    ("for n in (1, 2):\n    x = DataLoader(d, num_workers=n)\n", "no plain assignment"),
    ("x = [DataLoader(d, num_workers=n) for n in (1, 2)]\n", "no plain assignment"),
    ("x = DataLoader(d, num_workers=int(os.environ.get('N', 2)))\n", "the environment"),
    ("x = DataLoader(*given)\n", "given by \\*"),
    ("x = DataLoader(d, **settings())\n", "computed: settings"),
    (
        "kw = {'num_workers': 2}\nkw['num_workers'] = 2\nx = DataLoader(d, **kw)\n",
        "kw is changed at train.py:2",
    ),
    ("kw = {**others, 'shuffle': True}\nx = DataLoader(d, **kw)\n", "takes keys from elsewhere"),
    ("def f(n=2):\n    return DataLoader(d, num_workers=n)\n", "f is called nowhere"),
    ("def f(n):\n    return DataLoader(d, num_workers=n)\nf(2)\nf(2)\n", "called in 2 places"),
    ("x = DataLoader(d, num_workers=args.workers)\n", "args is set nowhere"),
    (
        "args = p.parse_args()\nx = DataLoader(d, num_workers=args.workers)\n",
        "no options of the program are stored as workers",
    ),
    (
        "p.add_argument('--workers', default=2)\np.set_defaults(workers=2)\nargs = p.parse_args()\n"
        "x = DataLoader(d, num_workers=args.workers)\n",
        "set_defaults",
    ),
    (
        "p.add_argument('--workers', default=2)\nargs = p.parse_args()\nargs.workers = 2\n"
        "x = DataLoader(d, num_workers=args.workers)\n",
        "args.workers is set again at train.py:3",
    ),
    (
        "p.add_argument('--workers', type=int)\nx = DataLoader(d, num_workers=p.parse_args().workers)\n",
        "--workers has no default",
    ),
    ("from torch.utils import n\nx = DataLoader(d, num_workers=n)\n", "no module of the program"),
    ("def f(:\n    x = DataLoader(d, num_workers=2)\n", "cannot be read as Python"),
    (b"# \xff\nx = DataLoader(d, num_workers=2)\n", "cannot be read as Python in UTF-8"),
]


@pytest.mark.parametrize(("before", "why"), REFUSED)
def test_nothing_is_guessed(tmp_path: Path, before: str | bytes, why: str) -> None:
    patch = patched(tmp_path, before)
    assert patch.diff is None
    assert patch.lines == []
    assert why.replace("\\", "") in (patch.why_not or "")


def test_a_place_that_is_not_the_users_source_has_no_patch(tmp_path: Path) -> None:
    patch = patched(tmp_path, "x = 1\n", site="venv/lib/python3.11/site-packages/kit/data.py:3")
    assert "not the program's own source" in (patch.why_not or "")
    packaged = "venv/lib/python3.11/site-packages/anemoi/data.py:3"
    argv = "dataloader.num_workers.training=2 dataloader.num_workers.validation=2"
    patch = patched(tmp_path, "x = 1\n", site=packaged, argv=argv)
    assert (patch.diff, patch.command) == (None, "dataloader.num_workers.training=4")
    assert (
        patched(tmp_path, "x = 1\n", WORKERS, Setting("in_order", False), site=packaged, argv=argv).command
        is None
    )
    assert "lightning makes the loader" in (
        patched(tmp_path, "x = 1\n", site=1, builder="lightning").why_not or ""
    )
    gone = patched(tmp_path, "x = 1\n", site="gone.py:3")
    assert "cannot be read" in (gone.why_not or "")
    nothing = make_patch(None, Program([], str(tmp_path)), [WORKERS], 0)
    assert "no DataLoader" in (nothing.why_not or "")
    threads = patched(tmp_path, "x = DataLoader(d)\n", Setting("threads", "1"))
    assert "set for the command" in (threads.why_not or "")
    assert make_patch(None, Program([], ""), [], 0).why_not


def test_a_file_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = DataLoader(d, num_workers=2)\n")
    made = MadeLoader(site=f"{program}:1", settings=HAD)
    began_ns = program.stat().st_mtime_ns + 1
    assert make_patch(made, Program([], str(tmp_path)), [WORKERS], began_ns).diff
    os.utime(program, ns=(began_ns + 10**9, began_ns + 10**9))
    patch = make_patch(made, Program([], str(tmp_path)), [WORKERS], began_ns)
    assert patch.diff is None
    assert patch.why_not == "train.py was changed after the recorded run began: record it again"


def test_several_settings_and_loaders_are_changed_together(tmp_path: Path) -> None:
    text = "a = DataLoader(d, num_workers=2)\nb = DataLoader(\n    e,\n    num_workers=2,\n)\n"
    changes = [WORKERS, Setting("prefetch", 8), Setting("multiprocessing_context", "spawn")]
    patch = patched(tmp_path, text, *changes, site=1, others=(2,))
    assert after(tmp_path, patch) == (
        "a = DataLoader(d, num_workers=4, prefetch_factor=8, multiprocessing_context='spawn')\n"
        "b = DataLoader(\n    e,\n    num_workers=4,\n    prefetch_factor=8,\n    multiprocessing_context='spawn',\n)\n"
    )
    # One of two that cannot be changed leaves both as they are.
    text = "a = DataLoader(d, num_workers=2)\nb = DataLoader(e, num_workers=n())\n"
    assert patched(tmp_path, text, site=1, others=(2,)).diff is None


def test_without_workers_what_torch_refuses_goes_too(tmp_path: Path) -> None:
    text = "x = DataLoader(d, num_workers=2, prefetch_factor=2, persistent_workers=True, pin_memory=True)\n"
    patch = patched(tmp_path, text, Setting("num_workers", 0))
    assert "num_workers=0, prefetch_factor=None, persistent_workers=False, pin_memory=True" in after(
        tmp_path, patch
    )


def test_the_command_sets_it(tmp_path: Path) -> None:
    text = (
        "p.add_argument('-j', '--workers', default=0)\nargs = p.parse_args()\n"
        "x = DataLoader(d, num_workers=args.workers)\n"
    )
    for argv, typed in (
        ("--workers 2", "--workers 4"),
        ("--workers=2", "--workers=4"),
        ("--work 2", "--work 4"),
        ("-j2", "-j4"),
        ("-j 2", "-j 4"),
    ):
        patch = patched(tmp_path, text, argv=argv)
        assert patch.diff is None
        assert (patch.command or "").replace("-j 4", "-j4") == typed.replace("-j 4", "-j4")
        assert patch.why_not == f"no file has to change: give the command {patch.command}"
    # The rest is in the source.
    patch = patched(tmp_path, text, WORKERS, Setting("prefetch_factor", 8), argv="--workers 2")
    assert patch.command == "--workers 4"
    assert "num_workers=args.workers, prefetch_factor=8)" in after(tmp_path, patch)


YAML = """\
# é settings
data:
  path: /d   # here
  num_workers: 2  # of training
  other: {num_workers: 3}
validation:
  num_workers: 2
text: |
  data:
    num_workers: 9
list:
  - num_workers: 7
"""


@pytest.mark.parametrize(
    "read",
    [
        "cfg = yaml.safe_load(open('conf.yaml'))",
        "with open('conf.yaml') as f:\n    cfg = yaml.load(f, Loader=yaml.Loader)",
        "cfg = yaml.safe_load(Path('conf.yaml').read_text())",
        "cfg = OmegaConf.load('conf.yaml')",
        "p.add_argument('--config', default='conf.yaml')\nargs = p.parse_args()\ncfg = OmegaConf.load(args.config)",
        "cfg = OmegaConf.merge(OmegaConf.load('other.yaml'), OmegaConf.load('conf.yaml'), OmegaConf.from_cli())",
        "base = OmegaConf.load('conf.yaml')\ncfg = OmegaConf.merge(OmegaConf.structured(C), base, OmegaConf.from_dotlist(rest))",
        "def read(path):\n    with open(path) as f:\n        found = yaml.safe_load(f)\n    return found\n\ncfg = EasyDict(read('conf.yaml'))",
    ],
)
def test_the_key_of_a_yaml_file_is_changed(tmp_path: Path, read: str) -> None:
    patch = patched(
        tmp_path, f"{read}\nx = DataLoader(d, num_workers=cfg['data']['num_workers'])\n", conf_yaml=YAML
    )
    after(tmp_path, patch)
    assert (tmp_path / "conf.yaml").read_text() == YAML.replace("num_workers: 2  #", "num_workers: 4  #")
    assert patch.lines == [(str(tmp_path / "conf.yaml"), 4)]


def test_the_yaml_file_that_the_command_names_is_changed(tmp_path: Path) -> None:
    text = (
        "p.add_argument('--config')\nargs = p.parse_args()\ncfg = yaml.safe_load(open(args.config))\n"
        "x = DataLoader(d, pin_memory=cfg['pin'], **cfg['loader'])\n"
    )
    patch = patched(
        tmp_path,
        text,
        WORKERS,
        Setting("pin_memory", "True"),
        argv="--config a.yaml",
        a_yaml="pin: no\nloader:\n  num_workers: '2'\n",
    )
    after(tmp_path, patch)
    assert (tmp_path / "a.yaml").read_text() == "pin: true\nloader:\n  num_workers: 4\n"


@pytest.mark.parametrize(
    "conf",
    [
        "data: {other: {num_workers: 2}}\n",
        "data: {num_workers: 2, list: [1]}\n",
        "data: {num_workers: 2, num_workers: 2}\n",
        "data:\n  num_workers: &n 2\n",
        "a: &a\n  num_workers: 2\ndata:\n  <<: *a\n",
        "- data\n",
        "data:\n  num_workers: 3\n",
    ],
)
def test_a_yaml_file_that_is_no_plain_one_is_not_changed(tmp_path: Path, conf: str) -> None:
    text = (
        "cfg = yaml.safe_load(open('conf.yaml'))\nx = DataLoader(d, num_workers=cfg['data']['num_workers'])\n"
    )
    patch = patched(tmp_path, text, conf_yaml=conf)
    assert patch.diff is None
    assert patch.why_not


def test_values_of_a_mapping_in_one_line_and_get(tmp_path: Path) -> None:
    text = "cfg = yaml.safe_load(open('conf.yaml'))\nx = DataLoader(d, num_workers=cfg.get('data').get('num_workers', 0))\n"
    patch = patched(tmp_path, text, conf_yaml="data: {batch: 8, num_workers: 2 }  # all\n")
    after(tmp_path, patch)
    assert (tmp_path / "conf.yaml").read_text() == "data: {batch: 8, num_workers: 4 }  # all\n"


MERGED = (
    "cfg = OmegaConf.merge(OmegaConf.load('base.yaml'), OmegaConf.load('exp.yaml'), OmegaConf.from_cli())\n"
    "x = DataLoader(d, num_workers=cfg.data.num_workers)\n"
)


def test_configurations_that_are_merged(tmp_path: Path) -> None:
    sets, other = "data:\n  num_workers: 2\n", "name: a\n"
    patch = patched(tmp_path, MERGED, base_yaml=sets, exp_yaml=other)
    assert patch.lines == [(str(tmp_path / "base.yaml"), 2)]
    patch = patched(tmp_path, MERGED, base_yaml=sets, exp_yaml=sets)
    assert patch.lines == [(str(tmp_path / "exp.yaml"), 2)]
    # The command sets it, or is to: the later file may set it in a way that is not read here.
    patch = patched(tmp_path, MERGED, argv="data.num_workers=2", base_yaml=sets, exp_yaml=other)
    assert (patch.diff, patch.command) == (None, "data.num_workers=4")
    patch = patched(tmp_path, MERGED, base_yaml=sets, exp_yaml="data: {num_workers: &n 2}\n")
    assert (patch.diff, patch.command) == (None, "data.num_workers=4")
    without = MERGED.replace(", OmegaConf.from_cli()", "")
    patch = patched(tmp_path, without, base_yaml=sets, exp_yaml="data: {num_workers: &n 2}\n")
    assert patch.why_not == "data.num_workers is not found for certain in base.yaml or exp.yaml"
    for stored in ("cfg.data.num_workers = 2", "cfg['data']['num_workers'] = 2"):
        text = MERGED.replace("x = ", f"{stored}\nx = ")
        assert "is set again at train.py:2" in (patched(tmp_path, text, base_yaml=sets).why_not or "")
    # The first word of the command names the file.
    named = (
        "cli = OmegaConf.from_cli()\ncfg = OmegaConf.merge(OmegaConf.load(cli.config), cli)\n"
        "x = DataLoader(d, num_workers=cfg.data.num_workers)\n"
    )
    patch = patched(tmp_path, named, argv="config=base.yaml", base_yaml=sets)
    assert patch.lines == [(str(tmp_path / "base.yaml"), 2)]


def test_a_configuration_that_a_function_returns_from_two_places_is_not_changed(tmp_path: Path) -> None:
    text = (
        "def read(path):\n    if path:\n        return yaml.safe_load(open('conf.yaml'))\n    return {'data': {}}\n\n"
        "x = DataLoader(d, num_workers=read(1)['data']['num_workers'])\n"
    )
    assert "it is computed" in (patched(tmp_path, text, conf_yaml=YAML).why_not or "")


HYDRA = (
    "@hydra.main(version_base=None, config_path='conf', config_name='config')\ndef main(cfg):\n"
    "    x = DataLoader(d, num_workers=cfg.dataloader.num_workers)\n"
)


def test_hydras_configuration_is_changed_or_overridden(tmp_path: Path) -> None:
    primary = "defaults:\n  - dataloader: small\n  - _self_\nseed: 1\n"
    group = {
        "conf__config_yaml": primary,
        "conf__dataloader__small_yaml": "num_workers: 2\n",
        "conf__dataloader__big_yaml": "num_workers: 2\n",
    }
    patch = patched(tmp_path, HYDRA, **group)
    after(tmp_path, patch)
    assert (tmp_path / "conf/dataloader/small.yaml").read_text() == "num_workers: 4\n"
    patch = patched(tmp_path, HYDRA, argv="dataloader=big", **group)
    assert patch.lines == [(str(tmp_path / "conf/dataloader/big.yaml"), 1)]
    patch = patched(tmp_path, HYDRA, argv="dataloader.num_workers=2", **group)
    assert (patch.diff, patch.command) == (None, "dataloader.num_workers=4")
    # Set in two files, or nowhere that is known: the command overrides it.
    twice = {**group, "conf__config_yaml": primary + "dataloader:\n  num_workers: 2\n"}
    assert patched(tmp_path, HYDRA, **twice).command == "dataloader.num_workers=4"
    assert patched(tmp_path, HYDRA, argv="--config-name=other", **group).command == "dataloader.num_workers=4"
    (tmp_path / "conf/config.yaml").write_text("dataloader:\n  num_workers: 2\n")
    assert patched(tmp_path, HYDRA).lines == [(str(tmp_path / "conf/config.yaml"), 2)]


def test_a_loader_that_hydra_instantiates(tmp_path: Path) -> None:
    text = HYDRA.replace(
        "DataLoader(d, num_workers=cfg.dataloader.num_workers)", "instantiate(cfg.dataloader, dataset=d)"
    )
    config = "dataloader:\n  _target_: torch.utils.data.DataLoader\n  num_workers: 2\n"
    patch = patched(tmp_path, text, site=3, builder="hydra", conf__config_yaml=config)
    assert patch.lines == [(str(tmp_path / "conf/config.yaml"), 3)]
    patch = patched(
        tmp_path, text, Setting("in_order", False), site=3, builder="hydra", conf__config_yaml=config
    )
    assert (patch.diff, patch.command) == (None, "++dataloader.in_order=false")


def test_the_trainers_arguments(tmp_path: Path) -> None:
    text = "args = TrainingArguments('out', dataloader_num_workers=2)\nTrainer(m, args).train()\n"
    patch = patched(tmp_path, text, WORKERS, Setting("prefetch_factor", 4), site=2, builder="transformers")
    assert "('out', dataloader_num_workers=4, dataloader_prefetch_factor=4)" in after(tmp_path, patch)
    assert patched(tmp_path, "run()\n", site=1, builder="transformers").diff is None


def test_modules_of_the_program_are_looked_into(tmp_path: Path) -> None:
    text = "from kit.conf import WORKERS\nimport kit.data\nkit.data.make(d, WORKERS)\n"
    data = "def make(d, n):\n    return DataLoader(d, num_workers=n)\n"
    files = {"kit____init___py": "", "kit__data_py": data, "kit__conf_py": "WORKERS = 2\n"}
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    del files["kit____init___py"]
    patch = patched(tmp_path, text, site="kit/data.py:2", **files)
    # The name is imported elsewhere: the one argument is changed that hands it over.
    assert patch.why_not is None
    assert patch.lines in (
        [(str(folder / "conf.py"), 1)],
        [(str(tmp_path / "train.py"), 3)],
        [(str(folder / "data.py"), 2)],
    )
    after(tmp_path, patch)


def _repository(folder: Path) -> None:
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_it_is_applied_to_a_clean_git_tree_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a folder é"
    patch = patched(folder, "x = DataLoader(d, num_workers=2)\r\ny = 1")
    with pytest.raises(IotraceError, match="not in a git tree"):
        apply(patch)
    _repository(folder)
    patch = patched(folder, "x = DataLoader(d, num_workers=2)\r\ny = 1")
    (folder / "other.py").write_text("")  # untracked: a session lies in the tree, too
    apply(patch)
    assert (folder / "train.py").read_bytes() == b"x = DataLoader(d, num_workers=4)\r\ny = 1"
    with pytest.raises(IotraceError, match="not committed"):
        apply(patch)
    with pytest.raises(IotraceError, match="there is no patch"):
        apply(Patch(why_not="so"))


def test_a_file_that_git_does_not_track_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("a")
    _repository(tmp_path)
    patch = patched(tmp_path, "x = DataLoader(d, num_workers=2)\n")
    with pytest.raises(IotraceError, match="does not track"):
        apply(patch)
    assert "num_workers=2" in (tmp_path / "train.py").read_text()


@pytest.mark.parametrize("name", ["two words", 'quo"te', "tab\there", "ümlaut"])
def test_names_that_a_diff_quotes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    program = folder / "train.py"
    program.write_text("x = DataLoader(d, num_workers=2)\n")
    _repository(tmp_path)
    made = MadeLoader(site=f"{program}:1", settings=HAD)
    apply(make_patch(made, Program([], str(folder)), [WORKERS], time.time_ns() + 10**9))
    assert "num_workers=4" in program.read_text()


def test_workers_get_one_thread_by_a_function_of_their_own(tmp_path: Path) -> None:
    program = """\
        import cv2
        from torch.utils.data import DataLoader

        def other(): pass

        @decorated
        def loaders(data):
            return DataLoader(data, 2), DataLoader(data, 4, worker_init_fn=None)

        if __name__ == "__main__":
            loaders([])
    """
    threads = Setting("threads of cv2", "1")
    patch = patched(tmp_path, program, threads, site="train.py:8")
    assert "2 calls" in (patch.why_not or "") or "no plain call" in (patch.why_not or "")
    program = program.replace("DataLoader(data, 2), ", "")
    new = after(tmp_path, patched(tmp_path, program, threads, WORKERS))
    assert (
        "def start_worker(_: int) -> None:\n    import cv2\n\n    cv2.setNumThreads(0)\n\n\n@decorated" in new
    )
    assert "DataLoader(data, 4, worker_init_fn=start_worker, num_workers=4)" in new


def test_a_start_of_workers_that_the_program_has_is_its_own(tmp_path: Path) -> None:
    program = "from torch.utils.data import DataLoader\nx = DataLoader(d, worker_init_fn=seed)\n"
    patch = patched(tmp_path, program, Setting("threads of torch", "1"))
    assert patch.diff is None
    assert "has a worker_init_fn: torch.set_num_threads(1) belongs into it" in (patch.why_not or "")
    patch = patched(tmp_path / "b", program.replace("seed", "None"), Setting("threads of openblas", "1"))
    assert "threadpoolctl" in (patch.why_not or patch.diff or "")


MOVED = [
    ('DATA = "data"\n', 'DATA = "trial/data"\n'),
    ("DATA = 'data/'\nload(DATA)\n", "DATA = 'trial/data'\nload(DATA)\n"),
    ('train(Path("data"), "out")\n', 'train(Path("trial/data"), "out")\n'),
    ('paths = (Path("data") / "a.h5", 1)\n', 'paths = (Path("trial/data") / "a.h5", 1)\n'),
    ('ROOT = Path(__file__).parent\nDATA = ROOT / "data"\n', 'DATA = ROOT / "trial/data"\n'),
    ('files = Path("./data").resolve().glob("*")\n', 'Path("trial/data").resolve()'),
    ('p.add_argument("--data", type=Path, default=Path("data"))\n', 'default=Path("trial/data"))'),
    ('def load(folder="data"):\n    pass\n', 'folder="trial/data"'),
    (
        'ROOT = os.path.join("..", "run", "data")\nload(f"{ROOT}/a.h5")\n',
        '("..", "run", "trial/data")',
    ),
    ('conf = {"path": "data", "n": 1}\n', '{"path": "trial/data", "n": 1}'),
    ('DATA = "{here}/data"\n', 'DATA = "{here}/trial/data"\n'),
]
KEPT = [
    ("DATA = os.environ['DATA']\n", "neither the program's source nor its command says data as it is"),
    ('DATA = Path(root, "data")\n', "neither"),
    ('A = "data"\nB = "data"\n', "data is named in 2 places: train.py:1, train.py:2"),
    ('DATA = os.environ.get("DATA", "data")\n', "what the program does with its path at train.py:1"),
    ('print("data")\n', "what the program does with"),
    ('if name == "data":\n    pass\n', "what the program does with"),
    ('"data"\n', "what the program does with"),
    ('files = [f"data/{n}.h5" for n in range(4)]\n', "its path is computed at train.py:1"),
    ('p.add_argument("--data", help="data")\n', "what the program does with"),
    ('DATA = Path("data/x").parent\n', "neither"),
    ('NAME = "data"\nload(Path(root) / NAME)\n', "a part of another one at train.py:2"),
    ('NAME, n = "data", 1\nload(f"{root}/{NAME}")\n', "a part of another one at train.py:2"),
    ('p.add_argument("--my-in", default="data")\nload(os.path.join(r, o.my_in))\n', "a part of another"),
    ('def f(where="data"):\n    load(where + ".h5")\n', "a part of another one"),
]


def _moved(folder: Path, program: str, argv: str = "", **files: str) -> Patch:
    run = folder / "run"
    for name in ("data", "trial/data"):
        (run / name).mkdir(parents=True)
    change = DataChange(moved=(str(run / "data"), str(run / "trial/data")))
    return patched(run, program.replace("{here}", str(run)), argv=argv, data=change, **files)


@pytest.mark.parametrize(("before", "wanted"), MOVED)
def test_the_path_of_a_copy_takes_the_place_of_the_datas(tmp_path: Path, before: str, wanted: str) -> None:
    patch = _moved(tmp_path, before)
    assert wanted.replace("{here}", str(tmp_path / "run")) in after(tmp_path / "run", patch)


@pytest.mark.parametrize(("before", "why"), KEPT)
def test_a_path_that_is_not_known_for_certain_stays(tmp_path: Path, before: str, why: str) -> None:
    patch = _moved(tmp_path, before)
    assert (patch.diff, patch.command) == (None, None)
    assert why in (patch.why_not or "")


def test_the_command_or_its_configuration_names_the_data(tmp_path: Path) -> None:
    option = 'p.add_argument("--data", default="data")\n'
    patch = _moved(tmp_path / "a", option, "--data ./data")
    assert (patch.diff, patch.command) == (None, "--data trial/data")
    patch = _moved(tmp_path / "b", option, "--data=data")
    assert patch.command == "--data=trial/data"
    patch = _moved(tmp_path / "c", 'c = load("conf.yaml")\n', conf_yaml="a:\n  path: data  # all\n  n: 2\n")
    assert "-  path: data  # all\n+  path: trial/data  # all\n" in (patch.diff or "")


def test_a_constant_of_another_module_names_the_data(tmp_path: Path) -> None:
    program = 'from where import ROOT\nDATA = ROOT / "data"\n'
    patch = _moved(tmp_path, program, where_py='from pathlib import Path\nROOT = Path(".")\n')
    assert 'DATA = ROOT / "trial/data"' in after(tmp_path / "run", patch)


def test_tables_are_read_by_another_call(tmp_path: Path) -> None:
    tables = DataChange(tables=True)
    program = "import pandas as pd\nt = pd.read_csv(path)\n"
    assert "t = pd.read_parquet(path)\n" in after(tmp_path, patched(tmp_path, program, data=tables))
    for number, (other, why) in enumerate(
        [
            (program.replace("path)", "path, sep=';')"), "more than a path"),
            (program + "u = pd.read_csv(path)\n", "called in 2 places"),
            ("from pandas import read_csv\nt = read_csv(path)\n", "not called as pandas.read_csv"),
            ("x = 1\n", "called in no places"),
        ]
    ):
        assert why in (patched(tmp_path / str(number), other, data=tables).why_not or "")


def test_an_archive_stays_open(tmp_path: Path) -> None:
    content = io.BytesIO(b"abc")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        about = tarfile.TarInfo("a")
        about.size = 3
        archive.addfile(about, content)
    kept = DataChange(kept_open=[str(tmp_path / "a.tar")])
    program = """\
        import tarfile

        PATH = "a.tar"
        if not PATH:
            tarfile.open(PATH, "w").close()


        def read(name):
            with tarfile.open(PATH) as archive:
                return archive, archive.extractfile(name).read()
    """
    new = after(tmp_path, patched(tmp_path, program, data=kept))
    done: dict[str, Any] = {}
    exec(new.replace('"a.tar"', repr(str(tmp_path / "a.tar"))), done)
    (first, content_read), (second, _) = done["read"]("a"), done["read"]("a")
    assert first is second
    assert content_read == b"abc"
    for number, (old, other, why) in enumerate(
        [
            (
                "with tarfile.open(PATH) as archive:",
                "archive = tarfile.open(PATH)\n            if 1:",
                "without with",
            ),
            ("(PATH)", "(name)", "which archive train.py:9 opens"),
            ("(PATH)", "(PATH, 'r:gz')", "more than a path"),
            ("import tarfile", "import another as tarfile", "not that of the library"),
        ]
    ):
        patch = patched(tmp_path / str(number), program.replace(old, other), data=kept)
        assert why in (patch.why_not or ""), patch
