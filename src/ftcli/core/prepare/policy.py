"""The length policy: which texts stay, what is cut, where BOS and EOS go; every cut token is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ftcli.contracts import Encoded
from ftcli.core.prepare.pairs import SECOND, PairTemplate, composed, cut_pairs, second_lengths, unmarked
from ftcli.core.ragged import Ids, Ints, append_where, lacking, surround, take_ranges, to_offsets
from ftcli.core.targets import TARGET, has_target

Truncation = Literal["keep_start", "keep_end", "drop", "split", "error"]


class TooLong(Exception):  # noqa: N818 - turned into a DataError by the reader of the text, who knows its file
    """Texts of the batch, by row their tokens, have more than the `limit` that fit, and truncation is "error"."""

    def __init__(self, rows: dict[int, int], limit: int) -> None:
        super().__init__(rows, limit)
        self.rows, self.limit = rows, limit


@dataclass(slots=True)
class Counts:
    """What happened to rows and tokens; `add` joins the counts of batches and shards."""

    rows_read: int = 0
    rows_kept: int = 0
    rows_filtered: int = 0
    rows_rejected: int = 0
    rows_too_long: int = 0
    """Of those that were filtered: longer than a row, under the truncation strategy drop."""
    rows_untargeted: int = 0
    """Of those that were filtered: without a token to learn in the part that would be kept."""
    rows_unanswered: int = 0
    """Of those without a token to learn: nothing is learned of them however long a row is."""
    rows_truncated: int = 0
    tokens_cut: int = 0
    texts_split: int = 0
    parts_added: int = 0
    """Rows or documents beyond the first that split texts gave."""

    def add(self, other: Counts) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Documents:
    """Rows after the policy: flat ids, lengths, and which text of the batch each came from (a split text gives several)."""

    ids: Ids
    lengths: Ints
    source: Ints


def without_first(documents: Documents) -> Documents:
    """The same with the mark taken from the first token of every document: nothing predicts it."""
    ids, filled = documents.ids.copy(), documents.lengths > 0
    ids[to_offsets(documents.lengths)[:-1][filled]] &= ~TARGET
    return Documents(ids, documents.lengths, documents.source)


@dataclass(frozen=True, slots=True)
class LengthPolicy:
    """How texts become rows of at most `max_length` tokens.

    Special tokens survive truncation, as with Hugging Face's `truncation=True`: the text is cut, then they are added. Where a long text becomes parts that
    follow each other in packs, they are added first.
    """

    max_length: int
    min_length: int
    truncation: Truncation
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    eos: int | None = None
    """Appended to texts that do not end with it already; one of a text's own takes its place and counts as no token of text."""
    parts_end: bool = False
    """Every part of a split text ends with `eos`, as every row that is judged alone; else the last one does: elsewhere no text ends."""
    packed: bool = False
    packer_splits: bool = False
    """The packer cuts long texts itself, where packs end."""
    targets: bool = False
    """Ids carry marks of what is learned (`ftcli.core.targets`): a text without any in the part that is kept is filtered out."""
    pair: PairTemplate | None = None
    """Rows hold two texts each, and this stands for prefix and suffix (`ftcli.core.prepare.pairs`)."""

    @property
    def room(self) -> int:
        """Tokens of text that fit into a row."""
        added = len(self.prefix) + len(self.suffix) if self.pair is None else self.pair.added
        return self.max_length - added - (self.eos is not None)

    @property
    def cut_for_packs(self) -> bool:
        """Whether long texts lose tokens, then get their special tokens, and then are packed."""
        return self.packed and self.truncation in ("keep_start", "keep_end")

    @property
    def ends_rows(self) -> bool:
        """Whether an EOS of a text's own takes the place of `eos`."""
        return not self.packed or self.truncation == "drop"

    def apply(self, encoded: Encoded, counts: Counts) -> Documents:
        """
        Args:
            encoded: ids of a batch of texts without special tokens.
            counts: added to in place.

        Raises:
            TooLong: texts are too long, and truncation is "error"; names them all.
        """
        lengths = np.diff(encoded.offsets)
        starts = encoded.offsets[:-1]
        counts.rows_read += len(lengths)
        keep = lengths >= self.min_length
        ended = self.own_eos(encoded)
        if self.truncation == "drop":
            fits = lengths - ended <= self.room
            counts.rows_too_long += int((keep & ~fits).sum())
            keep &= fits
        if self.targets:
            keep = self._with_target(encoded, lengths, keep, counts)
        source = np.flatnonzero(keep)
        counts.rows_kept += len(source)
        counts.rows_filtered += len(lengths) - len(source)
        starts, lengths, ended = starts[source], lengths[source], ended[source]
        if self.packed and not self.cut_for_packs:
            return self._parts(*self._compose(take_ranges(encoded.ids, starts, lengths), lengths), source, counts)
        if self.pair is not None:
            return Documents(*self._pairs(self.pair, encoded.ids, starts, lengths, ended, source, counts), source)
        starts, lengths, source = self._cut(starts, lengths, ended, source, self.room, counts)
        last = None if self.parts_end or self.truncation != "split" else np.diff(source, append=-1) != 0
        return Documents(*self._compose(take_ranges(encoded.ids, starts, lengths), lengths, last), source)

    def own_eos(self, encoded: Encoded) -> Ints:
        """1 for each text, or second text of a pair, that ends with the EOS that rows are to end with."""
        lengths = np.diff(encoded.offsets)
        behind, mark = (self.suffix, 0) if self.pair is None else (self.pair.suffix, int(SECOND))
        if self.eos is None or behind:
            return np.zeros_like(lengths)
        return (~lacking(encoded.ids, lengths, self.eos | mark)).astype(np.int64)

    def _with_target(self, encoded: Encoded, lengths: Ints, keep: NDArray[np.bool_], counts: Counts) -> NDArray[np.bool_]:
        starts, stops = encoded.offsets[:-1], encoded.offsets[1:]
        if self.truncation == "keep_start":
            stops = starts + np.minimum(lengths, self.max_length)
        elif self.truncation == "keep_end":
            starts = stops - np.minimum(lengths, self.max_length)
        learns = has_target(encoded.ids, starts, stops)
        counts.rows_untargeted += int((keep & ~learns).sum())
        if not learns.all():
            counts.rows_unanswered += int((keep & ~has_target(encoded.ids, encoded.offsets[:-1], encoded.offsets[1:])).sum())
        return keep & learns

    def _compose(self, ids: Ids, lengths: Ints, last: NDArray[np.bool_] | None = None) -> tuple[Ids, Ints]:
        return self._ended(*surround(ids, lengths, np.array(self.prefix, np.int32), np.array(self.suffix, np.int32)), last)

    def _ended(self, ids: Ids, lengths: Ints, last: NDArray[np.bool_] | None = None) -> tuple[Ids, Ints]:
        """With EOS behind the rows that lack it; of those that are `last` in their text, where that is told."""
        if self.eos is None:
            return ids, lengths
        where = lacking(ids if self.pair is None else unmarked(ids), lengths, self.eos)
        return append_where(ids, lengths, where if last is None else where & last, self.eos)

    def _pairs(
        self, template: PairTemplate, ids: Ids, starts: Ints, lengths: Ints, ended: Ints, source: Ints, counts: Counts
    ) -> tuple[Ids, Ints]:
        """Rows of two texts, of which the longer one is cut first."""
        second = second_lengths(ids, starts, lengths)
        first = lengths - second
        text = lengths - ended
        long = text > self.room
        if self.truncation == "error" and long.any():
            raise TooLong(dict(zip(source[long].tolist(), text[long].tolist(), strict=True)), self.room)
        kept = cut_pairs(first, second - ended, self.room, slow=template.slow)
        counts.rows_truncated += int(long.sum())
        counts.tokens_cut += int((text - sum(kept)).sum())
        ends = self.truncation == "keep_end"
        kept = kept[0], kept[1] + np.where(ends | (kept[1] == second - ended), ended, 0)
        return self._ended(*composed(template, ids, starts, (first, second), kept, ends=ends))

    def _parts(self, ids: Ids, lengths: Ints, source: Ints, counts: Counts) -> Documents:
        if self.packer_splits and self.truncation == "split":
            return Documents(ids, lengths, source)
        starts = to_offsets(lengths)[:-1]
        starts, lengths, source = self._cut(starts, lengths, np.zeros_like(lengths), source, self.max_length, counts)
        return Documents(take_ranges(ids, starts, lengths), lengths, source)

    def _cut(self, starts: Ints, lengths: Ints, ended: Ints, source: Ints, limit: int, counts: Counts) -> tuple[Ints, Ints, Ints]:
        """The ranges of texts that become rows: of at most `limit` tokens, and an EOS of their own where `ended` is 1."""
        text = lengths - ended
        long = text > limit
        if not long.any():
            return starts, lengths, source
        if self.truncation == "error":
            raise TooLong(dict(zip(source[long].tolist(), text[long].tolist(), strict=True)), limit)
        if self.truncation == "split":
            counts.texts_split += int(long.sum())
            parts = np.maximum(1, -(-text // limit))  # a text without tokens stays one row
            counts.parts_added += int(parts.sum()) - len(lengths)
            which = np.repeat(np.arange(len(lengths)), parts)
            place = np.arange(len(which)) - np.repeat(to_offsets(parts)[:-1], parts)
            last = np.where(place == parts[which] - 1, ended[which], 0)
            return starts[which] + place * limit, np.minimum(text[which] - place * limit, limit) + last, source[which]
        counts.rows_truncated += int(long.sum())
        counts.tokens_cut += int((text[long] - limit).sum())
        if self.truncation == "keep_end":
            return np.where(long, starts + text - limit, starts), np.where(long, limit + ended, lengths), source
        return starts, np.where(long, limit, lengths), source
