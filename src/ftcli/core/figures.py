"""Figures as people read them: thousands separators, sensible precision, units; None is "unknown"."""

from __future__ import annotations

UNKNOWN = "unknown"
GAP = "\u00a0"
"""Stands between a figure and its unit (and nowhere else), so that no line breaks there and a page can set units smaller."""


def number(value: float | str | bool | None) -> str:
    """An int in full, a float with three to four digits that matter; words pass through."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2e}"
    if size >= 999.95:
        return f"{value:,.0f}"
    if size >= 99.995:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def counted(count: float | None, noun: str) -> str:
    """A number of something whose plural has an s: "1 step", "2 steps"."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    if 0 < abs(share) < 0.001:
        return f"{100 * share:.2g}{GAP}%"
    return f"{100 * share:.1f}{GAP}%"


def size(count: float | None) -> str:
    """Bytes on disk or read, in decimal units (MB is 10⁶ bytes, as in MB/s)."""
    return _scaled(count, 1000, ("bytes", "kB", "MB", "GB", "TB"))


def memory(count: float | None) -> str:
    """Bytes of RAM or GPU memory, in binary units."""
    return _scaled(count, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))


def megabytes(count: float | None) -> str:
    """A figure that is measured in MB already."""
    return size(None if count is None else count * 1e6)


def seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value < 59.95:
        return f"{1000 * value:.3g}{GAP}ms" if 0 < value < 0.1 else f"{value:.3g}{GAP}s"
    whole = round(value)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours:,}{GAP}h{GAP}{minutes:02d}{GAP}min"
    return f"{minutes}{GAP}min{GAP}{whole % 60:02d}{GAP}s"


def quantity(value: float | None, unit: str) -> str:
    """A figure with its unit; "s", "bytes", "MB", "%" (a share of 1) and "×" have their own forms."""
    forms = {"s": seconds, "seconds": seconds, "bytes": size, "MB": megabytes, "%": percent}
    if unit in forms:
        return forms[unit](value)
    if value is None or not unit:
        return number(value)
    return f"{number(value)}{'' if unit == '×' else GAP}{unit}"


def between(low: float | None, high: float | None, unit: str) -> str:
    """An interval, with the unit once where both ends have the same."""
    first, last = quantity(low, unit), quantity(high, unit)
    figure, gap, same = first.partition(GAP)
    once = first.count(GAP) == last.count(GAP) == 1 and last.endswith(gap + same)  # "1 min 30 s" ends as seconds do, and is none
    return f"{figure if once else first} to {last}"


def _scaled(count: float | None, base: int, units: tuple[str, ...]) -> str:
    if count is None:
        return UNKNOWN
    scaled, power = float(count), 0
    while abs(scaled) >= 0.9995 * base and power < len(units) - 1:
        scaled /= base
        power += 1
    shown = f"{scaled:.3g}" if power and abs(scaled) < 999.5 else f"{scaled:,.0f}"
    return f"{shown}{GAP}{units[power]}"
