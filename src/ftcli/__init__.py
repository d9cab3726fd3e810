"""ftcli prepares, verifies, trains and measures Hugging Face fine-tuning runs.

Plugin authors import `hookimpl` from here, the hook signatures from `ftcli.hookspecs`, the records from `ftcli.records`
and the errors from `ftcli.errors`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftcli.markers import hookimpl, hookspec

    __version__: str

__all__ = ["__version__", "hookimpl", "hookspec"]


def __getattr__(name: str) -> Any:
    """The version and the markers when somebody asks for them: what they import would hold up every process by 40 ms."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            found: Any = version("ftcli")
        except PackageNotFoundError:  # a source tree that was never installed
            found = "0+unknown"
    elif name in __all__:
        from ftcli import markers

        found = getattr(markers, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
