"""Packs of a plugin, looked at before anything is written: every token of every document once, and no row too long."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftcli.contracts import Packs
from ftcli.core.ragged import Ints, to_offsets
from ftcli.errors import PluginError
from ftcli.pluginfaults import named

HINT = "ftcli.contracts.Packs says what a packer returns; docs/plugins.md has a small one."


def pack(packer: Any, lengths: Ints, max_length: int, owner: str | None) -> Packs:
    """Ask a packer.

    Args:
        owner: the plugin it is of; None for ftcli's own, whose packs are taken as they are.

    Raises:
        PluginError: it breaks, or its packs would lose or double tokens, or are too long.
    """
    with named(f"packer {packer.name}", owner, HINT):
        packs: Packs = packer.pack(lengths, max_length)
    fault = None if owner is None else _fault(packs, lengths, max_length)
    if fault:
        raise PluginError(f"the packer {packer.name} of plugin {owner!r} {fault}", HINT)
    return packs


def _fault(packs: Any, lengths: Ints, max_length: int) -> str | None:
    if not isinstance(packs, Packs):
        return f"returned {type(packs).__name__}, not Packs"
    arrays = {name: getattr(packs, name) for name in ("document", "start", "length", "pack_offsets")}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            return f"returned a {name} that is not an integer array"
    document, start, length, offsets = arrays.values()
    if not len(document) == len(start) == len(length):
        return f"returned {len(document)} documents, {len(start)} starts and {len(length)} lengths"
    if not len(offsets) or offsets[0] or offsets[-1] != len(document) or (np.diff(offsets) < 0).any():
        return f"returned pack_offsets that do not run from 0 to its {len(document)} parts"
    if ((document < 0) | (document >= len(lengths))).any():
        return f"refers to a document that is not among the {len(lengths)}"
    order = np.lexsort((start, document))
    parts, begins = length[order].astype(np.int64), start[order]
    first = np.diff(document[order], prepend=-1) != 0
    follows = np.where(first, 0, np.roll(begins + parts, 1))
    held = np.bincount(document, weights=length, minlength=len(lengths)).astype(np.int64)
    wrong = np.flatnonzero(held != lengths)
    if len(wrong):
        return f"puts {held[wrong[0]]} of the {lengths[wrong[0]]} tokens of document {wrong[0]} into packs"
    twice = np.flatnonzero((begins != follows) | (parts < 0))
    if len(twice):
        return f"puts tokens of document {document[order][twice[0]]} into packs twice"
    longest = int(np.diff(to_offsets(length)[offsets]).max(initial=0))
    return f"makes a pack of {longest} tokens, where {max_length} fit" if longest > max_length else None
