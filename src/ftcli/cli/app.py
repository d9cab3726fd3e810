"""The Typer commands. Options are built when a command is used or helps, so that `ftcli --help` builds none."""

# ruff: noqa: ARG002 - the signatures are Typer's

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from ftcli.cli.catalog import COMMANDS
from ftcli.cli.spec import CommandSpec, Own
from ftcli.cli.streams import detach, emit

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

    from ftcli.cli.options import Option

PROGRAM = "ftcli"
SHELLS = ("bash", "zsh", "fish")
CONTEXT = {"max_content_width": 100, "help_option_names": ["--help", "-h"]}
HELP = "Prepares data for fine-tuning, checks before a run starts that it can learn, trains, and measures where the time went."
ROOT_OPTIONS = (
    ("--version", "Show the version."),
    ("--install-completion [SHELL]", "Install completion for bash, zsh or fish."),
    ("--show-completion [SHELL]", "Print the completion script."),
    ("--help, -h", "Show this help."),
)
EXIT_CODES = "Exit codes: 0 ok, 1 a check or a run failed, 2 usage or settings, 3 interrupted and resumable, 4 a rank stalled or died."

Execute = Callable[[CommandSpec, Any], int]


class Command(TyperCommand):
    """One command: its own parser and help, from the settings' fields."""

    def __init__(self, spec: CommandSpec, execute: Execute) -> None:
        super().__init__(spec.name, help=spec.text, rich_markup_mode=None, context_settings=CONTEXT)
        self.spec = spec
        self._execute = execute
        self._typed: list[str] = []

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        slots = [_slot(own) for own in self.spec.own if not own.flags]
        return ["[OPTIONS]", *slots, *(["[SOURCE]..."] if self.spec.sources else [])]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        self._typed = list(args)
        if not ctx.resilient_parsing:
            from ftcli.cli.parse import parse

            ctx.params = {"parsed": parse(self.spec, args)}
            if ctx.params["parsed"].has("help"):
                emit(ctx.get_help() + "\n", sys.stdout)
                ctx.exit()
        return []

    def invoke(self, ctx: Context) -> int:
        return self._execute(self.spec, ctx.params["parsed"])

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        from ftcli.cli.options import options_of

        positional = [(own.name.upper(), _choices(own.help, own.choices)) for own in self.spec.own if not own.flags]
        if self.spec.sources:
            positional.append(("SOURCE", "Files, globs, directories or hub ids to read; SPLIT=PATH sets the split. The same as --dataset."))
        if positional:
            with formatter.section("Arguments"):
                formatter.write_dl(positional)
        groups: dict[str, list[Option]] = {}
        for option in options_of(self.spec):
            groups.setdefault(option.group, []).append(option)
        for group, options in groups.items():
            shown = [option.record() for option in options if not option.hidden]
            if shown:
                with formatter.section(group):
                    formatter.write_dl(shown)
        hidden = sum(option.hidden for option in options_of(self.spec))
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options exist; `ftcli settings --all` lists every setting.")

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        formatter.write("\nExamples:\n" + "".join(f"  {example}\n" for example in self.spec.examples))

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        from ftcli.cli.complete import complete

        return complete(self.spec, self._typed, incomplete)


class Root(TyperGroup):
    """`ftcli`: knows its commands by name and one line each."""

    def __init__(self, execute: Execute) -> None:
        super().__init__(name=PROGRAM, help=HELP, rich_markup_mode=None, context_settings=CONTEXT, subcommand_metavar="COMMAND ...")
        self._execute = execute

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        return Command(COMMANDS[cmd_name], self._execute) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        if not ctx.resilient_parsing and (not args or args[0].startswith("-")):
            _root_option(ctx, args)
            ctx.exit()
        return ctx.args

    def invoke(self, ctx: Context) -> int:
        name, command, args = self.resolve_command(ctx, ctx.args)
        assert command is not None
        with command.make_context(name, args, parent=ctx) as inner:
            return command.invoke(inner)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing:
            from ftcli.errors import UsageError

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = f"Did you mean {near[0]}?" if near else "See: ftcli --help"
            raise UsageError(f"ftcli has no command {args[0]!r}", meant)
        return args[0], command, args[1:]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(spec.name, spec.summary) for spec in COMMANDS.values()])
        with formatter.section("Options"):
            formatter.write_dl(ROOT_OPTIONS)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(f"Help for a command: ftcli COMMAND --help. {EXIT_CODES}")

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        from typer._click.shell_completion import CompletionItem

        options = [(names.split(",")[0].split()[0], text) for names, text in ROOT_OPTIONS] if incomplete.startswith("-") else []
        offers = [*((spec.name, spec.summary) for spec in COMMANDS.values()), *options]
        return [CompletionItem(name, help=text) for name, text in offers if name.startswith(incomplete)]


def _root_option(ctx: Context, args: list[str]) -> None:
    """Answer what stands before any command: nothing, --help, --version or completion."""
    flag, _, attached = (args[0] if args else "--help").partition("=")
    shell = attached or (args[1] if len(args) > 1 else "")
    if flag in {"--help", "-h"}:
        emit(ctx.get_help() + "\n", sys.stdout)
    elif flag == "--version":
        from ftcli import __version__

        emit(f"{PROGRAM} {__version__}\n", sys.stdout)
    elif flag in {"--install-completion", "--show-completion"}:
        _completion(ctx, flag, shell)
    else:
        from ftcli.errors import UsageError

        near = difflib.get_close_matches(flag, ["--help", "--version", "--install-completion", "--show-completion"], n=1, cutoff=0.75)
        hint = f"Did you mean {near[0]}?" if near else "Options of a command go after its name: ftcli COMMAND --option"
        raise UsageError(f"ftcli has no option {flag}", hint)


def _completion(ctx: Context, flag: str, shell: str) -> None:
    from typer.completion import install_callback, show_callback

    from ftcli.errors import PublishError, UsageError

    shell = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name, not a file
    if shell not in SHELLS:
        raise UsageError(
            f"completion is available for {', '.join(SHELLS)}, not {shell or 'an unknown shell'!r}", f"Name one: ftcli {flag} bash"
        )
    callback = install_callback if flag == "--install-completion" else show_callback
    try:
        callback(ctx, ctx.command, shell)  # type: ignore[arg-type]  # both ignore the parameter
    except OSError as error:
        detach(sys.stdout)
        where = error.filename or "stdout"
        raise PublishError(
            f"completion cannot be written to {where}: {error.strerror}", "Free space there, or make it writable."
        ) from error


def _slot(own: Own) -> str:
    name = own.name.upper() if own.required else f"[{own.name.upper()}]"
    return f"{name}..." if own.kind in {"words", "paths"} else name


def _choices(text: str, choices: tuple[str, ...]) -> str:
    return f"{text} [{'|'.join(choices)}]" if choices else text
