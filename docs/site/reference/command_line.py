"""The page of the command line: every command with its arguments, options and defaults."""

import re
from enum import StrEnum
from typing import Any

import typer
from docs.site.pages import cell, table

from transparity_conformance.cli import app

INTRODUCTION = """# The command line

`transparity COMMAND --help` prints the same. Commands that read a port run it in a separate process.
"""

EXIT_CODES = {
    0: "`agrees`; for other commands than `check`, success",
    1: "`diverges`",
    2: "wrong usage or input; or the port could not be built, or crashed",
    3: "`inconclusive`: too little was compared to decide",
}
"""The meaning of each exit code. For several models, the command returns the worst code; the order is 2, 1, 3, 0."""

OPTION = re.compile(r"(?<![\w`-])--[a-z][\w-]*")


def page() -> str:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    codes = table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])
    last = f"## Exit codes\n\n{codes}\n\nFor several models, the worst code is returned. There are no other codes.\n"
    return "\n".join([INTRODUCTION, *(_section(name, command) for name, command in commands.items()), last])


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    words = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    usage = " ".join(["transparity", name, *words, *(["[OPTIONS]"] if options else [])])
    rows = [(f"`{_argument(each)}`", _meaning(each)) for each in arguments]
    rows += [(_flags(each), _meaning(each)) for each in options]
    listed = table(("argument or option", "meaning"), rows) if rows else ""
    return f"## `{name}` {{#{name}}}\n\n{' '.join((command.help or '').split())}\n\n`{usage}`\n\n{listed}\n"


def _argument(argument: Any) -> str:
    return argument.metavar or argument.name.upper()


def _flags(option: Any) -> str:
    names = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_value(option)}"


def _value(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if option.metavar is None and isinstance(kind, type) and issubclass(kind, StrEnum):
        return " or ".join(f"`{choice.value}`" for choice in kind)
    return f"`{cell(option.metavar or option.name.upper())}`"


def _meaning(parameter: Any) -> str:
    """Return a parameter's help as Markdown, in which options are code; add the default if the help lacks it."""
    text = OPTION.sub(r"`\g<0>`", cell(parameter.help or ""))
    default = getattr(parameter.default, "value", parameter.default)
    is_told = parameter.param_type_name == "argument" or parameter.is_flag or default in (None, []) or "Default" in text
    return text if is_told else f"{text} Default: `{cell(str(default))}`."
