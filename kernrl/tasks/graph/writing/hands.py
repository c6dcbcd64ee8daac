"""Hands: the habits by which people write the same module differently. Every field is one habit."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

DOCS = (
    "",
    "Reference model.",
    "Simple model that computes {ops}.",
    "A block of {ops}.\n\n    Args:\n        x: Input tensor.\n\n    Returns:\n        Output tensor.\n",
    "{ops}, one after the other",
    "Applies {ops}.\n\n    This is the plain version; shapes follow from the constants of this file.\n",
)
STAGES = ("fc", "linear", "proj", "dense", "lin", "to_out", "head", "layer", "w_in", "mix")
VALUES = ("out", "h", "y", "z", "feat", "features", "hidden", "tmp", "res", "act", "t", "u")


@dataclass(frozen=True, slots=True)
class Hand:
    """One author."""

    forms: dict[str, float]
    """Weight of each form (`functional`, `method`, `operator`, `module`)."""
    scalars: str
    """Where numbers live: `literal`, `attribute`, `argument`, `buffer` or `global`."""
    variables: str
    """`rebind` one name as far as possible, or `fresh` ones."""
    inline: float
    """Share of values that are written inside the expression that reads them."""
    in_place: bool
    """`x += y` where nothing else reads x."""
    sequential: bool
    """Neighbouring modules as one `nn.Sequential`."""
    helper: bool
    """The end of `forward` in a method of its own."""
    constants_above: bool
    """Constants above the class; else below it."""
    upper: bool
    """Constants in capitals."""
    grouped: bool
    """Constants as one tuple assignment."""
    super_call: str
    base: str
    docs: str
    comments: bool
    hints: bool
    parameter_draw: str

    @classmethod
    def draw(cls, rng: Random) -> Hand:
        """A random author."""
        return cls(
            forms={form: rng.choice((0.2, 1.0, 3.0)) for form in ("functional", "method", "operator", "module")},
            scalars=rng.choice(("literal", "literal", "attribute", "argument", "buffer", "global")),
            variables=rng.choice(("rebind", "rebind", "fresh")),
            inline=rng.choice((0.0, 0.0, 0.2, 0.6)),
            in_place=rng.random() < 0.15,
            sequential=rng.random() < 0.25,
            helper=rng.random() < 0.15,
            constants_above=rng.random() < 0.4,
            upper=rng.random() < 0.35,
            grouped=rng.random() < 0.25,
            super_call=rng.choice(("super().__init__()", "super(Model, self).__init__()", "nn.Module.__init__(self)")),
            base=rng.choice(("nn.Module", "nn.Module", "torch.nn.Module")),
            docs=rng.choice(DOCS),
            comments=rng.random() < 0.3,
            hints=rng.random() < 0.3,
            parameter_draw=rng.choice(
                ("torch.randn({})", "torch.rand({}) + 0.5", "0.1 * torch.randn({})", "torch.empty({}).normal_()")
            ),
        )
