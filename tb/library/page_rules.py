"""Rules of every HTML page: a reader can read its numbers and reach all of its tables, also on a telephone."""

import re

SCROLLED = re.compile(r'<div class="scroll">(?:<table>|<svg|<div class="plots">).*?</div>', re.S)


def faults(text: str) -> list[str]:
    """Faults of a page, a line each.

    It needs a viewport, because a telephone would shrink it otherwise. Tables and plots must scroll, no number has an
    exponent, and a number with decimals has its unit beside it or in its heading.
    """
    wrong = [] if '<meta name="viewport" content="width=device-width, initial-scale=1">' in text else ["no viewport"]
    outside = SCROLLED.sub("", text)
    wrong += [f"not in a scrolling container: {tag}" for tag in ("<table", "<svg") if tag in outside]
    shown = re.sub(r"<(svg|style)\b.*?</\1>", "", text, flags=re.S)
    labels = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    number = r"(?<!…)\b\d[\d.]*e[+-]?\d+\b"  # not the last hexadecimal digits of a wave's value: …1e4
    wrong += [f"exponent: {x}" for x in re.findall(number, shown + labels)]
    for table in re.findall(r"<table>(.*?)</table>", text, re.S):
        heads = re.findall(r"<th[^>]*>(.*?)</th>", table)
        for row in re.findall(r"<tr>(<td.*?)</tr>", table, re.S):
            cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
            pairs = zip(heads, cells, strict=True)
            wrong += [f"{h}: {c} has no unit" for h, c in pairs if re.fullmatch(r"[\d,]*\.\d+", c) and ", " not in h]
    return wrong
