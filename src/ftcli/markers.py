"""The two pluggy markers, apart from everything else so that a plugin imports nothing heavy."""

import pluggy

PROJECT = "ftcli"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
