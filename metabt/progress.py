"""Progress of long work: a bar on a terminal, a plain line now and then in a log file."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

# At first; later up to half an hour: the log of days of work must be short enough to be shown.
SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts something; nothing is printed on standard output."""

    def __init__(self, what: str, total: int | None, unit: str, done: int = 0) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, done
        self._began = self._spoke = time.monotonic()
        self._at_start, self._slower = done, 1.0
        self.note = ""  # shown beside the count
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            size = unit == "B"
            self._bar = tqdm(
                total=total,
                initial=done,
                desc=what,
                unit=unit if size else f" {unit}",
                unit_scale=True,
                unit_divisor=1024 if size else 1000,
            )

    def add(self, count: int) -> None:
        self.done += count
        if self._bar is not None:
            if self.note:
                self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES * self._slower:
            self._spoke = time.monotonic()
            self._slower = min(1.2 * self._slower, 60.0)
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        rate = (self.done - self._at_start) / max(time.monotonic() - self._began, 1e-9)
        text = f"{self.what}: {self._amount(self.done)}"
        if self.total:
            minutes = (self.total - self.done) / max(rate, 1e-9) / 60
            text += f" of {self._amount(self.total)} ({self.done / self.total:.0%})"
            text = f"{text}, {self._amount(rate)}/s, {minutes:.1f} min left"
        else:
            text = f"{text}, {self._amount(rate)}/s"
        return f"{text}; {self.note}" if self.note else text

    def _amount(self, count: float) -> str:
        return (
            f"{count / 1e6:,.1f} MB"
            if self.unit == "B"
            else f"{count:,.0f} {self.unit}"
            if count >= 10 or count == int(count)
            else f"{count:.2g} {self.unit}"
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
