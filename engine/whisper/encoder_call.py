"""One call of the encoder over rows of a session, which may be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from engine.stepping import GivesWay
from engine.whisper import audio
from engine.whisper.kernels import Encoding
from engine.whisper.model import Whisper
from engine.whisper.rows import Row


class EncoderCall:
    """Rows on their way through the encoder; of unlike windows, one length after the other.

    While it is interrupted it holds the activations of the windows that it is at, no more than there are threads:
    four arrays of frames times width, for tiny 9 MB a window of 30 s.

    :param rows: get their features when the call is done.
    """

    def __init__(self, model: Whisper, rows: Sequence[Row]) -> None:
        self._model = model
        self.rows = list(rows)
        """Those that are still wanted."""
        self._groups = [
            [row for row in rows if row.window == window] for window in sorted({row.window for row in rows})
        ]
        self._encoding: Encoding | None = None
        """Of the first group, once it is begun."""

    def advance(self, gives_way: GivesWay) -> bool:
        """Go on to the end, or until others wait.

        :returns: whether all rows have their features.
        """
        while self._groups:
            group = self._groups[0]
            if self._encoding is None:
                self._encoding = self._model.encoding(mx.array(self._spectra(group)))
                if gives_way():
                    return False
            if not self._encoding.advance(gives_way):
                return False
            for row, features in zip(group, self._encoding.features, strict=True):
                row.features = features
            self._encoding = None
            del self._groups[0]
            if self._groups and gives_way():
                return False
        return True

    def drop(self, goes: Callable[[Row], bool]) -> None:
        """Take out rows. What is begun goes on while any of its rows is wanted."""
        self.rows = [row for row in self.rows if not goes(row)]
        begun = self._groups[:1] if self._encoding is not None else []
        if begun and not any(row in self.rows for row in begun[0]):
            begun, self._encoding = [], None
            del self._groups[0]
        waiting = [[row for row in group if row in self.rows] for group in self._groups[len(begun) :]]
        self._groups = begun + [group for group in waiting if group]

    def _spectra(self, group: Sequence[Row]) -> audio.FloatArray:
        """Shape (rows, mel frames, mels)."""
        window = 2 * group[0].window
        # Of a long file's chunks each is made when its turn comes, or all of them would hold up everybody.
        spectra = (row.task.spectrogram(self._model.dims.n_mels) for row in group)
        return np.stack(
            [audio.window(spectrum, row.start, window) for row, spectrum in zip(group, spectra, strict=True)]
        )
