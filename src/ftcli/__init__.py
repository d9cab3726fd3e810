"""ftcli prepares, verifies, trains and measures Hugging Face fine-tuning runs.

Plugin authors import `hookimpl` from here, the hook signatures from `ftcli.hookspecs`, the records from `ftcli.records`
and the errors from `ftcli.errors`.
"""

from importlib.metadata import PackageNotFoundError, version

from ftcli.markers import hookimpl, hookspec

try:
    __version__ = version("ftcli")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__", "hookimpl", "hookspec"]
