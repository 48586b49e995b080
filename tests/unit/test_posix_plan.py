"""Which paths are traced, in which spellings, and how settings travel into a process."""

from __future__ import annotations

import os
import string
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from iotrace.errors import LaunchError
from iotrace.launch import posix
from iotrace.launch.posix import everything_but, spellings
from iotrace.session import names
from tests.support.texts import any_text

SYSTEM = (
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "run",
    "sbin",
    "snap",
    "sys",
)
SYSTEM += ("usr",)


def matched(path: str, prefixes: list[str]) -> bool:
    """How dftracer decides, slowly: one prefix after the other, byte by byte."""
    return any(os.fsencode(path).startswith(os.fsencode(prefix)) for prefix in prefixes)


def below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def make(directory: Path, *files: str) -> Path:
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return directory


# --- everything_but ---


@pytest.mark.parametrize("name", SYSTEM)
def test_the_systems_directories_are_never_matched(name: str) -> None:
    prefixes = everything_but([])
    assert not matched(f"/{name}", prefixes)
    assert not matched(f"/{name}/a/file", prefixes)


@pytest.mark.parametrize("path", ["data/a.h5", "./data", "../data", "_x", "-x", "~x", "@x", "+x", "7", "Z"])
def test_relative_paths_are_matched(path: str) -> None:
    assert matched(path, everything_but([]))


@pytest.mark.parametrize(
    "name", ["été.h5", "(copy).h5", " blank.h5", "#1.h5", "[x].h5", "データ", "$x", "%x"]
)
def test_relative_paths_with_a_rare_first_character_are_matched(name: str) -> None:
    assert matched(name, everything_but([]))


def test_absolute_paths_elsewhere_are_matched(tmp_path: Path) -> None:
    prefixes = everything_but(["/opt/conda"])
    assert matched("/var/data/a.h5", prefixes)
    assert matched("/mnt/data/a.h5", prefixes)
    assert matched(str(tmp_path / "a.h5"), prefixes)


def test_the_agents_own_spelling_is_never_matched(tmp_path: Path) -> None:
    prefixes = everything_but([str(tmp_path / "venv")])
    assert not matched(f"/{tmp_path}/session/records.jsonl", prefixes)


def test_an_excluded_directory_is_left_out_and_its_neighbours_are_not(tmp_path: Path) -> None:
    make(tmp_path, "venv/lib/x.py", "volumes/a.h5", "vocabulary.txt", "data/a.h5", "venv-data/a.h5")
    prefixes = everything_but([str(tmp_path / "venv")])
    base = str(tmp_path)
    assert not matched(f"{base}/venv", prefixes)
    assert not matched(f"{base}/venv/lib/x.py", prefixes)
    assert not matched(f"{base}/venv/new", prefixes)
    assert matched(f"{base}/volumes/a.h5", prefixes)
    assert matched(f"{base}/volumes/new", prefixes)
    assert matched(f"{base}/vocabulary.txt", prefixes)
    assert matched(f"{base}/data/a.h5", prefixes)
    assert matched(f"{base}/venv-data/a.h5", prefixes)
    assert matched(f"{base}/checkpoints-to-come/1.pt", prefixes)


def test_a_neighbour_whose_name_begins_an_excluded_one_stays_traced(tmp_path: Path) -> None:
    make(tmp_path, "venv/lib/x.py", "ve/a.h5")
    prefixes = everything_but([str(tmp_path / "venv")])
    assert matched(f"{tmp_path}/ve/a.h5", prefixes)
    assert not matched(f"{tmp_path}/venv/lib/x.py", prefixes)


def test_thousands_of_neighbours_leave_room_for_the_command(tmp_path: Path) -> None:
    make(tmp_path, "user-1234/venv/x", *(f"user-{number}/a.h5" for number in range(2500)))
    prefixes = everything_but([str(tmp_path / "user-1234" / "venv")])
    assert len(":".join(prefixes)) < 96 << 10
    assert not matched(f"{tmp_path}/user-1234/venv/x", prefixes)
    # Of names that begin as the excluded one does, too, and of later ones.
    for name in ("user-1", "user-123", "user-1235", "user-2499", "user-9999"):
        assert matched(f"{tmp_path}/{name}/a.h5", prefixes), name
    assert matched(f"{tmp_path}/user-1234/data/a.h5", prefixes)


def test_what_is_too_long_to_be_left_out_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "venv/x")
    one = everything_but([str(tmp_path / "venv")])
    monkeypatch.setattr(posix, "_MOST_BYTES", len(os.fsencode(":".join(one))) + 1)
    assert everything_but([str(tmp_path / "venv"), "/opt/conda"]) == one
    assert not matched(f"{tmp_path}/venv/x", one)
    monkeypatch.setattr(posix, "_MOST_BYTES", 0)
    assert everything_but([str(tmp_path / "venv")]) == everything_but([])


def test_an_excluded_directory_inside_another_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path, "venv/inner/x", "venv/other/x", "venv/it/x")
    prefixes = everything_but([str(tmp_path / "venv"), str(tmp_path / "venv" / "inner")])
    assert not matched(f"{tmp_path}/venv/other/x", prefixes)
    assert not matched(f"{tmp_path}/venv/it/x", prefixes)
    assert not matched(f"{tmp_path}/venv/inner/x", prefixes)


def test_an_excluded_directory_inside_the_system_opens_nothing_there() -> None:
    prefixes = everything_but(["/usr/local/venv"])
    assert not matched("/usr/local/venv/x", prefixes)
    assert not matched("/usr/share/x", prefixes)
    assert not matched("/usr/local/data", prefixes)


def test_both_spellings_of_a_linked_directory_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "real/lib/x.py", "read/a.h5", "list/a.h5")
    (tmp_path / "link").symlink_to("real")
    prefixes = everything_but([str(tmp_path / "link")])
    assert not matched(f"{tmp_path}/link/lib/x.py", prefixes)
    assert not matched(f"{tmp_path}/real/lib/x.py", prefixes)
    assert matched(f"{tmp_path}/read/a.h5", prefixes)
    assert matched(f"{tmp_path}/list/a.h5", prefixes)


def test_an_excluded_directory_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    prefixes = everything_but([str(tmp_path / "no" / "venv")])
    assert not matched(f"{tmp_path}/no/venv/x", prefixes)
    assert matched(f"{tmp_path}/other", prefixes)


def test_no_prefix_has_a_colon_which_would_split_it(tmp_path: Path) -> None:
    make(tmp_path, "venv/x", "v:1/a.h5", "volumes/a.h5")
    prefixes = everything_but([str(tmp_path / "venv")])
    assert not any(":" in prefix for prefix in prefixes)
    assert "" not in prefixes
    assert matched(f"{tmp_path}/volumes/a.h5", prefixes)


def test_a_link_in_circles_beside_an_excluded_directory_is_no_error(tmp_path: Path) -> None:
    make(tmp_path, "venv/x", "volumes/a.h5")
    (tmp_path / "vicious").symlink_to("vicious")
    prefixes = everything_but([str(tmp_path / "venv")])
    assert matched(f"{tmp_path}/volumes/a.h5", prefixes)
    assert not matched(f"{tmp_path}/venv/x", prefixes)


PORTABLE = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=6)


@given(parts=st.lists(PORTABLE, min_size=1, max_size=4))
def test_every_portable_relative_path_is_matched(parts: list[str]) -> None:
    assert matched("/".join(parts), everything_but(["/opt/conda"]))


@given(system=st.sampled_from(SYSTEM), parts=st.lists(PORTABLE, max_size=4))
def test_nothing_below_the_system_is_matched(system: str, parts: list[str]) -> None:
    assert not matched("/" + "/".join([system, *parts]), everything_but(["/opt/conda"]))


# Names that begin each other, and each others' first letters, are what prefixes get wrong.
DIRECTORY = st.lists(
    st.sampled_from(["v", "ve", "venv", "venv2", "w", "wv", "d.d", "V"]), min_size=1, max_size=3
)
TREE = st.sets(DIRECTORY.map("/".join), min_size=1, max_size=8)


@contextmanager
def tree(directories: set[str]) -> Iterator[str]:
    """The directories with a file ``f`` in each; yields their resolved base."""
    with tempfile.TemporaryDirectory() as temporary:
        base = os.path.realpath(temporary)
        for directory in directories:
            make(Path(base), f"{directory}/f")
        yield base


@settings(max_examples=60, deadline=None)
@given(directories=TREE, data=st.data())
def test_a_tree_is_matched_but_for_what_is_excluded(directories: set[str], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(directories)), min_size=1, max_size=3))
    with tree(directories) as base:
        excluded = [f"{base}/{directory}" for directory in chosen]
        prefixes = everything_but(excluded)
        for parent, _, files in os.walk(base):
            left_out = any(below(parent, directory) for directory in excluded)
            for file in files:
                assert matched(f"{parent}/{file}", prefixes) is not left_out
            assert matched(f"{parent}/Q-invented", prefixes) is not left_out


# --- spellings ---


def test_a_path_is_listed_as_given_absolute_and_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "real/a.h5")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    found = spellings(["./link"])
    assert set(found) == {"./link", "link", f"{tmp_path}/link", f"{tmp_path.resolve()}/real"}


def test_a_path_with_one_spelling_is_listed_once(tmp_path: Path) -> None:
    path = str(tmp_path.resolve() / "data")
    assert spellings([path, path]) == [path]


def test_all_paths_are_listed_in_their_order() -> None:
    found = spellings(["/nowhere/b", "/nowhere/a"])
    assert found == ["/nowhere/b", "/nowhere/a"]


def test_a_final_slash_does_not_hide_the_directory_itself() -> None:
    assert matched("/nowhere/data", spellings(["/nowhere/data/"]))


@pytest.mark.parametrize("here", [".", "./"])
def test_the_working_directory_covers_relative_paths(here: str) -> None:
    prefixes = spellings([here])
    assert matched("data/a.h5", prefixes)
    assert matched(os.path.abspath("data/a.h5"), prefixes)


# --- python_directories ---


def make_installation(root: Path, version: str = "3.11") -> Path:
    """A directory that looks like an installed Python; returns its interpreter."""
    make(root, f"bin/python{version}", f"lib/python{version}/os.py")
    (root / "bin" / "python3").symlink_to(f"python{version}")
    return root / "bin" / "python3"


def make_venv(root: Path, base: Path, home: Path) -> Path:
    """A directory that looks like a venv of `base`, whose file names `home`; returns its interpreter."""
    make(root, "bin/activate", "lib/python3.11/site-packages/x.py")
    (root / "bin" / "python").symlink_to(base)
    (root / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.11.7\n")
    return root / "bin" / "python"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def test_an_interpreter_gives_its_installation(directory: Path) -> None:
    program = make_installation(directory / "base")
    assert posix.python_directories(str(program)) == [str(directory / "base")]


def test_a_venv_gives_itself_and_its_base(directory: Path) -> None:
    base = make_installation(directory / "base")
    program = make_venv(directory / "venv", base, base.parent)
    assert set(posix.python_directories(str(program))) == {str(directory / "venv"), str(directory / "base")}


def test_a_venv_of_copies_gives_its_base_by_its_file(directory: Path) -> None:
    base = make_installation(directory / "base")
    program = make_venv(directory / "venv", base, base.parent)
    program.unlink()
    program.touch()
    assert set(posix.python_directories(str(program))) == {str(directory / "venv"), str(directory / "base")}


def test_a_base_named_by_a_link_is_given_as_python_spells_it(directory: Path) -> None:
    base = make_installation(directory / "python-3.11.7")
    (directory / "python").symlink_to("python-3.11.7")
    program = make_venv(directory / "venv", base, directory / "python" / "bin")
    assert set(posix.python_directories(str(program))) >= {
        str(directory / "venv"),
        str(directory / "python-3.11.7"),
        str(directory / "python"),
    }


def test_a_script_gives_its_interpreters_installation(directory: Path) -> None:
    base = make_installation(directory / "base")
    interpreter = make_venv(directory / "venv", base, base.parent)
    script = directory / "tools" / "train"
    make(directory, "tools/train")
    script.write_text(f"#!{interpreter} -u\nprint()\n")
    assert set(posix.python_directories(str(script))) == {str(directory / "venv"), str(directory / "base")}


@pytest.mark.parametrize(
    "content", [b"", b"#!", b"#!   \n", b"\x7fELF\0\0", b"#!\xff\xfe\n", b"#!/no/such\n"]
)
def test_a_program_without_a_python_gives_nothing(directory: Path, content: bytes) -> None:
    program = directory / "tools" / "program"
    make(directory, "tools/program")
    program.write_bytes(content)
    assert posix.python_directories(str(program)) == []


@pytest.mark.parametrize("program", ["/no/such/program", "/", "/usr/bin/env", "/bin/sh"])
def test_the_system_and_what_does_not_exist_give_nothing(program: str) -> None:
    assert posix.python_directories(program) == []


def test_a_damaged_venv_file_is_no_error(directory: Path) -> None:
    base = make_installation(directory / "base")
    program = make_venv(directory / "venv", base, base.parent)
    (directory / "venv" / "pyvenv.cfg").write_bytes(b"home = \xff\xfe\nno equals sign\n")
    assert str(directory / "venv") in posix.python_directories(str(program))


# --- environment and plan ---


SESSION = Path("/session/posix")
BY_DFTRACER = posix.PosixCapture(names.DFTRACER, ("/lib/dftracer.so", "/lib/guard.so"), {"DFTRACER_X": "1"})
SKIP_A = {names.POSIX_SKIP_VARIABLE: "/a", names.POSIX_ONLY_VARIABLE: ""}
BY_US = posix.PosixCapture(names.RECORDER, ("/lib/recorder.so",), SKIP_A)


def test_our_libraries_come_before_what_was_preloaded() -> None:
    before = {"LD_PRELOAD": "libfaketime.so:libc.so"}
    variables = posix.environment(BY_DFTRACER, SESSION, before)
    assert variables["LD_PRELOAD"] == "/lib/dftracer.so:/lib/guard.so:libfaketime.so:libc.so"
    assert variables["DFTRACER_X"] == "1"
    assert variables["DFTRACER_LOG_FILE"] == "/session/posix/io"
    assert "DFTRACER_BIND_SIGNALS" not in variables
    assert (
        posix.environment(BY_US, SESSION, before)["LD_PRELOAD"] == "/lib/recorder.so:libfaketime.so:libc.so"
    )


def test_nothing_preloaded_before_leaves_no_empty_entry() -> None:
    assert posix.environment(BY_US, SESSION, {})["LD_PRELOAD"] == "/lib/recorder.so"


def test_the_recorder_is_told_where_to_write_and_what_is_not_the_programs() -> None:
    variables = posix.environment(BY_US, SESSION, {}, [Path("/session/processes")])
    assert variables[names.POSIX_VARIABLE] == "/session/posix"
    assert variables[names.POSIX_SKIP_VARIABLE] == "/a:/session/posix:/session/processes"


def test_options_of_sanitizers_are_added_to_the_users() -> None:
    before = {"ASAN_OPTIONS": "verify_asan_link_order=1:a=1"}
    for capture in (BY_US, BY_DFTRACER):
        variables = posix.environment(capture, SESSION, before)
        assert variables["ASAN_OPTIONS"] == "verify_asan_link_order=1:a=1:verify_asan_link_order=0"


@pytest.fixture
def with_dftracer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which dftracer is built."""
    monkeypatch.setattr(posix.platform, "system", lambda: "Linux")
    monkeypatch.setattr(posix.platform, "machine", lambda: "x86_64")


def test_a_missing_library_is_told_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, with_dftracer: None
) -> None:
    monkeypatch.setattr(posix.importlib.util, "find_spec", lambda name: None)
    capture = posix.plan("python", [], names.DFTRACER)
    assert capture.why_not == "dftracer is not installed"
    assert "pip install dftracer" in capture.remedy
    assert capture.preloads == ()


def test_without_its_guard_dftracer_is_not_preloaded(
    monkeypatch: pytest.MonkeyPatch, with_dftracer: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(posix, "_find_dftracer", lambda: ("/lib/dftracer.so", "", ""))
    monkeypatch.setattr(posix, "_PACKAGE", tmp_path)
    capture = posix.plan("python", [], names.DFTRACER)
    assert "was not compiled" in capture.why_not
    assert "C compiler" in capture.remedy
    (tmp_path / "_posix_guard.so").touch()
    assert posix.plan("python", [], names.DFTRACER).preloads == (
        "/lib/dftracer.so",
        f"{tmp_path}/_posix_guard.so",
    )


def test_another_machine_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix.platform, "machine", lambda: "riscv64")
    capture = posix.plan("python", [], names.DFTRACER)
    assert "riscv64" in capture.why_not
    assert capture.remedy


def test_without_the_recorder_it_is_said_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(posix, "_PACKAGE", tmp_path)
    monkeypatch.setattr(posix.platform, "system", lambda: "Linux")
    monkeypatch.setattr(posix.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert "was not compiled" in posix.plan("python", []).why_not
    monkeypatch.setattr(posix.platform, "libc_ver", lambda: ("", ""))
    assert "needs Linux with glibc" in posix.plan("python", []).why_not
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "_posix_recorder.so").touch()
    monkeypatch.setattr(posix, "_PACKAGE", tmp_path / "a b")
    assert "a blank or a colon" in posix.plan("python", []).why_not


# --- the session's settings ---

VALUE = any_text(max_size=20) | st.text("%3B25;=", max_size=12)


@given(st.dictionaries(st.text(string.ascii_lowercase + "_", min_size=1), VALUE, max_size=5))
def test_settings_come_back_as_they_were(values: dict[str, str]) -> None:
    assert names.decode_settings(names.encode_settings(values)) == values


@given(VALUE)
def test_a_value_never_splits_the_settings(value: str) -> None:
    text = names.encode_settings({"first": value, "second": "2"})
    assert text.count(";") == 1
    assert names.decode_settings(text) == {"first": value, "second": "2"}


@given(any_text())
def test_any_text_can_be_decoded(text: str) -> None:
    decoded = names.decode_settings(text)
    assert len(decoded) <= text.count(";") + 1


def test_pieces_without_a_value_are_ignored() -> None:
    assert names.decode_settings("") == {}
    assert names.decode_settings("junk;a=1;;b=;more") == {"a": "1", "b": ""}


def test_the_word_off_alone_traces_nothing() -> None:
    switched_off, other = (posix.plan("python", only).why_not for only in (["off"], ["./off"]))
    assert switched_off == "switched off by --io off"
    assert other == posix.plan("python", []).why_not != switched_off


def test_the_recorder_takes_paths_as_they_are_and_resolved(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "_PACKAGE", directory)
    make(directory, "_posix_recorder.so", "real/a.h5")
    (directory / "link").symlink_to("real")
    monkeypatch.chdir(directory)
    variables = posix.plan("python", ["link"]).variables
    assert variables[names.POSIX_ONLY_VARIABLE] == f"{directory}/link:{directory}/real"
    assert variables[names.POSIX_SKIP_VARIABLE] == ""
    skipped = posix.plan("python", []).variables[names.POSIX_SKIP_VARIABLE].split(":")
    assert {"/proc", "/usr", str(directory)} <= set(skipped)
    with pytest.raises(LaunchError, match="colon"):
        posix.plan("python", ["a:b"])
