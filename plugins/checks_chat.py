"""Checks of the tokenizer's chat template: it renders, marks the assistant's words, and a prompt is the beginning of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.tokenizer.chat import Tried
    from ftcli.core.verify.probe import Probe

SHOWN = 3


def template(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed, warned

    tried, whose, _ = _tried(probe)
    evidence: dict[str, Any] = {
        "conversations": tried.conversations,
        "broken": dict(list(tried.broken.items())[:SHOWN]),
        "hidden": dict(list(tried.hidden.items())[:SHOWN]),
        "spelled": dict(list(tried.spelled.items())[:SHOWN]),
        "example": tried.example[:500],
    }
    if tried.spelled and not tried.broken:
        mark, pieces = next(iter(tried.spelled.items()))
        return warned(
            f"the chat template ends an answer with {mark!r}, which is no token here: it becomes {len(pieces)} others ({', '.join(map(repr, pieces))}), "
            "and nothing else there is one, so that no model learns the token at which generation stops",
            "Use the chat template of this tokenizer's own model, or let it end answers with {{ eos_token }}; or add what it writes to the tokenizer as "
            "special tokens, for which the model needs rows.",
            **evidence,
        )
    if tried.hidden and not tried.broken:
        number, what = next(iter(tried.hidden.items()))
        return warned(
            f"the chat template leaves out {what} silently in {len(tried.hidden)} of {tried.conversations} {whose}, first in number {number}",
            "Use a template that renders them, or remove them from the data; ftcli tokenize --mode sft refuses such rows.",
            **evidence,
        )
    if not tried.broken:
        return passed(f"the chat template renders {tried.conversations} {whose}", **evidence)
    number, why = next(iter(tried.broken.items()))
    words = f"the chat template refuses {len(tried.broken)} of {tried.conversations} {whose}, first number {number}: {why}"
    if len(tried.broken) < tried.conversations and whose == "samples":
        return noted(words, **evidence)
    return warned(
        words,
        "Fix chat_template (tokenizer_config.json or chat_template.jinja), or use only roles that it knows.",
        **evidence,
    )


def assistant_mask(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned

    tried, whose, given = _tried(probe)
    rendered = tried.conversations - len(tried.broken)
    if not rendered:
        raise Missing("the chat template renders nothing (see FT117)")
    evidence = {"conversations": rendered, "generation": tried.generation, "empty": tried.masked}
    if not tried.generation:
        words = (
            "the chat template has no {% generation %}: the assistant mask is empty, and a trainer with assistant_only_loss learns nothing"
        )
        fix = (
            "Put {% generation %} … {% endgeneration %} around the assistant's content in chat_template, or mask the prompt by its length."
        )
        needed = given and probe.task_name not in {
            "classify",
            "regress",
            "pretrain",
            "sft",
        }  # which learn all of a text, or know the answer otherwise
        return warned(words, fix, **evidence) if needed else noted(words, **evidence)
    if tried.masked:
        return warned(
            f"the chat template has {{% generation %}}, but the assistant mask is empty in {tried.masked} of {rendered} {whose}",
            "Put {% generation %} … {% endgeneration %} around the assistant's content itself.",
            **evidence,
        )
    if tried.asked:
        return warned(
            f"{{% generation %}} of the chat template covers the user's words in {len(tried.asked)} of {rendered} {whose}, first number {tried.asked[0]}: "
            "the model would learn to ask instead of to answer",
            "Put {% generation %} … {% endgeneration %} around the assistant's content only.",
            **evidence,
        )
    return passed(f"the assistant mask is set in {rendered} {whose}", **evidence)


def prompt_prefix(probe: Probe) -> Check:
    from ftcli.core.tokenizer.chat import parted_pairs, read_own
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed, warned

    if pairs := read_own(probe.settings).pairs:
        parted = parted_pairs(probe.tokenizer, pairs)
        evidence: dict[str, Any] = {"pairs": len(pairs), "parted": parted[:SHOWN], "count": len(parted)}
        if not parted:
            return passed(f"the prompt's ids are a prefix of the full ids in {len(pairs)} prompts with completions", **evidence)
        words = (
            f"the prompt's ids are not a prefix of the full ids in {len(parted)} of {len(pairs)} prompts with completions, first number {parted[0]} "
            f"({pairs[parted[0]][0][-20:]!r} + {pairs[parted[0]][1][:20]!r}): masking a prompt by its length would mask or train on the wrong tokens"
        )
        if probe.task_name == "sft":
            return noted(f"{words}; ftcli finds the completion by its character offsets", **evidence)
        return warned(
            words, "End the prompt without a space and begin the completion with it, or prepare the data with --mode sft.", **evidence
        )
    tried, whose, given = _tried(probe)
    rendered = tried.conversations - len(tried.broken)
    if not rendered:
        raise Missing("the chat template renders nothing (see FT117)")
    evidence = {"conversations": rendered, "parted": tried.parted[:SHOWN], "count": len(tried.parted)}
    if not tried.parted:
        return passed(f"the prompt's ids are a prefix of the full ids in {rendered} {whose}", **evidence)
    words = (
        f"the prompt's ids are not a prefix of the full ids in {len(tried.parted)} of {rendered} {whose}, first number {tried.parted[0]}: masking a prompt "
        "by its length would mask or train on the wrong tokens"
    )
    if not given or probe.task_name == "sft":  # which marks the answer by its characters
        return noted(words, **evidence)
    return warned(
        words, "Mask by {% generation %} instead of the prompt's length, or change what the template writes before an answer.", **evidence
    )


def _tried(probe: Probe) -> tuple[Tried, str, bool]:
    """The template tried on the user's conversations, else on samples; what they are called, and whether they are the user's."""
    from ftcli.core.verify.probe import Missing

    if not getattr(probe.tokenizer, "chat_template", None):
        raise Missing("the tokenizer has no chat template")
    return probe.chat


CHECKS = (
    CheckKind("FT117", "tokenizer", "Chat template", template, ("tokenizer",), "warn"),
    CheckKind("FT118", "tokenizer", "Assistant mask", assistant_mask, ("tokenizer",), "warn"),
    CheckKind("FT119", "tokenizer", "Prompt and answer", prompt_prefix, ("tokenizer",), "warn"),
)
