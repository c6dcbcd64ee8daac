"""The metrics of a loss, taken apart when they are read: a dozen tensors a call would cost the host more than the loss."""

from collections.abc import Iterator, Mapping

from torch import Tensor


class Metrics(Mapping[str, Tensor]):
    """Named scalars of one tensor, which may hold more; `|` makes a dict, as two dicts would."""

    def __init__(self, names: tuple[str, ...], values: Tensor):
        self._names, self._values = names, values

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._values[self._names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __or__(self, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**self, **other}

    def __repr__(self) -> str:
        return repr(dict(zip(self._names, self._values.tolist(), strict=False)))
