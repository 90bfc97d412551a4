"""Scripts that write no space between words."""

import unicodedata

# How the Unicode names of their characters begin: of Chinese, Japanese and Yi, and of South-East Asia and Tibet.
NAMES = (
    *("CJK ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "COMBINING KATAKANA", "IDEOGRAPHIC", "BOPOMOFO", "YI "),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TAI ", "NEW TAI ", "JAVANESE ", "BALINESE ", "TIBETAN "),
)


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return unicodedata.name(character, "").startswith(NAMES)
