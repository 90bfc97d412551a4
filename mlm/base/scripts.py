"""Scripts that write no space between words."""

import regex

UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\u3099\u309a\u30fc\uff70\uff9e\uff9f\p{Thai}\p{Lao}\p{Khmer}"
    r"\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}\p{Tibetan}]"
)


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return UNSPACED.match(character) is not None
