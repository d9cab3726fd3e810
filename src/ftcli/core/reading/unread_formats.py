"""Formats that people have and no reader takes: what to do with such a file, by its suffix."""

from __future__ import annotations

_SHEET = "Save each sheet as a CSV file (UTF-8) with the column names in the first line."
_ARCHIVE = "Unpack it, then name the files or the folder."
_WORDS = "It has one word per line, and ftcli does not train token labels. Its sentences as plain text: "
_JOINED = r"""awk -F'[\t ]' 'NF {s = s (s ? " " : "") $1; next} s {print s; s = ""} END {if (s) print s}' OLD > NEW.txt."""
ADVICE = {
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bmes", ".bioes"), _WORDS + _JOINED),
    ".conllu": f"{_WORDS}sed -n 's/^# text = //p' OLD > NEW.txt.",
    **dict.fromkeys(
        (".xml", ".html", ".yaml", ".yml", ".docx", ".pdf"), 'Write its texts as JSON lines, {"text": …} each, or as plain text.'
    ),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), _SHEET),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), _ARCHIVE),
    **dict.fromkeys((".lzma", ".br", ".z"), "Decompress it, or compress it with gzip or zstd."),
}
"""What to do with files that people have and no format reads."""
