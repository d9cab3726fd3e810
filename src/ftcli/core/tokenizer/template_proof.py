"""A chat template held against transformers, on conversations of the data and a few of our own, before a row is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ftcli.core.reading.conversation import TEXT
from ftcli.core.tokenizer.chat import SAMPLES
from ftcli.core.tokenizer.template import Rendered, Template, conversation_of
from ftcli.core.tokenizer.template_habits import ANSWERS
from ftcli.errors import TokenizerError, UsageError

PROVED = 16
"""Conversations of the data that are tried beside our own."""


def prove(template: Template, tokenizer: Any, documents: Sequence[str]) -> dict[str, Any]:
    """Hold the template against transformers on conversations of the data and a few of our own; what was done, for the manifest.

    Proved: the rendered text gives the ids of `apply_chat_template(tokenize=True)`; BOS is not doubled; with {% generation %} the characters
    are those of transformers' mask; without it, other answers change nothing outside of the marked characters.

    Raises:
        TokenizerError: one of these does not hold; names the template's tokenizer.
    """
    rows = [json.loads(document) for document in documents[:PROVED]]
    chats = [row for row in rows if row["kind"] != TEXT]
    if template.source is None or (rows and not chats):
        return {"conversations": 0, "template": template.hash, "mask": None}
    whole = [conversation_of(row) for row in chats]
    tools = [row.get("tools") for row in chats]
    done, refused = 0, ""
    for messages, tool in [*zip(whole, tools, strict=True), *((list(sample), None) for sample in SAMPLES)]:
        try:
            _same_ids(template, tokenizer, messages, tool)
        except TokenizerError:
            raise
        except Exception as error:  # noqa: BLE001 - a template may refuse a conversation (a system message); `render` says which rows
            refused = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            continue
        done += 1
    if not done:
        raise TokenizerError(f"the chat template of {template.name} renders no conversation: {refused}", "Correct the template.")
    mask = "generation" if template.generation else "prompts"
    if any("messages" in row for row in chats) and template.assistant_only:
        _same_mask(template, tokenizer, whole, tools) if template.generation else _same_outside(template)
    return {"conversations": done, "template": template.hash, "mask": mask}


def _same_ids(template: Template, tokenizer: Any, messages: list[Any], tools: Any) -> None:
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    ids = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True)["input_ids"]
    if tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
        raise TokenizerError(
            f"the tokenizer {template.name} gives different ids for a rendered conversation and for its text", "Report this tokenizer."
        )
    if tokenizer.bos_token_id is not None and ids[:2] == [tokenizer.bos_token_id] * 2:
        raise TokenizerError(
            f"the chat template of {template.name} begins a conversation with BOS twice", "Take one of them out of the template."
        )


def _same_mask(template: Template, tokenizer: Any, conversations: Sequence[list[Any]], tools: Sequence[Any]) -> None:
    if not tokenizer.is_fast:
        return
    for messages, tool in zip(conversations, tools, strict=True):
        out = Rendered([""], [()])
        (text,), (marks,) = template.rendered([messages], tool, [0], out, marked=True)
        if text is None:
            continue
        whole = tokenizer.apply_chat_template(messages, tools=tool, return_dict=True, return_assistant_tokens_mask=True)
        encoding = tokenizer(text, add_special_tokens=False)
        own = [0] * len(whole["input_ids"])
        for start, stop in marks:
            tokens = [token for token in map(encoding.char_to_token, range(start, stop)) if token is not None]
            own[min(tokens, default=0) : max(tokens, default=-1) + 1] = [1] * (max(tokens, default=-1) + 1 - min(tokens, default=0))
        if own != whole["assistant_masks"]:
            raise TokenizerError(
                f"the chat template of {template.name}: transformers masks other tokens than those inside {{% generation %}}",
                "Correct the template, or train on everything with --no-assistant-only-loss.",
            )


def _same_outside(template: Template) -> None:
    """With other answers everything outside the marked characters is the same, and the answers are inside."""
    outside = []
    for answers in (ANSWERS, tuple(reversed(ANSWERS))):
        messages = [
            {"role": role, "content": words}
            for role, words in zip(("user", "assistant") * 2, ("One?", answers[0], "Two?", answers[1]), strict=True)
        ]
        document = json.dumps({"shape": "messages", "kind": "chat", "messages": messages})
        rendered = template.render([document])
        text, spans = rendered.texts[0], rendered.spans[0]
        inside = [text[start:stop] for start, stop in spans]
        if rendered.faults or len(inside) != len(answers) or any(answer not in part for answer, part in zip(answers, inside, strict=False)):
            raise _unknown(template, rendered.faults.get(0, "an answer is not where its prompt ends"))
        cut = [0, *(border for span in spans for border in span), len(text)]
        outside.append([text[cut[i] : cut[i + 1]] for i in range(0, len(cut), 2)])
    if outside[0] != outside[1]:
        raise _unknown(template, "another answer changes the text around it")


def _unknown(template: Template, why: str) -> TokenizerError:
    return TokenizerError(
        f"the chat template of {template.name} has no {{% generation %}}, and the assistant's tokens cannot be identified without it: {why}",
        "Put {% generation %} … {% endgeneration %} around the assistant's words in the template, or train on everything with --no-assistant-only-loss.",
    )


def refuse_unused(shapes: Sequence[str], *, assistant_only: bool | None, completion_only: bool | None) -> None:
    """Raises `UsageError` where a choice was made that none of the rows knows."""
    chats = {"messages", "sharegpt"} & set(shapes)
    pairs = set(shapes) - {"messages", "sharegpt"}
    if assistant_only and not chats:
        raise UsageError(f"assistant_only_loss is for messages, and the data are {', '.join(sorted(pairs))}", "Use --completion-only-loss.")
    if completion_only and not pairs:
        raise UsageError(
            f"completion_only_loss is for prompt and completion, and the data are {', '.join(sorted(chats))}", "Use --assistant-only-loss."
        )
