"""Words as LaTeX: ASCII that any engine sets, whatever its input encoding and packages."""

from __future__ import annotations

import re
import unicodedata

_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
}
_MATHS = {
    "ε": r"\varepsilon", "δ": r"\delta", "σ": r"\sigma", "τ": r"\tau", "η": r"\eta", "Ψ": r"\Psi", "γ": r"\gamma",
    "·": r"\cdot", "×": r"\times", "±": r"\pm", "∞": r"\infty", "≤": r"\le", "≥": r"\ge", "≈": r"\approx",
    "−": "-", "→": r"\to", "½": r"\tfrac12", "‖": r"\|", "ℓ": r"\ell", "√": r"\surd",
}  # fmt: skip
_WORDS = {"§": r"\S{}", "—": "---", "–": "--", "†": r"\dag{}", "’": "'", "…": r"\ldots{}", "\u00a0": "~"}
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUB = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def latex(text: str) -> str:
    """`text` in LaTeX; `**bold**` is bold. A character that has no form here is named, not dropped."""
    bold = re.split(r"\*\*(.+?)\*\*", text)
    return "".join(rf"\textbf{{{_plain(part)}}}" if i % 2 else _plain(part) for i, part in enumerate(bold))


def _plain(text: str) -> str:
    pieces = re.findall(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[₀₁₂₃₄₅₆₇₈₉]+|.", text, re.DOTALL)
    return "".join(_piece(piece) for piece in pieces)


def _piece(piece: str) -> str:
    if (raised := piece.translate(_SUPER)) != piece:
        return f"$^{{{raised}}}$"
    if (lowered := piece.translate(_SUB)) != piece:
        return f"$_{{{lowered}}}$"
    if piece in _MATHS:
        return f"${_MATHS[piece]}$"
    known = _SPECIAL.get(piece) or _WORDS.get(piece) or piece
    return known if known.isascii() else f"[{unicodedata.name(piece, hex(ord(piece))).lower()}]"
