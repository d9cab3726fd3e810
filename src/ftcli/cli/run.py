"""One invocation: settings, machine, plugins, environment, the command, its report and its exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from ftcli.cli import logs, output, progress
from ftcli.cli.parse import Parsed
from ftcli.cli.signals import termination_interrupts
from ftcli.cli.spec import CommandSpec
from ftcli.cli.streams import emit
from ftcli.cli.switches import Switches, typed_settings
from ftcli.context import Context
from ftcli.core import room
from ftcli.core.distributed import pulse
from ftcli.core.files.lease_holder import this_rank
from ftcli.core.processes import garbage
from ftcli.core.publishing.ranks import Muted, silent
from ftcli.errors import FtcliError, InterruptedRun, PluginError, UsageError
from ftcli.machine import detect
from ftcli.masking import as_dict
from ftcli.pluginfaults import reason_of
from ftcli.pluginmanager import Plugins
from ftcli.records import Machine, Report, RunStatus
from ftcli.settings import update
from ftcli.sources import Resolved, resolve, within_cores

if TYPE_CHECKING:
    from ftcli.context import Progress
    from ftcli.core.distributed.launch import Plan
    from ftcli.settings import Settings

EXIT_CODES = {"ok": 0, "failed": 1, "interrupted": 3}
REFUSALS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO}
EXITED = "Loaded code must raise an error instead of calling sys.exit: fix or remove the plugin or the model's code."


def _repeats(spec: CommandSpec, environ: Mapping[str, str]) -> bool:
    """Whether this is a further rank of a job whose ranks do one work. Those of torchrun share what computes; Slurm's, which make no process group, the
    preparation of one output: a `train` that srun starts several times is several runs."""
    if environ.get("RANK", "").isdecimal():
        return spec.computes and bool(this_rank()) and environ.get("WORLD_SIZE") != "1"
    return spec.every_rank and bool(this_rank())


def _refused_by_system(error: OSError) -> FtcliError | None:
    """A path that the system refuses, where no command has worded it: a folder that may not be entered, a name that is too long."""
    if error.errno not in REFUSALS or error.filename is None:
        return None
    return FtcliError(f"{os.fsdecode(error.filename)}: {error.strerror}", "Look at the path and at the permissions of its folders.")


class BugError(FtcliError):
    """Anything that is not an `FtcliError`: ours to mend."""

    code = "bug"


class Invocation:
    """What is known of a run as it goes on, so that it can be reported wherever it ends."""

    def __init__(self, spec: CommandSpec, parsed: Parsed) -> None:
        self.spec = spec
        self.parsed = parsed
        self.switches = Switches.of(parsed)
        self.started = time.monotonic()
        repeats = parsed.arguments.get("shard") is None and _repeats(spec, os.environ)  # not where each makes a part of its own
        shown = progress.make(
            quiet=self.switches.quiet, terminal=_is_terminal(sys.stderr) and not repeats
        )  # two bars would draw over each other
        self.progress: Progress = Muted(shown) if repeats else shown
        self.resolved: Resolved | None = None
        self.machine: Machine | None = None
        self.plugins: Plugins | None = None
        self.context: Context | None = None
        self.plan: Plan | None = None
        self.pulse: pulse.Pulse | None = None
        self.ended: int | None = None
        """Exit code of a job whose rank 0 has written the report."""

    def execute(self) -> int:
        """Run the command and write its report; returns the exit code."""
        self.pulse = pulse.begin(os.environ)
        with contextlib.ExitStack() as interruptible:
            interruptible.enter_context(termination_interrupts())
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the report, whatever libraries print
                report, error = self._attempt()
                if self.ended is not None:
                    return self.ended
                problem = self._notify(report)
            if problem is not None and error is None:
                error, report = problem, replace(report, status="failed", error=as_dict(problem))
            code = EXIT_CODES[report.status] if error is None else error.exit_code
            if self.pulse is None:
                interruptible.close()
                self._write(report, error)
                return code
            self.pulse.closing = True  # the launcher may end the ranks that lost one while they report it
            self._write(report, error)
            return self.pulse.end(code, report.error, told=not self.pulse.rank)

    def _attempt(self) -> tuple[Report, FtcliError | None]:
        try:
            with contextlib.closing(self.progress):  # while an exception is on its way: the stage that it ends is not done
                self._prepare()
                assert self.context is not None
                if self.plan is not None:
                    self._launch(self.plan)
                    return self.context.report(self.spec.name, {}), None
                report = self._run()
        except FtcliError as error:
            failure = (
                room.shortage(error) if error.exit_code == 1 else None
            ) or error  # its own hint takes a library or a file to be broken
        except KeyboardInterrupt:
            failure = InterruptedRun(f"ftcli {self._name()} was interrupted", self.spec.again if self.spec.works else "")
        except SystemExit as error:  # of a plugin or a model's own code; its code 0 would say that the command did its work
            failure = FtcliError(f"the command was terminated by its own code: {reason_of(error)}", EXITED)
        except GeneratorExit:
            raise
        except OSError as error:
            failure = _refused_by_system(error) or room.shortage(error) or self._bug(error)
        except BaseException as error:  # noqa: BLE001 - the last net: no traceback reaches a user, nor does a panic in Rust
            failure = room.shortage(error) or self._bug(error)
        else:
            return report, None
        return self._failed(failure), failure

    def _run(self) -> Report:
        """The command itself. What imports transformers has it read its own files once for what they export, or not at all."""
        assert self.context is not None
        if not self.spec.computes:
            return self._command(self.context)
        if self.spec.works:
            room.require_command()
        from ftcli.core.tokenizer.quick_import import scanned_once
        from ftcli.core.tokenizer.without_torch import uncollected

        with scanned_once(self.context.cache_dir):
            if self.spec.ahead:
                importlib.import_module(self.spec.ahead).begin(self.context)
            with uncollected():  # `ftcli train` imports for 10.1 s of CPU so, and for 12.4 otherwise
                importlib.import_module(self.spec.module)
            return self._command(self.context)

    def _command(self, context: Context) -> Report:
        command = importlib.import_module(self.spec.module)
        garbage.imported()
        report: Report = command.run(context, **self._arguments())
        return report

    def _prepare(self) -> None:
        switches = self.switches
        logs.configure(os.environ, quiet=switches.quiet, verbose=switches.verbose)
        profile = switches.profile
        notes: list[str] = []
        if profile == "auto":
            from ftcli.commands.profiles import choose

            chosen = choose(detect())
            profile = chosen.value
            notes.append(f"profile {chosen.value}: {chosen.reason}")
        self.resolved = resolve(typed_settings(self.parsed), switches.config, profile)
        for warning in self.resolved.warnings:
            self.progress.say(f"warning: {warning}")
        settings = self.resolved.settings
        self.machine = detect(settings.dataset.output_dir or settings.train.output_dir)
        self.resolved = within_cores(self.resolved, self.machine)
        settings = self.resolved.settings
        loads = self.spec.loads_plugins
        self.plugins = Plugins(switches.plugins_dir if loads else None, switches.allow if loads else ())
        self.context = Context(self.resolved, self.machine, self.plugins, self.progress, started=self.started)
        self.plan = self._planned(settings, self.machine)
        if self.spec.computes and self.plan is None:
            from ftcli.environment import apply

            self.context.notes += apply(self.plugins, self._named(settings), self.machine, os.environ, self.progress.say)
        for note in notes:
            self.context.note(note)

    def _named(self, settings: Settings) -> Settings:
        """With the model that a command takes as an argument: the hub may have it, or its base."""
        word = self.parsed.arguments.get("model") or self.parsed.arguments.get("adapter")
        return settings if word is None else update(settings, {"model.name_or_path": str(word)})

    def _planned(self, settings: Settings, machine: Machine) -> Plan | None:
        """The job that this process is to start, whose ranks then set up their environment each for itself."""
        if not self.spec.launches:
            return None
        from ftcli.core.distributed import launch

        return launch.plan(settings, machine, os.environ) if launch.wanted(settings, os.environ) else None

    def _launch(self, plan: Plan) -> None:
        """Run the job.

        Raises:
            FtcliError: what it ended with, when no rank has reported it.
        """
        from ftcli.commands import launch

        assert self.context is not None
        garbage.imported()
        self.progress.close()
        ended = launch.run(self.context, plan, (self.spec.name, *self.parsed.typed))
        if not ended.told:
            raise ended.error or FtcliError("the ranks ended without a report", "See their output above.")
        self.ended = ended.code
        if ended.error is not None:
            output.write_error(as_dict(ended.error), sys.stderr)

    def _arguments(self) -> dict[str, Any]:
        arguments = self.parsed.arguments
        if not self.spec.loads_plugins:
            arguments = {**arguments, "plugins_dir": self.switches.plugins_dir, "allow": self.switches.allow}
        return arguments

    def _name(self) -> str:
        arguments = self.parsed.arguments
        return self.spec.named(*map(str, (arguments.get("action"), *(arguments.get("what") or ()))))

    def _failed(self, error: FtcliError) -> Report:
        status: RunStatus = "interrupted" if isinstance(error, InterruptedRun) else "failed"
        name = self._name()  # as where it succeeds
        if self.context is not None:
            return self.context.report(name, {}, status=status, error=error)
        return Report(
            command=name,
            status=status,
            seconds=time.monotonic() - self.started,
            metrics={},
            machine=self.machine,
            settings=self.resolved.origins if self.resolved else {},
            error=as_dict(error),
            notes=self.resolved.warnings if self.resolved else (),
        )

    def _bug(self, error: BaseException) -> FtcliError:
        if self.switches.verbose:
            emit("".join(format_exception(error)), sys.stderr)
        path = logs.keep_traceback(error)
        if self.plugins is not None and (name := self.plugins.blamed(error)):
            return PluginError(
                f"{name} broke: {reason_of(error)}", f"This is no code of ftcli's.{f' The traceback is in {path}.' if path else ''}"
            )
        where = (
            f"The traceback is in {path}; please report it, with the output of ftcli doctor."
            if path
            else "Run it with --verbose to get the traceback, and please report it."
        )
        return BugError(f"this is a bug in ftcli: {type(error).__name__}: {error}", where)

    def _notify(self, report: Report) -> FtcliError | None:
        """Tell the plugins; what one of them raises is its error, named."""
        if self.plugins is None or self.resolved is None:
            return None
        try:
            for _ in self.plugins.each("after_run", command=self.spec.name, settings=self.resolved.settings, report=report):
                pass
        except FtcliError as error:
            return error
        return None

    def _write(self, report: Report, error: FtcliError | None) -> None:
        launched = self.pulse is not None and self.pulse.folder is not None
        if report.error is not None and not (launched and this_rank()):  # the launcher says what only another rank knows
            output.write_error(report.error, sys.stderr)
        if silent(self.progress):  # one report a run, not one a process
            if self.switches.json and self.spec.every_rank:
                output.write_json(report, sys.stdout)
            return
        if self.switches.json:
            output.write_json(report, sys.stdout)
            return
        if error is None or report.checks:
            output.write_human(report, sys.stdout, notes=self.switches.quiet, verbose=self.switches.verbose)
        if self.spec.works and not self.switches.quiet and (error is None or error.exit_code != UsageError.exit_code):
            output.write_status(report, sys.stderr)


def execute(spec: CommandSpec, parsed: Parsed) -> int:
    """Run a parsed command; returns the exit code."""
    return Invocation(spec, parsed).execute()


def _is_terminal(stream: Any) -> bool:
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
