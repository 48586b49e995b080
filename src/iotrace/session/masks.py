"""Mask the values of arguments and variables that are named like secrets, before they are stored.

It is used inside traced processes, hence it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MASK = "***"
_NAMES = ("token", "key", "secret", "password", "passwd", "passphrase", "credential")
_CREDENTIALS = ("authorization", "bearer")
_OF_A_NAME = "_-."
_BLANKS = " \t\n\r"
_QUOTES = "\"'"


def masked(arguments: Sequence[str], same_length: bool = False) -> list[str]:
    """Return a command line with `***` for the values of options, variables and URLs that look secret.

    ``--api-key X``, ``--api-key=X``, ``WANDB_API_KEY=X``, ``logger.token=X``, ``"password": "X"``,
    ``https://user:X@host``, ``Authorization: Bearer X``; also inside one argument, such as a shell's line.
    `same_length` replaces each character of a value.
    """
    shown = []
    value_follows = False
    for argument in arguments:
        if value_follows and not argument.startswith("-"):
            shown.append("*" * len(argument) if same_length else MASK)
            value_follows = False
            continue
        value_follows = argument.startswith("-") and "=" not in argument and is_secret(argument)
        shown.append(masked_text(argument, same_length))
    return shown


def is_secret(name: str) -> bool:
    """Return whether one of the words in `name` ends like the name of a secret: API_KEY, authToken."""
    for word in _words(name.lower()):
        if word.endswith(_NAMES) or word.rstrip("s").endswith(_NAMES[1:]):
            return True
    return False


def masked_text(text: str, same_length: bool = False) -> str:
    """Return `text` with the values masked that follow a secret's name in it."""
    lower = text.lower()
    if not any(name in lower for name in (*_NAMES, *_CREDENTIALS)) and "://" not in text:
        return text
    parts = []
    done = position = 0
    while position < len(text):
        start = _value_start(text, lower, position)
        if start < 0:
            position += 1
            continue
        end = _value_end(text, start)
        if end > start:
            parts += [text[done:start], "*" * (end - start) if same_length else MASK]
            done = end
        position = max(end, position + 1)
    return "".join(parts) + text[done:]


def _value_start(text: str, lower: str, position: int) -> int:
    """Return where a secret's value begins, if its name ends at `position`; else -1."""
    character = text[position]
    if character in "=:":
        if text.startswith("://", position):
            return _user_info(text, position + 3)
        end = position
        while end and text[end - 1] in _QUOTES + "\\":
            end -= 1
        if is_secret(_name_before(text, end)):
            return _skip_to_value(text, position + 1)
    if character in _BLANKS + _QUOTES:
        name = _name_before(text, position)
        start = position - len(name)
        option = name.startswith("-") and (start == 0 or text[start - 1] in _BLANKS + _QUOTES)
        following = _skip_to_value(text, position, "," if character in _QUOTES else "")
        if option and is_secret(name) and not text.startswith("-", following):
            return following
        if name.lower() == "bearer":
            return following
    return -1


def _user_info(text: str, start: int) -> int:
    """Return where the password of the URL's user begins; -1 where it has none."""
    end = start
    while end < len(text) and text[end] not in "/?#" + _BLANKS + _QUOTES:
        end += 1
    at, colon = text.rfind("@", start, end), text.find(":", start, end)
    return colon + 1 if start <= colon < at else -1


def _name_before(text: str, end: int) -> str:
    start = end
    while start and (text[start - 1].isalnum() or text[start - 1] in _OF_A_NAME):
        start -= 1
    return text[start:end]


def _skip_to_value(text: str, position: int, also: str = "") -> int:
    while position < len(text) and text[position] in _BLANKS + _QUOTES + "\\" + also:
        position += 1
    return position


def _value_end(text: str, start: int) -> int:
    """Return where the value ends: at its closing quote, else at a blank; it may hold any other character."""
    quote = text[start - 1] if start and text[start - 1] in _QUOTES else ""
    end = text.find(quote, start) if quote else -1
    if end < 0:
        end = start
        while end < len(text) and text[end] not in _BLANKS:
            end += 1
        while end > start and text[end - 1] == ";":
            end -= 1
    return end


def _words(name: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in name).split()
