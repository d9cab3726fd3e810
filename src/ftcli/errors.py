"""Errors shown to users.

    FtcliError                  message + hint; exit code 1
    ├── UsageError              the command line is wrong; exit code 2
    │   └── SettingsError       a setting's value, key or origin is wrong
    ├── PluginError             a plugin cannot be loaded, clashes or misbehaves
    ├── DataError               a source, file or row cannot be used
    ├── TokenizerError          the tokenizer folder cannot be loaded or used
    ├── EngineError             an engine failed or differs from the reference
    ├── WorkerDied              a worker process ended before its work was done
    ├── StoreError              a prepared directory is missing, damaged or has another fingerprint
    ├── PublishError            the result cannot be written (disk full, permissions, another process holds it)
    ├── ModelError              the model or its configuration cannot be used
    ├── TrainError              a run cannot continue or is unhealthy
    ├── MissingExtraError       an optional package is needed; the hint is the exact install command
    ├── LimitError              the system grants no further process, thread or memory
    ├── RankError               one of several processes of a run stalled or died; resumable; exit code 4
    └── InterruptedRun          stopped by a signal, resumable; exit code 3

Everything that a user can cause is an `FtcliError`; any other exception that reaches the command line is a bug in ftcli and keeps its traceback.
"""

from __future__ import annotations


class FtcliWarning(UserWarning):
    """Something a user should change, found where no report is available."""


class FtcliError(Exception):
    """An error shown to users.

    Args:
        message: what is wrong, where (file:line, row, key and origin), and the value.
        hint: what to do about it, one sentence; empty if the message already says it.
    """

    code = "error"
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message  # also where whoever passed it on has added to it

    def __reduce__(self) -> tuple[type[FtcliError], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class UsageError(FtcliError):
    code = "usage"
    exit_code = 2


class SettingsError(UsageError):
    code = "settings"


class PluginError(FtcliError):
    code = "plugin"


class DataError(FtcliError):
    code = "data"


class TokenizerError(FtcliError):
    code = "tokenizer"


class EngineError(FtcliError):
    code = "engine"


class WorkerDied(FtcliError):  # noqa: N818 - the process died, the error only says so
    code = "worker"


class StoreError(FtcliError):
    code = "store"


class PublishError(FtcliError):
    code = "publish"


class ModelError(FtcliError):
    code = "model"


class TrainError(FtcliError):
    code = "train"


class MissingExtraError(FtcliError):
    code = "missing-extra"


class LimitError(FtcliError):
    code = "limit"


class RankError(FtcliError):
    code = "rank"
    exit_code = 4


class InterruptedRun(FtcliError):  # noqa: N818 - not a failure: the run can be resumed
    code = "interrupted"
    exit_code = 3


def adding(extra: str) -> str:
    """The hint that installs an extra: pip completes the installed ftcli, from a wheel or a checkout, and does not replace it."""
    return f"Run: pip install 'ftcli[{extra}]'"
