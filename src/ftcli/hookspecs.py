"""Every hook: its signature, when it runs, how often, and who wins.

A plugin is any module or object with functions of these names, marked with `@ftcli.hookimpl`. An implementation may leave
out arguments that it does not use. A misspelt hook name is an error at start. Names choose, order does not: two plugins
that register the same name clash, unless one says `replace=True`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from ftcli.markers import hookspec
from ftcli.records import Machine, Report, Step, Tweak

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ftcli.settings import Settings

Factory_contra = TypeVar("Factory_contra", contravariant=True)


class Register(Protocol[Factory_contra]):
    """The callback that a `register_*` hook gets."""

    def __call__(self, name: str, factory: Factory_contra, *, replace: bool = False) -> None:
        """Offer `factory` under `name`. A name that is taken is an error naming both plugins, unless `replace` is True."""
        ...


# -- before anything heavy is imported ---------------------------------------------------------------------------------


@hookspec
def environment(settings: Settings, machine: Machine) -> Mapping[str, Tweak]:
    """Environment variables to set, with reasons.

    Called once in a command that computes (`train`, `tokenize`, `verify` and the like, not `inspect`, `export`, `cache` or `doctor`),
    before torch, transformers, datasets or numpy are imported; `optimize_env.sh` prints its result. All results are merged; two
    plugins that want different values for one variable are an error. A variable that the user set always wins and is reported.
    """
    raise AssertionError


# -- parts, by name ----------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the run. Called at most once a process; the first result that is not None is used.

    The built-in (`AutoTokenizer` on `tokenizer.path`, never with remote code unless the command line says so) is `trylast`.
    """
    raise AssertionError


@hookspec
def register_sources(register: Register[object]) -> None:
    """Offer `ftcli.contracts.SourceFormat` factories. Called once a process, on first use; a source's suffix, or its claim, chooses."""


@hookspec
def register_engines(register: Register[object]) -> None:
    """Offer `ftcli.contracts.Engine` factories. Called once a process, on first use; an engine is used for a tokenizer only after its identity proof."""


@hookspec
def register_tasks(register: Register[object]) -> None:
    """Offer `ftcli.contracts.Task` factories. Called once a process, on first use; `train.mode` chooses."""


@hookspec
def register_packers(register: Register[object]) -> None:
    """Offer `ftcli.contracts.Packer` factories. Called once a process, on first use; `packing.strategy` chooses."""


@hookspec
def register_collators(register: Register[object]) -> None:
    """Offer `ftcli.contracts.CollatorKind` records. Called once a process, on first use; `loader.collator` chooses."""


@hookspec
def register_checks(register: Register[object]) -> None:
    """Offer `ftcli.contracts.CheckKind` records under their ids. Called once a process, on first use; `verify` runs all that are selected."""


@hookspec
def register_executors(register: Register[object]) -> None:
    """Offer `ftcli.contracts.Executor` factories. Called once a process, on first use; `runtime.executor` chooses."""


@hookspec
def register_exporters(register: Register[object]) -> None:
    """Offer `ftcli.contracts_export.Exporter` factories. Called once a process, on first use; the name chooses."""


# -- notifications -----------------------------------------------------------------------------------------------------


@hookspec
def on_step(step: Step) -> None:
    """Called after every logged optimizer step of `train`, on rank 0. All plugins are called; what they raise stops the run, named."""


@hookspec
def after_run(command: str, settings: Settings, report: Report) -> None:
    """Called once after a command, also when it failed or was interrupted. All plugins are called."""
