"""Checks of the tokenizer on the user's own rows: what is added twice, what does not come back, what it does not know, tokens per character."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

SHOWN = 10
LOST = 0.01
"""Share of tokens (or characters) from which what is unknown (or lost) warns. Tokenizers on text of their language: 0 to 0.85 % unknown (multilingual BERT on
Korean reviews 1.6 %); on text that they were not made for 3.7 to 50 %."""
MARKED = 0.2
"""Share of rows from which special tokens in the text are taken for the data's own format (a chat template writes EOS into every row)."""
TIMES = 2.0
SMALL = 8_000
"""Ids below which a vocabulary is small on purpose: the references have 30,000 and more."""


def doubled(probe: Probe) -> Check:
    from ftcli.core.verify.doubled_tokens import doubles
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    found = doubles(probe)
    evidence = {"rows": found.rows, "first": found.first[:SHOWN], "last": found.last[:SHOWN], "of": found.where}
    worst = max(len(found.first), len(found.last))
    if worst:
        which, rows = ("begin", found.first) if len(found.first) >= len(found.last) else ("end", found.last)
        token = found.begin if which == "begin" else found.end
        words = f"{len(rows):,} of {found.rows:,} {found.where} {which} with {token!r} twice (first: row {rows[0]})"
        fix = f"Remove {token!r} from the texts, or prepare the data with --set tokenizer.add_special_tokens=false."
        return failed(words, fix, **evidence) if len(rows) >= 0.5 * found.rows else warned(words, fix, **evidence)
    if found.template:
        return noted(
            f"the chat template writes {found.begin!r} and the tokenizer adds it again: text made by apply_chat_template(tokenize=False) must be tokenized "
            "with add_special_tokens=False",
            **evidence,
        )
    where = f" in {found.rows:,} {found.where}" if found.rows else ""
    return passed(f"no special token is doubled{where}", **evidence)


def round_trip(probe: Probe) -> Check:
    from ftcli.core.tokenizer.round_trip import MOSTLY
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    ids = probe.text_ids
    trip, rows = ids.trip, len(ids.texts)
    share = ids.lost_share
    same = [(one, other) for one, other, unknown in ids.collisions if not unknown]
    evidence: dict[str, Any] = {
        "rows": rows,
        "exact": trip.exact,
        "spaces": trip.spaces,
        "forms": trip.forms,
        "unknown": trip.unknown,
        "lost": trip.lost,
        "characters": dict(trip.lost_characters.most_common(SHOWN)),
        "example": [part[:200] for part in trip.example or ()],
        "same_ids": [[one[:100], other[:100]] for one, other in same[:3]],
    }
    ways = [
        (trip.spaces, "in white space"),
        (trip.forms, "in case, accents or forms of characters"),
        (trip.unknown, "in unknown characters (FT113)"),
    ]
    joined, parted = ids.joined
    if joined > MOSTLY * parted and share <= MOSTLY:
        return warned(
            f"{joined} of {parted} rows have the same ids with all white space removed: the model cannot tell where a word ends",
            "Look at the normalizer and pre-tokenizer of tokenizer.json, which remove the spaces.",
            joined=joined,
            **evidence,
        )
    how = ", ".join(f"{count / rows:.1%} differ {what}" for count, what in ways if count)
    if not trip.lost and not same:
        words = f"{trip.exact / rows:.1%} of {rows:,} rows decode back to exactly the same text"
        return noted(f"{words}; {how}", **evidence) if how else passed(words, **evidence)
    named = " ".join(character for character, _ in trip.lost_characters.most_common(SHOWN))
    words = f"{trip.lost / rows:.1%} of {rows:,} rows lose text when decoded from their ids" + (
        f": {share:.2%} of all characters are lost ({named})" if named else ""
    )
    if same:
        words += f"; {len(same)} texts have the same ids as another text ({same[0][0][:40]!r} and {same[0][1][:40]!r})"
    if share <= LOST and len(same) <= LOST * ids.distinct:
        return noted(words, **evidence)
    fix = "Use a tokenizer made for this text, or train one: ftcli train-tokenizer SOURCE --output DIR."
    return failed(words, fix, **evidence) if share > MOSTLY else warned(words, fix, **evidence)


def unknown(probe: Probe) -> Check:
    from ftcli.core.tokenizer.round_trip import MOSTLY
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    tokenizer = probe.tokenizer
    if tokenizer.unk_token_id is None:
        lost = probe.text_ids.trip.lost
        if lost:
            return noted("the tokenizer has no unknown token, and drops what it does not know: FT112 shows what is lost", texts=lost)
        return passed("the tokenizer has no unknown token, and loses nothing of these texts")
    ids = probe.text_ids
    share = ids.unknown_share
    evidence: dict[str, Any] = {"tokens": ids.tokens, "unknown": ids.unknown, "share": round(share, 5), "rows": len(ids.texts)}
    if not ids.unknown:
        return passed(f"no unknown token in {len(ids.texts):,} rows", **evidence)
    same = [(one, other) for one, other, has in ids.collisions if has]
    characters = ids.trip.unknown_characters.most_common(SHOWN)
    evidence |= {
        "characters": dict(characters),
        "rows_with": ids.trip.unknown,
        "same_ids": [[one[:100], other[:100]] for one, other in same[:3]],
    }
    named = " ".join(character for character, _ in characters)
    words = f"{share:.2%} of the tokens, in {ids.trip.unknown / len(ids.texts):.1%} of {len(ids.texts):,} rows, are {tokenizer.unk_token!r}: most often {named}"
    if same:
        words += f"; {len(same)} texts have the same ids as another text ({same[0][0][:40]!r} and {same[0][1][:40]!r})"
    if share <= LOST and len(same) <= LOST * ids.distinct:
        return noted(words, **evidence)
    fix = "Use a tokenizer that covers these characters, or train one on your text: ftcli train-tokenizer SOURCE --output DIR."
    return failed(words, fix, **evidence) if share > MOSTLY else warned(words, fix, **evidence)


def special_text(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed, warned

    tokenizer, ids = probe.tokenizer, probe.text_ids
    rows = len(ids.texts)
    if not ids.special_rows:
        return passed(f"no special token occurs in the text of {rows:,} rows")
    control = {getattr(tokenizer, f"{role}_token", None) for role in ("bos", "eos", "pad", "cls", "sep")} - {None, tokenizer.unk_token}
    found = {token: numbers for token, numbers in ids.special_rows.items() if token in control}
    spoken = probe.settings.train.mode == "sft"  # the template writes such tokens, and nobody else should
    odd = {
        token: inside
        for token, numbers in found.items()
        if (inside := numbers if spoken else [row for row in numbers if _inside(ids.texts[row], token)])
        and (spoken or len(numbers) < MARKED * rows)
    }
    evidence = {
        "rows": rows,
        "tokens": {token: len(numbers) for token, numbers in ids.special_rows.items()},
        "texts": [ids.texts[numbers[0]][:200] for numbers in (odd or ids.special_rows).values()][:3],
    }
    words = ", ".join(f"{token!r} in {len(numbers):,}" for token, numbers in (odd or ids.special_rows).items())
    if not odd:
        return noted(f"special tokens occur in the text of {rows:,} rows, as the data's own format or as placeholders: {words}", **evidence)
    token, numbers = next(iter(odd.items()))
    meant = "the chat template writes them" if spoken else "if they are intended, every row should have them"
    return warned(
        f"special tokens occur inside the text of {rows:,} {'messages' if spoken else 'rows'}: {words}. There the model reads {token!r} as the token, not as text, "
        f"first in {ids.texts[numbers[0]][:60]!r}",
        f"Remove them from the texts, or spell them differently; {meant}.",
        **evidence,
    )


def _inside(text: str, token: str) -> bool:
    """Whether a token stands elsewhere than at the very beginning or end, where a format puts it."""
    return token in text.strip().removeprefix(token).removesuffix(token)


def fertility(probe: Probe) -> Check:
    from ftcli.core.tokenizer.fertility import expected
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned

    ids = probe.text_ids
    figures = expected(ids.texts)
    characters = sum(map(len, ids.texts))
    mine = ids.tokens / max(1, characters)
    if figures is None:
        raise Missing(f"{mine:.2f} tokens per character; most characters belong to scripts without a reference")
    reference, shares = figures
    times = mine / reference
    evidence = {
        "tokens_per_character": round(mine, 3),
        "reference": round(reference, 3),
        "times": round(times, 2),
        "scripts": shares,
        "rows": len(ids.texts),
    }
    scripts = ", ".join(f"{script} {share:.0%}" for script, share in shares.items() if share >= 0.05)
    words = f"{mine:.2f} tokens per character, {times:.1f} times what tokenizers that cover the script need ({scripts})"
    if times <= TIMES:
        return passed(words, **evidence)
    if len(probe.tokenizer) < SMALL:
        return noted(f"{words}: the vocabulary is small ({len(probe.tokenizer):,} ids)", **evidence)
    return warned(
        f"{words}: rows are longer, slower and truncated sooner, and words split into bytes or letters; or the text is damaged (mojibake)",
        "Look at a few rows; if they are intact, use a tokenizer made for this language, or train one: ftcli train-tokenizer SOURCE --output DIR.",
        **evidence,
    )


CHECKS = (
    CheckKind("FT112", "tokenizer", "Round trip", round_trip, ("tokenizer",)),
    CheckKind("FT113", "tokenizer", "Unknown tokens", unknown, ("tokenizer",)),
    CheckKind("FT114", "tokenizer", "Special tokens in the text", special_text, ("tokenizer",), "warn"),
    CheckKind("FT115", "tokenizer", "Tokens per character", fertility, ("tokenizer",), "warn"),
    CheckKind("FT116", "tokenizer", "Doubled BOS or EOS", doubled, ("tokenizer",)),
)
