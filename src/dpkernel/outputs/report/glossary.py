"""The words of a report that need an explanation, beside the page on a wide screen."""

from __future__ import annotations

from dpkernel.outputs.report.markup import Html, tag

GLOSSARY: dict[str, str] = {
    "certificate": "The file that lists every release with its noise. It is enough to compute the"
    " guarantee again, without the data.",
    "clipping": "Values outside of a declared range count as the nearest end of it. So one record can"
    " change a result only by a known amount.",
    "δ (delta)": "A small probability with which the bound by ε may fail. It should be well below one"
    " over the number of people.",
    "differential privacy": "A property of a program: whether any one record is in the data hardly"
    " changes what the program gives out. It holds whatever an attacker knows or computes.",
    "ε (epsilon)": "The limit of what can be learned about one record: the probability of every result"
    " changes by a factor of at most e to the power ε. Smaller is safer.",
    "interval": "A range that contains the exact number in the stated share of all releases. It"
    " accounts for the noise.",
    "ledger": "The record of everything that was spent on one data set, with a ceiling that it does not"
    " pass.",
    "noise": "Random numbers that are added to a result before it leaves the data. Here they come from"
    " the operating system's generator for secrets.",
    "record": "What is protected: one row, or one person with all their rows.",
    "release": "A result that left the data, with its noise.",
    "sensitivity": "The most that one record can change a result. The noise is chosen in proportion to"
    " it.",
}


def glossary() -> Html:
    """Return the words with their meaning."""
    entries = [part for word, meaning in GLOSSARY.items() for part in _entry(word, meaning)]
    heading = tag("h2", "Words on this page")
    return tag("aside", heading, tag("dl", *entries), class_="glossary", aria_label="Glossary")


def _entry(word: str, meaning: str) -> tuple[Html, Html]:
    return tag("dt", word), tag("dd", meaning)
