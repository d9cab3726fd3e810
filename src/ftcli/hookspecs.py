"""Every hook: its signature, when it runs, how often, and who wins.

A plugin is any module or object with functions of these names, marked with `@ftcli.hookimpl`. An implementation may omit
arguments that it does not use. A misspelt hook name is an error at startup. Parts are chosen by name, never by order: two
plugins that register the same name clash, unless one passes `replace=True`.
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
    """The callback that a `register_*` hook receives."""

    def __call__(self, name: str, factory: Factory_contra, *, replace: bool = False) -> None:
        """Register `factory` under `name`. A name already taken is an error that names both plugins, unless `replace` is True."""
        ...


# -- before anything heavy is imported ---------------------------------------------------------------------------------


@hookspec
def environment(settings: Settings, machine: Machine) -> Mapping[str, Tweak]:
    """Environment variables to set, with reasons.

    Called once per command that computes (`train`, `tokenize`, `verify` and the like, not `inspect`, `export`, `cache` or `doctor`),
    before torch, transformers, datasets or numpy are imported; `optimize_env.sh` prints its result. All results are merged; two
    plugins that set one variable to different values are an error. A variable set by the user always wins and is reported.
    """
    raise AssertionError


# -- parts, by name ----------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the run. Called at most once per process; the first result that is not None is used.

    The built-in implementation (`AutoTokenizer` on `tokenizer.path`, with remote code only if the command line allows it) is `trylast`.
    """
    raise AssertionError


@hookspec
def register_sources(register: Register[object]) -> None:
    """Register `ftcli.contracts.SourceFormat` factories. Called once per process, on first use; chosen by a source's suffix or by `claims`."""


@hookspec
def register_engines(register: Register[object]) -> None:
    """Register `ftcli.contracts.Engine` factories. Called once per process, on first use; an engine is used for a tokenizer only after its identity proof."""


@hookspec
def register_tasks(register: Register[object]) -> None:
    """Register `ftcli.contracts.Task` factories. Called once per process, on first use; chosen by `train.mode`."""


@hookspec
def register_packers(register: Register[object]) -> None:
    """Register `ftcli.contracts.Packer` factories. Called once per process, on first use; chosen by `packing.strategy`."""


@hookspec
def register_collators(register: Register[object]) -> None:
    """Register `ftcli.contracts.CollatorKind` records. Called once per process, on first use; chosen by `loader.collator`."""


@hookspec
def register_checks(register: Register[object]) -> None:
    """Register `ftcli.contracts.CheckKind` records under their ids. Called once per process, on first use; `verify` runs all selected checks."""


@hookspec
def register_executors(register: Register[object]) -> None:
    """Register `ftcli.contracts.Executor` factories. Called once per process, on first use; chosen by `runtime.executor`."""


@hookspec
def register_exporters(register: Register[object]) -> None:
    """Register `ftcli.contracts_export.Exporter` factories. Called once per process, on first use; chosen by name."""


# -- notifications -----------------------------------------------------------------------------------------------------


@hookspec
def on_step(step: Step) -> None:
    """Called after every logged optimizer step of `train`, on rank 0. All plugins are called; an exception stops the run and names the plugin."""


@hookspec
def after_run(command: str, settings: Settings, report: Report) -> None:
    """Called once after a command, also if it failed or was interrupted. All plugins are called."""
