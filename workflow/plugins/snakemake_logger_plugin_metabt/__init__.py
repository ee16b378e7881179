"""`snakemake --logger metabt`: one line that says what is being done, how far it is, and how long
it will take.

On a terminal the line is rewritten in place; elsewhere a new one is printed now and then. Warnings
and errors are printed as Snakemake prints them. Everything goes to standard output.

Snakemake finds this module by its name, on the PYTHONPATH.
"""

import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

SECONDS_BETWEEN_LINES = 20.0

# What a rule does, in words; those that take a moment have none.
WORDS = {
    "synthesise": "inventing languages",
    "download": "downloading",
    "hold_out": "setting text aside",
    "clean_parallel": "cleaning text",
    "clean_mono": "cleaning text",
    "subwords": "learning subwords",
    "encode": "encoding text",
    "train": "training",
    "translate": "translating",
    "score": "scoring",
    "significance": "testing significance",
    "compare_page": "comparing translations",
    "figure_by_step": "drawing figures",
    "figure_rewards": "drawing figures",
    "figure_lengths": "drawing figures",
    "figure_frequency": "drawing figures",
    "differing_examples": "collecting examples",
}

# How much longer than others a rule takes, roughly (in the demo, in seconds): counting jobs would
# promise too much. Of jobs to come only the rule is known, so a training has the mean; once it has
# begun, its model tells more.
WEIGHTS = {"train": 48.0, "translate": 4.0, "compare_page": 4.0}
TRAININGS = {"lm": 10.0, "backward": 25.0, "initial": 25.0}
TRAININGS |= {"nobt": 25.0, "mle": 40.0, "dualnmt": 50.0, "metabt": 105.0}

FAULTS = (LogEvent.ERROR, LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR)


@dataclass(frozen=True)
class Running:
    rule: str
    what: str  # it does, in words
    weight: float
    began: float


class LogHandler(LogHandlerBase):
    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.spoke = 0.0
        self.waiting: Counter[str] = Counter()  # jobs that are not done, by rule
        self.done = self.total = 0
        self.work = self.work_in_all = 0.0  # of the jobs that are done, and of all
        self.rate = 0.0  # work in a second, when the last one ended
        self.running: dict[int, Running] = {}
        self.shown = ""  # the line that stands on the terminal
        self.terminal = sys.stdout.isatty()
        self.guard = threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        with self.guard:
            self._take(record)

    def _take(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.waiting = Counter(record.stats)
            self.total = self.waiting.pop("total", self.waiting.total())
            self.work_in_all = work_of(self.waiting)
        elif event == LogEvent.JOB_INFO:
            rule, wildcards = record.rule_name, dict(record.wildcards or {})
            now, what = time.monotonic(), in_words(rule, wildcards)
            self.running[record.jobid] = Running(rule, what, weight(rule, wildcards), now)
            self._show()
        elif event == LogEvent.JOB_FINISHED:
            self.done += 1
            if job := self.running.pop(record.job_id, None):
                self.waiting[job.rule] -= 1
                self.work += job.weight
                self.rate = self.work / max(1.0, time.monotonic() - self.began)
            self._show()
        elif "Nothing to be done" in record.getMessage():
            self._print("Nothing to be done: everything is there.")
        elif (event in FAULTS or record.levelno >= logging.WARNING) and not stopping():
            self._print(self.format(record))

    # --- the line ---------------------------------------------------------------------------------

    def line(self) -> str:
        passed = time.monotonic() - self.began
        text = f"[{int(passed) // 60}:{int(passed) % 60:02d}] {self.done} of {self.total} jobs done"
        # Before a tenth is done, the guess would be wild.
        if self.waiting.total() and self.work > 0.1 * self.work_in_all:
            work, left = self._work_and_left()
            minutes = left * passed / work / 60
            text += f", {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"
        now = dict.fromkeys(job.what for job in self.running.values() if job.what)
        return f"{text}; {', '.join(now)}" if now else text

    def _work_and_left(self) -> tuple[float, float]:
        """What is done, running jobs taken to be as fast as those before them, and what is not."""
        now, each = time.monotonic(), self.rate / max(1, len(self.running))
        jobs = self.running.values()
        of_running = sum(min(0.9 * job.weight, (now - job.began) * each) for job in jobs)
        work = self.work + of_running
        # Were those done longer than the mean, then those to come are shorter, within reason.
        to_come = work_of(self.waiting - Counter(job.rule for job in jobs))
        least = 0.5 * to_come + sum(job.weight for job in jobs) - of_running
        return work, max(self.work_in_all - work, least)

    def _show(self) -> None:
        if not self.total:
            return
        if self.terminal:
            line = self.line()[: shutil.get_terminal_size().columns - 1]
            self._write(f"\r{line}{' ' * (len(self.shown) - len(line))}")
            self.shown = line
        elif time.monotonic() - self.spoke >= SECONDS_BETWEEN_LINES and self.running:
            self.spoke = time.monotonic()
            self._write(f"{self.line()}\n")

    def _print(self, text: str) -> None:
        """Something else than the line, which must not stand in the way."""
        self._write(f"\r{' ' * len(self.shown)}\r{text}\n" if self.shown else f"{text}\n")
        self.shown = ""

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # nobody reads any more: that must not stop the work
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123

    def _tick(self) -> None:
        while True:
            time.sleep(1)
            with self.guard:
                self._show()

    def close(self) -> None:
        """The last line stays."""
        with self.guard:
            if self.shown:
                self._write("\n")
            self.shown, self.total = "", 0
        super().close()


def stopping() -> bool:
    """Has a person asked to stop? Then what jobs complain of is their own doing."""
    return os.path.exists(os.environ.get("METABT_STOPPING", ""))  # noqa: PTH110


def work_of(jobs: Counter[str]) -> float:
    """Of so many jobs of each rule."""
    return sum(WEIGHTS.get(rule, 1.0) * count for rule, count in jobs.items())


def weight(rule: str, wildcards: dict[str, str]) -> float:
    """How much work a job is."""
    model = wildcards.get("model", "").split("/")[0] if rule == "train" else ""
    return TRAININGS.get(model) or WEIGHTS.get(rule, 1.0)


def in_words(rule: str, wildcards: dict[str, str]) -> str:
    """What a job does: 'training metabt/seed1 (qas-qat)'."""
    if rule not in WORDS:
        return ""
    words = [WORDS[rule], wildcards.get("model", "")]
    if "model" in wildcards and "pair" in wildcards:
        words.append(f"({wildcards['pair']})")
    return " ".join(word for word in words if word)
